"""The blocks that messages are made of, as clients write them.

Kinds that a text model cannot read are parsed too, so that they can be refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, Tag

from ostinato.api.fields import TAG_PREFIX, ApiModel, Text, text_or_list, union_of
from ostinato.api.prompt import Breakpoint, TTLClass
from ostinato.errors import InvalidRequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE

TTL_CLASSES = {"5m": TTLClass.SHORT, "1h": TTLClass.LONG}

UNREADABLE = {
    "image": "images",
    "document": "documents",
    "search_result": "search results",
    "container_upload": "files",
    "browser_state": "browsers",
}
"""Kinds of blocks that a text model cannot read."""


class CacheControl(ApiModel):
    """Cache everything up to the end of this block."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = Field(default=None, description="Default: 5m.")

    def breakpoint(self) -> Breakpoint:
        return Breakpoint(TTL_CLASSES[self.ttl or "5m"])


class Block(ApiModel):
    """What all blocks have in common."""

    cache_control: CacheControl | None = None

    def breakpoint(self) -> Breakpoint | None:
        return None if self.cache_control is None else self.cache_control.breakpoint()


class TextBlock(Block):
    type: Literal["text"]
    text: Text
    citations: list[dict[str, Any]] | None = None


class ThinkingBlock(Block):
    type: Literal["thinking"]
    thinking: Text
    signature: Text | None = None


class RedactedThinkingBlock(Block):
    type: Literal["redacted_thinking"]
    data: Text


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: Text
    name: Text
    input: dict[str, Any]


class ServerToolUseBlock(Block):
    type: Literal["server_tool_use"]
    id: Text
    name: Text
    input: dict[str, Any]


class ToolReference(Block):
    """Brings a deferred tool in."""

    type: Literal["tool_reference"]
    tool_name: Text


class ToolSearchResult(ApiModel):
    """What a search found, or why it found nothing."""

    type: Literal["tool_search_tool_search_result", "tool_search_tool_result_error"]
    tool_references: list[ToolReference] | None = None
    error_code: Text | None = None
    error_message: Text | None = None


class ToolSearchResultBlock(Block):
    type: Literal["tool_search_tool_result"]
    tool_use_id: Text
    content: ToolSearchResult


class OtherBlock(Block):
    """Of a kind that is refused."""

    type: Text


def kind_of(*known: str) -> Any:
    """A discriminator by `type`; what is not `known` is an `OtherBlock`."""

    def branch(value: Any) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        if not isinstance(kind, str):
            return f"{TAG_PREFIX}other" if isinstance(value, dict) else None
        return f"{TAG_PREFIX}{kind if kind in known else 'other'}"

    return union_of(branch, "a content block, an object with a type")


ResultPart: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("~text")]
    | Annotated[ToolReference, Tag("~tool_reference")]
    | Annotated[OtherBlock, Tag("~other")],
    kind_of("text", "tool_reference"),
]


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: Text
    content: (
        Annotated[
            Annotated[Text, Tag("~text")] | Annotated[list[ResultPart], Tag("~list")],
            union_of(text_or_list, "a string or a list of content blocks"),
        ]
        | None
    ) = None
    is_error: bool | None = None


ContentBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("~text")]
    | Annotated[ThinkingBlock, Tag("~thinking")]
    | Annotated[RedactedThinkingBlock, Tag("~redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("~tool_use")]
    | Annotated[ToolResultBlock, Tag("~tool_result")]
    | Annotated[ServerToolUseBlock, Tag("~server_tool_use")]
    | Annotated[ToolSearchResultBlock, Tag("~tool_search_tool_result")]
    | Annotated[OtherBlock, Tag("~other")],
    kind_of(
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "server_tool_use",
        "tool_search_tool_result",
    ),
]


class InputMessage(ApiModel):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[Text, Tag("~text")] | Annotated[list[ContentBlock], Tag("~list")],
        union_of(text_or_list, "a string or a list of content blocks"),
    ]


SystemPrompt: TypeAlias = Annotated[
    Annotated[Text, Tag("~text")] | Annotated[list[TextBlock], Tag("~list")],
    union_of(text_or_list, "a string or a list of text blocks"),
]


def refuse_other(block: OtherBlock, path: str, allowed: str) -> InvalidRequestError:
    """The error for a block that cannot be read."""
    if block.type in UNREADABLE:
        return InvalidRequestError(
            f"{path}: the loaded model reads text only, not {UNREADABLE[block.type]}; send blocks of "
            "type 'text'",
            param=f"{path}.type",
            code=UNSUPPORTED_CODE,
        )
    return InvalidRequestError(
        f"{path}.type must be one of {allowed}, not {block.type[:40]!r}", param=f"{path}.type"
    )


def refuse_breakpoint(block: Block, path: str, what: str) -> None:
    """For blocks that no breakpoint may lie on.

    Raises:
        InvalidRequestError: there is one.
    """
    if block.cache_control is not None:
        raise InvalidRequestError(
            f"{path}.cache_control cannot be set for {what}", param=f"{path}.cache_control"
        )
