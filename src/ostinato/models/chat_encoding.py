"""From a conversation to token ids: the one way that the API and `LLM.chat` share.

What clients wrote stays text: a special token in a prompt comes from the model's chat template or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ostinato.errors import InvalidRequestError
from ostinato.models.chat_template import ChatTemplate, as_templates_expect
from ostinato.models.tokenizer import Tokenizer

UNSUPPORTED_CODE = "unsupported_parameter"


class ChatModel(Protocol):
    """What is needed of a loaded model."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...


def encode_chat(
    model: ChatModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
    max_model_len: int | None = None,
) -> list[int]:
    """Render a conversation with the model's chat template and tokenise it; nothing is added.

    A special token's spelling inside messages, tools or variables is tokenised as ordinary text; all other
    text is as the template wrote it.

    Args:
        model: whose template and tokenizer.
        messages: as OpenAI has them, content as text.
        tools: JSON schemas, as OpenAI has them; an empty sequence is as none.
        add_generation_prompt: end with the mark that opens the assistant's turn.
        variables: further names for the template, e.g. ``enable_thinking``.
        max_model_len: what cannot possibly come to so few tokens is refused without tokenising it.

    Raises:
        InvalidRequestError: the model has no template, the template would drop tools or tool calls, it
            refuses the conversation, a variable has a reserved name, or a text is not valid Unicode.
        ContextLengthError: longer than `max_model_len`, by its bytes alone.
    """
    template = model.chat_template
    if template is None:
        raise InvalidRequestError(
            f"the model {model.name!r} has no chat template: use /v1/completions, in Python generate()",
            param="messages",
            code=UNSUPPORTED_CODE,
        )
    _require_support(template, messages, tools)
    mark = model.tokenizer.mark_special_text
    try:
        text = template.render(
            [_mapped(as_templates_expect(message), mark) for message in messages],
            tools=_mapped(list(tools), mark) if tools else None,
            add_generation_prompt=add_generation_prompt,
            variables=_mapped(dict(variables or {}), mark),
        )
    except RecursionError:
        raise InvalidRequestError(
            "messages, tools and chat_template_kwargs must not be nested this deeply",
            param="messages",
        ) from None
    text = _well_formed(text)
    if max_model_len is not None:
        model.tokenizer.require_fit(text, max_model_len)
    return model.tokenizer.encode_marked(text)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with every string in it changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(entry, change) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(entry, change) for entry in value]
    return value


def _require_support(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> None:
    """Refuse what the template would drop without a word."""
    if tools and not template.supports_tools:
        raise InvalidRequestError(
            "this model's chat template has no place for tools: describe them in the system message, "
            "or serve a model with tool support",
            param="tools",
            code=UNSUPPORTED_CODE,
        )
    calls = any(message.get("tool_calls") for message in messages)
    if calls and "tool_calls" not in template.source:
        raise InvalidRequestError(
            "this model's chat template has no place for tool_calls: write the call into the "
            "assistant message's content, or serve a model with tool support",
            param="messages",
            code=UNSUPPORTED_CODE,
        )


def _well_formed(text: str) -> str:
    """JSON can smuggle in lone surrogates, which no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequestError(
            "messages, tools and chat_template_kwargs must be valid Unicode text, without lone surrogates",
            param="messages",
        ) from None
    return text
