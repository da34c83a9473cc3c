"""From a conversation to token ids: the one way that the API and `LLM.chat` share.

What clients wrote stays text: a special token in a prompt comes from the model's chat template or not at all.
Ids of tool calls are replaced by their order of appearance, since clients and gateways make them at random and
one changed token makes every cached token behind it useless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ostinato.cache.types import TokenArray
from ostinato.errors import InvalidRequestError
from ostinato.models import segment_marks
from ostinato.models.chat_template import ChatTemplate, as_templates_expect
from ostinato.models.tokenizer import Tokenizer

UNSUPPORTED_CODE = "unsupported_parameter"
PART_SEPARATOR = "\n"
"""Between the text parts of one message, as vLLM joins them."""

END_CHARACTERS = 64


class ChatModel(Protocol):
    """What is needed of a loaded model."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A rendered conversation.

    Attributes:
        token_ids: ``(num_tokens,)`` int32, the same as `encode_chat` gives.
        boundaries: for each segment, the number of tokens that lie wholly before its end; None if the template
            does not show it, or not so that its end can be told.
        text_end: the last characters of the text, at most `END_CHARACTERS`.
    """

    token_ids: TokenArray
    boundaries: tuple[int | None, ...]
    text_end: str


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
    rendering = _Rendering(model, tools or (), add_generation_prompt, variables or {})
    conversation = rendering.prepared([{**message} for message in messages])
    text = rendering.text(conversation, rendering.tools)
    if max_model_len is not None:
        model.tokenizer.require_fit(text, max_model_len)
    return model.tokenizer.encode_marked(text)


def encode_segments(
    model: ChatModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
    max_model_len: int | None = None,
) -> EncodedChat:
    """`encode_chat`, and where each segment of the conversation ends in it.

    Args:
        model: whose template and tokenizer.
        messages: as OpenAI has them, except that content is a sequence of texts, the message's parts. They are
            joined with `PART_SEPARATOR`.
        tools: JSON schemas, as OpenAI has them.
        add_generation_prompt: end with the mark that opens the assistant's turn.
        variables: further names for the template.
        max_model_len: what cannot possibly come to so few tokens is refused without tokenising it.

    Returns:
        Boundaries in the order: each tool; then, message by message, each part and each tool call.

    Raises:
        InvalidRequestError: as `encode_chat`.
        ContextLengthError: as `encode_chat`.
    """
    rendering = _Rendering(model, tools, add_generation_prompt, variables or {})
    parts = [tuple(message.get("content") or ()) for message in messages]
    conversation = rendering.prepared(
        [
            {**message, "content": PART_SEPARATOR.join(texts)}
            for message, texts in zip(messages, parts, strict=True)
        ]
    )
    text = rendering.text(conversation, rendering.tools)
    if max_model_len is not None:
        model.tokenizer.require_fit(text, max_model_len)
    segments = _Segments(rendering.mark, rendering.tools, conversation, parts)
    found = segments.offsets(rendering.text(segments.conversation, segments.tools), text)
    ends = sorted(set(found.values()))
    token_ids, counts = model.tokenizer.encode_marked_with_bounds(text, ends)
    tokens_before = dict(zip(ends, counts, strict=True))
    return EncodedChat(
        np.array(token_ids, dtype=np.int32),
        tuple(
            tokens_before[found[number]] if number in found else None
            for number in range(segments.count)
        ),
        text[-END_CHARACTERS:],
    )


class _Rendering:
    """One conversation's way through a template; what clients wrote has its special tokens marked.

    Attributes:
        mark: marks special tokens in a text.
        tools: for `text`.
    """

    def __init__(
        self,
        model: ChatModel,
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> None:
        if model.chat_template is None:
            raise InvalidRequestError(
                f"the model {model.name!r} has no chat template: use /v1/completions, in Python generate()",
                param="messages",
                code=UNSUPPORTED_CODE,
            )
        self.mark = model.tokenizer.mark_special_text
        self._template = model.chat_template
        self._given_tools = tools
        self._add_generation_prompt = add_generation_prompt
        with _NestedTooDeeply():
            self.tools: list[Any] = _mapped(list(tools), self.mark)
            self._variables = _mapped(dict(variables), self.mark)

    def prepared(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages for `text`.

        Raises:
            InvalidRequestError: the template has no place for tools or tool calls.
        """
        _require_support(self._template, messages, self._given_tools)
        with _NestedTooDeeply():
            return [
                _mapped(as_templates_expect(message), self.mark)
                for message in with_stable_call_ids(messages)
            ]

    def text(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> str:
        """The prompt.

        Raises:
            InvalidRequestError: see `ChatTemplate.render`, or it is not valid Unicode.
        """
        with _NestedTooDeeply():
            text = self._template.render(
                messages,
                tools=tools or None,
                add_generation_prompt=self._add_generation_prompt,
                variables=self._variables,
            )
        return _well_formed(text)


class _NestedTooDeeply(contextlib.AbstractContextManager[None]):
    """Makes running out of stack the caller's mistake."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, RecursionError):
            raise InvalidRequestError(
                "messages, tools and chat_template_kwargs must not be nested this deeply",
                param="messages",
            ) from None


class _Segments:
    """A conversation with a mark at the end of each segment.

    Attributes:
        tools, conversation: marked.
        count: segments, numbered as `encode_segments` returns their boundaries.
    """

    def __init__(
        self,
        mark: Callable[[str], str],
        tools: Sequence[Mapping[str, Any]],
        conversation: Sequence[Mapping[str, Any]],
        parts: Sequence[Sequence[str]],
    ) -> None:
        self._texts: dict[int, str] = {}
        self.tools = [segment_marks.marked_object(tool, n) for n, tool in enumerate(tools)]
        self.count = len(tools)
        self.conversation = [
            self._marked(message, [mark(text) for text in texts])
            for message, texts in zip(conversation, parts, strict=True)
        ]

    def offsets(self, rendered: str, plain: str) -> dict[int, int]:
        """Where the segments end in `plain`, given the rendering with marks; without those not shown."""
        marked, offsets = segment_marks.take_out_marks(rendered)
        moved = segment_marks.transferred(offsets, marked, plain)
        return {
            number: segment_marks.past_white_space(offset, self._texts.get(number, ""), plain)
            for number, offset in moved.items()
            if number < self.count
        }

    def _marked(self, message: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
        first = self.count
        self.count += len(texts)
        self._texts.update(enumerate(texts, first))
        numbered = [segment_marks.marked_text(text, n) for n, text in enumerate(texts, first)]
        if PART_SEPARATOR.join(texts) != message["content"]:  # a special token spans two parts
            numbered = [segment_marks.marked_text(message["content"], self.count - 1)]
        changed: dict[str, Any] = {**message, "content": PART_SEPARATOR.join(numbered)}
        if message.get("tool_calls"):
            changed["tool_calls"] = [self._marked_call(call) for call in message["tool_calls"]]
        return changed

    def _marked_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        number = self.count
        self.count += 1
        function = dict(call["function"])
        arguments = function["arguments"]
        if isinstance(arguments, Mapping):
            function["arguments"] = segment_marks.marked_object(arguments, number)
        elif isinstance(arguments, str):
            function["arguments"] = segment_marks.marked_text(arguments, number)
        return {**call, "function": function}


def with_stable_call_ids(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages in which each tool call's id is its number in order of appearance, here and in its result.

    Nine letters and digits, since some templates refuse any other form.
    """
    names: dict[str, str] = {}

    def stable(call_id: Any) -> Any:
        if not isinstance(call_id, str):
            return call_id
        return names.setdefault(call_id, f"call{len(names):05d}")

    renamed: list[Mapping[str, Any]] = []
    for message in messages:
        changed = dict(message)
        if message.get("tool_calls"):
            changed["tool_calls"] = [
                {**call, "id": stable(call["id"])}
                if isinstance(call, Mapping) and "id" in call
                else call
                for call in message["tool_calls"]
            ]
        if "tool_call_id" in message:
            changed["tool_call_id"] = stable(message["tool_call_id"])
        renamed.append(changed)
    return renamed


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
