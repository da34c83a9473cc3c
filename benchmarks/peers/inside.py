"""What only shows from inside: engine overhead a step, the prefix index, and the start of the server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.engines import CLOCK, Bench
from benchmarks.peers.adapters import Ostinato
from benchmarks.peers.contract import EngineError
from benchmarks.peers.prompts import PromptMaker
from benchmarks.peers.worker_engine import WORKERS
from benchmarks.report import Table
from ostinato.cache.build import build_manager
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.storage import NullKVStorage
from ostinato.cache.types import NamespaceKey
from ostinato.engine.core import EngineCore
from ostinato.engine.request import EngineRequest
from ostinato.engine.sampling_params import SamplingParams

INDEX_TOKENS = 100_000
INDEX_SEED = 7
_BLOCK_SIZE = 16
_FIRST_STEPS = 4
"""Steps not counted: they still hold prefill."""
_WORKER_SECONDS = 180
_INDEX_REPEATS = 15


def measure_inside(
    model: str, maker: PromptMaker, peers_dir: Path, repeats: int, steps: int
) -> tuple[Table, dict[str, Any]]:
    """What a client cannot see: a table, and everything measured.

    Args:
        model: as ``--model`` takes it.
        maker: of prompts.
        peers_dir: peers' environments and logs.
        repeats: starts of the server, after the first.
        steps: decode steps that are looked into.
    """
    table = Table("Ostinato from inside", ("figure", "value", "goal"))
    bench = Bench.load(model)
    raw: dict[str, Any] = {"overhead": [], "index": {}, "start_seconds": []}
    for streams in (1, 16):
        seen = overhead(bench, maker, streams, steps)
        raw["overhead"].append(seen)
        text = f"{seen['share']:.1%} ({seen['outside_ms']:.2f} of {seen['step_ms']:.2f} ms)"
        table.rows.append((f"decode step outside kernels, {streams} streams", text, "≤ 10 %"))
    raw["index"] = index_times(peers_dir)
    for title, found in raw["index"].items():
        value = f"{found['ms']:.2f} ms" if "ms" in found else found["missing"]
        if what := found.get("what"):
            value += f" ({what})"
        goal = "≤ 10 ms" if title.startswith("Ostinato") else "–"
        table.rows.append((f"match + hash + insert, 100,000 tokens: {title}", value, goal))
    try:
        first, *others = start_times(model, peers_dir / "logs", repeats)
    except EngineError as error:
        table.rows.append(("start of `ostinato serve`", str(error), "≤ 1.5 s"))
        return table, raw
    raw["start_seconds"] = [first, *others]
    table.rows.append(("`ostinato serve` to ready, first start", f"{first:.2f} s", "–"))
    again = f"{median(others):.2f} s"
    table.rows.append(("`ostinato serve` to ready, second start", again, "≤ 1.5 s"))
    return table, raw


def overhead(bench: Bench, maker: PromptMaker, streams: int, steps: int) -> dict[str, float]:
    """Share of a decode step that is not spent inside ``Decoder.forward``.

    The step is what ``EngineCore.step`` takes: schedule, build the batch, run, sample, bookkeeping, text.
    """
    decoder = _TimedDecoder(bench.model.decoder.forward)
    core = bench.engine("radix", 4 * streams * (64 + steps))
    core._runner._model = decoder  # type: ignore[attr-defined]
    params = SamplingParams(max_tokens=steps, temperature=0.0, ignore_eos=True)
    for number in range(streams):
        prompt = np.array(maker.prompt(64), dtype=np.int32)
        core.add_request(
            EngineRequest(request_id=f"o{number}", prompt_token_ids=prompt, params=params)
        )
    walls, kernels = _decode_steps(core, decoder, streams)
    outside = [wall - kernel for wall, kernel in zip(walls, kernels, strict=True)]
    return {
        "streams": streams,
        "steps": len(walls),
        "step_ms": 1000 * median(walls),
        "outside_ms": 1000 * median(outside),
        "share": median(o / w for o, w in zip(outside, walls, strict=True)),
    }


class _TimedDecoder:
    """Adds up the time inside the model."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self.seconds = 0.0

    def forward(self, *arguments: Any) -> Any:
        start = CLOCK.monotonic()
        try:
            return self._forward(*arguments)
        finally:
            self.seconds += CLOCK.monotonic() - start


def _decode_steps(
    core: EngineCore, decoder: _TimedDecoder, streams: int
) -> tuple[list[float], list[float]]:
    """Wall and model seconds of the steps in which every stream got one token."""
    walls, kernels = [], []
    while core.has_work:
        before, start = decoder.seconds, CLOCK.monotonic()
        deltas = core.step()
        wall = CLOCK.monotonic() - start
        if len(deltas) == streams and all(d.finish_reason is None for d in deltas):
            walls.append(wall)
            kernels.append(decoder.seconds - before)
    return walls[_FIRST_STEPS:], kernels[_FIRST_STEPS:]


def index_times(peers_dir: Path) -> dict[str, dict[str, Any]]:
    """Match, hash and insert of a new prompt of 100,000 tokens, in milliseconds; peers' own where installed."""
    tokens = np.random.default_rng(INDEX_SEED).integers(0, 49_152, INDEX_TOKENS).astype(np.int32)
    found: dict[str, dict[str, Any]] = {}
    for name, what in (
        ("radix", "compares tokens; pages of 16"),
        ("block_hash", "hashes where prompts part; pages of 16"),
    ):
        times = [_own_index(name, tokens) for _ in range(_INDEX_REPEATS)]
        found[f"Ostinato, {name}"] = {"ms": median(inserted for inserted, _ in times), "what": what}
        if name == "radix":
            found["Ostinato, radix, and the SHA-256 chain that lower tiers need"] = {
                "ms": median(map(sum, times)),
                "what": "every block of 16 named",
            }
    for title, venv, script in (
        ("SGLang RadixCache", "sglang", "sglang_radix.py"),
        ("vLLM hash chain", "vllm", "vllm_hashes.py"),
    ):
        found[title] = _peer_index(peers_dir / venv, script)
    return found


def _own_index(name: Any, tokens: np.ndarray[Any, np.dtype[np.int32]]) -> tuple[float, float]:
    """Milliseconds of one cold match and the insert of everything, and of naming all blocks.

    The blocks are there already; nothing of an earlier call is reused.
    """
    spec = KVCacheSpec(1, 1, 1, KVDtype.FP16, _BLOCK_SIZE)
    namespace = NamespaceKey(bytes(32))
    manager = build_manager(spec, NullKVStorage(spec, len(tokens) // _BLOCK_SIZE + 1), name)
    start = CLOCK.monotonic()
    match = manager.lookup(namespace, tokens)
    matched = CLOCK.monotonic() - start
    table = manager.allocate(match, len(tokens))
    if table is None:
        raise RuntimeError("the pool is too small for the prompt")
    start = CLOCK.monotonic()
    manager.publish(table, tokens, len(tokens))
    inserted = CLOCK.monotonic() - start
    start = CLOCK.monotonic()
    named = match.hashes.extend_to(tokens, _BLOCK_SIZE)
    hashed = CLOCK.monotonic() - start
    found = manager.lookup(namespace, tokens).num_tokens
    if found < len(tokens) - _BLOCK_SIZE or named != len(tokens) // _BLOCK_SIZE:
        raise RuntimeError("what was inserted is not found")
    return 1000 * (matched + inserted), 1000 * hashed


def _peer_index(venv: Path, script: str) -> dict[str, Any]:
    """A worker prints ``{"ms": […], "what": …}``; or why it could not be run."""
    python = venv / "bin" / "python"
    if not python.exists():
        return {"missing": f"not installed: python -m benchmarks.peers install {venv.name}"}
    sizes = [str(number) for number in (INDEX_TOKENS, INDEX_SEED, _INDEX_REPEATS)]
    try:
        output = subprocess.run(
            [str(python), str(WORKERS / script), *sizes],
            check=True,
            capture_output=True,
            text=True,
            timeout=_WORKER_SECONDS,
        ).stdout
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines() or ["no message"]
        return {"missing": f"does not run here: {lines[-1]}"}
    except subprocess.TimeoutExpired:
        return {"missing": f"took more than {_WORKER_SECONDS} s"}
    answer = json.loads(output.splitlines()[-1])
    return {"ms": median(answer["ms"]), "what": answer["what"]}


def start_times(model: str, logs: Path, repeats: int) -> list[float]:
    """Seconds from launching ``ostinato serve`` until it says that it is ready.

    The first start may have to pack weights and fill the page cache; the others show what a restart costs.

    Raises:
        EngineError: it did not start.
    """
    seconds = []
    for _ in range(1 + repeats):
        engine = Ostinato(model, logs / "start")
        start = CLOCK.monotonic()
        try:
            engine.start()
            seconds.append(CLOCK.monotonic() - start)
        finally:
            engine.stop()
    if not seconds:
        raise EngineError("no start was measured")
    return seconds
