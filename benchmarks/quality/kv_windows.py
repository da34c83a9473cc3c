"""Windows of text scored over K/V of several formats, side by side, and what is written down of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.quality.divergence import Divergence, log_softmax
from ostinato.cache.layout import KVDtype
from ostinato.engine.runner import ModelRunner, build_runner
from ostinato.models.loader import LoadedModel
from ostinato.ops.base import BatchMetadata, Float32Array, OpsBackend

BLOCK_SIZE = 16

Tokens = npt.NDArray[np.int32]


class PagedText:
    """One text at a time, computed chunk by chunk through paged K/V of one format.

    What lies before a chunk is read back as it is stored. With chunks of one block a token sees what it sees
    while an answer is decoded: everything sealed but its own block.

    Args:
        model: loaded by `ops`; shared by all formats.
        ops: allocates the K/V.
        dtype: format of the K/V.
        window: longest text, in tokens.
        chunk: longest chunk.
    """

    def __init__(
        self, model: LoadedModel, ops: OpsBackend, dtype: KVDtype, window: int, chunk: int
    ) -> None:
        spec = model.config.kv_spec(dtype, BLOCK_SIZE)
        blocks, open_blocks = spec.blocks_for(window), spec.blocks_for(chunk) + 1
        self._table = np.arange(blocks, dtype=np.int32)[None]
        kv = ops.allocate_kv(spec, blocks, open_blocks)
        self._runner: ModelRunner = build_runner(model.decoder, kv)

    def logits(self, token_ids: Tokens, start: int) -> Float32Array:
        """``(T, vocab)`` of a chunk at position `start`; what is before it was computed already."""
        count = len(token_ids)
        positions = np.arange(start, start + count, dtype=np.int32)
        return self._runner.forward(
            BatchMetadata(
                token_ids=token_ids,
                positions=positions,
                slot_mapping=positions.astype(np.int64),
                query_start=np.array([0, count], dtype=np.int32),
                seq_lens=np.array([start + count], dtype=np.int32),
                block_tables=self._table[:, : -(-(start + count) // BLOCK_SIZE)],
                logits_indices=np.arange(count, dtype=np.int32),
            )
        )


def score_window(
    token_ids: Tokens, reference: PagedText, measured: Mapping[KVDtype, PagedText], chunk: int
) -> tuple[Divergence, dict[KVDtype, Divergence]]:
    """The reference against itself (for its perplexity), and every format against the reference."""
    own, found = Divergence(), {dtype: Divergence() for dtype in measured}
    for start in range(0, len(token_ids), chunk):
        part = token_ids[start : start + chunk]
        and_next = token_ids[start : start + chunk + 1]
        exact = log_softmax(reference.logits(part, start))
        own.add_log_probs(exact, exact, and_next)
        for dtype, text in measured.items():
            found[dtype].add_log_probs(exact, log_softmax(text.logits(part, start)), and_next)
    return own, found


@dataclass(frozen=True, slots=True)
class Window:
    """What one window gave.

    Attributes:
        text: name of the text.
        index: of the window in it.
        seconds: of computing.
        own: the reference against itself.
        found: every format against the reference.
    """

    text: str
    index: int
    seconds: float
    own: Divergence
    found: dict[KVDtype, Divergence]


class WindowLog:
    """A file that takes a line for each finished window, so that a run that was broken off goes on.

    Args:
        folder: where such files lie.
        settings: all that decides the figures; a run with other settings has a file of its own.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        name = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        self._path = folder / f"kv_quality_{name}.jsonl"

    def windows(self) -> Iterator[Window]:
        """What is finished; a line that was cut off counts as not written."""
        if not self._path.is_file():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        self._path.write_text("".join(whole), encoding="utf-8")
        for line in whole:
            data = json.loads(line)
            yield Window(
                data["text"],
                data["index"],
                data["seconds"],
                Divergence(**data["own"]),
                {KVDtype(name): Divergence(**one) for name, one in data["found"].items()},
            )

    def add(self, window: Window) -> None:
        """On disk when this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(window)) + "\n")
