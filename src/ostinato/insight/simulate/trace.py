"""Block-hash traces in the format of the Mooncake paper.

One JSON object a line: ``timestamp`` (arrival, milliseconds from the start), ``input_length`` and
``output_length`` (tokens), ``hash_ids`` (one id per block of the input; equal ids are equal blocks with equal
prefixes; the last block may be partial). No text and no token is in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ostinato.cache.types import TokenArray
from ostinato.errors import ConfigError

TOKENS_PER_BLOCK = 512
"""Of the published traces."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line.

    Attributes:
        seconds: arrival, from the start.
        input_length: prompt tokens.
        blocks: ids of the prompt's blocks, ``(num_blocks,)``.
    """

    seconds: float
    input_length: int
    blocks: TokenArray


def read_trace(path: Path, block_tokens: int = TOKENS_PER_BLOCK) -> list[TraceRequest]:
    """All requests of a file, in its order.

    Args:
        path: of the file.
        block_tokens: tokens of a block in it.

    Raises:
        ConfigError: the file cannot be read, or a line is not what it should be; names the line.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            return list(_parse(lines, path, block_tokens))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the trace {path} cannot be read: {error}") from error


def _parse(lines: Iterator[str], path: Path, block_tokens: int) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            request = TraceRequest(
                seconds=float(fields["timestamp"]) / 1000,
                input_length=int(fields["input_length"]),
                blocks=_block_ids(fields["hash_ids"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"{path}, line {number}: not a request of a block-hash trace ({error!r}). A line is one JSON"
                " object with timestamp, input_length, output_length and hash_ids"
            ) from error
        if not len(request.blocks) or len(request.blocks) != -(
            -request.input_length // block_tokens
        ):
            raise ConfigError(
                f"{path}, line {number}: {request.input_length} tokens do not fill {len(request.blocks)}"
                f" blocks of {block_tokens}; give the trace's block size with --block-tokens"
            )
        yield request


def _block_ids(ids: object) -> TokenArray:
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise TypeError("hash_ids is not a list of whole numbers")
    return np.array(ids, dtype=np.int32)


def total_tokens(requests: Sequence[TraceRequest]) -> int:
    """Prompt tokens of all requests."""
    return sum(request.input_length for request in requests)


def distinct_blocks(requests: Sequence[TraceRequest]) -> int:
    """Blocks that an unbounded cache would hold at the end."""
    return len(np.unique(np.concatenate([request.blocks for request in requests])))
