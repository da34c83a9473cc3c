"""The `cache_control` marks of a request, as the client set them.

Two may lie on one position of the prompt: a tool result's own, and that of its last part. They are two of the
four that a request may have, and the order of lifetimes holds between them as well. So Anthropic's rules are
about these marks, and not about the segments that they end up on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ostinato.api.anthropic.blocks import (
    Block,
    InputMessage,
    TextBlock,
    ToolReference,
    ToolResultBlock,
    ToolSearchResultBlock,
)
from ostinato.api.prompt import Breakpoint, TTLClass


@dataclass(frozen=True, slots=True)
class Mark:
    """One `cache_control` and the block that has it."""

    path: str
    breakpoint: Breakpoint


def marks_of(
    tools: Sequence[Block], system: str | Sequence[TextBlock], messages: Sequence[InputMessage]
) -> list[Mark]:
    """All marks in Anthropic's order: tools, system, messages; a block's parts before the block itself."""
    blocks = [(f"tools[{at}]", tool) for at, tool in enumerate(tools)]
    if not isinstance(system, str):
        blocks += [(f"system[{at}]", block) for at, block in enumerate(system)]
    for at, message in enumerate(messages):
        if not isinstance(message.content, str):
            for n, block in enumerate(message.content):
                blocks += _with_parts(block, f"messages[{at}].content[{n}]")
    return [Mark(path, mark) for path, block in blocks if (mark := block.breakpoint()) is not None]


def longest(marks: Iterable[Breakpoint | None]) -> Breakpoint | None:
    """What several marks on one position come to: its tokens are kept for as long as any of them asks."""
    set_ones = [mark for mark in marks if mark is not None]
    long_ones = (mark for mark in set_ones if mark.ttl is TTLClass.LONG)
    return next(long_ones, set_ones[0] if set_ones else None)


def _with_parts(block: Block, path: str) -> Iterator[tuple[str, Block]]:
    for where, parts in _parts(block):
        yield from ((f"{path}.{where}[{at}]", part) for at, part in enumerate(parts))
    yield path, block


def _parts(block: Block) -> Iterator[tuple[str, Sequence[TextBlock | ToolReference | Block]]]:
    if isinstance(block, ToolResultBlock) and isinstance(block.content, list):
        yield "content", block.content
    elif isinstance(block, ToolSearchResultBlock):
        yield "content.tool_references", block.content.tool_references or ()
