"""The model's own chat template: Jinja source from the model file, run in a sandbox.

Templates come with downloaded files, so they get no attributes that reach the interpreter and no way to
change what they are given. And they get **no clock**: a template that prints today's date puts a changing
text in front of every conversation, and one changed token makes every cached token behind it useless.
`strftime_now` therefore always formats the same day; who wants the real date passes it in, in a message
behind the stable prefix, or as a template variable such as ``date_string``.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ostinato.errors import InvalidRequestError, ModelFormatError
from ostinato.models import segment_marks
from ostinato.models.hf_files import read_json, token_content

FIXED_DATE = datetime.date(2024, 7, 26)
"""The day that templates see as today: the one that Llama 3's template falls back to without a clock."""

RESERVED_VARIABLES = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"),
        *(
            "raise_exception",
            "strftime_now",
            "self",
            "loop",
            "caller",
            "varargs",
            "kwargs",
            "super",
        ),
        *("range", "dict", "lipsum", "cycler", "joiner", "namespace"),
    }
)
"""What the server or Jinja itself puts in front of a template; no caller may."""


class ChatTemplate:
    """A compiled template. Thread-safe; never changes after construction.

    Attributes:
        source: the Jinja text.
        supports_tools: whether the template looks at `tools` at all; if not, tools are silently left out.
    """

    def __init__(self, source: str, *, bos_token: str, eos_token: str) -> None:
        """Compile `source`.

        Raises:
            ModelFormatError: if it is not valid Jinja; says the line.
        """
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
            self.supports_tools = _reads("tools", source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFormatError(
                f"the model's chat template is not valid Jinja, line {error.lineno}: {error.message}"
            ) from error

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> ChatTemplate | None:
        """The template in a GGUF file's key/values, arrays as lists; None without one.

        Raises:
            ModelFormatError: it is not valid Jinja.
        """
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            return None
        tokens = metadata.get("tokenizer.ggml.tokens", [])

        def spelling(name: str) -> str:
            token_id = metadata.get(f"tokenizer.ggml.{name}_token_id", -1)
            return str(tokens[token_id]) if 0 <= token_id < len(tokens) else ""

        return cls(source, bos_token=spelling("bos"), eos_token=spelling("eos"))

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """The template in a model folder; None without one.

        ``chat_template.jinja`` comes before ``chat_template.json`` before ``tokenizer_config.json``. Of
        several named templates the one called ``default`` is taken.

        Raises:
            ModelFormatError: a file is damaged, or the template is not valid Jinja.
        """
        settings = read_json(folder / "tokenizer_config.json")
        file = folder / "chat_template.jinja"
        if file.is_file():
            source: Any = file.read_text(encoding="utf-8")
        else:
            source = read_json(folder / "chat_template.json").get("chat_template")
            source = source or settings.get("chat_template")
        if isinstance(source, list):
            named = {entry.get("name"): entry.get("template") for entry in source}
            source = named.get("default")
        if not isinstance(source, str):
            return None
        return cls(
            source,
            bos_token=token_content(settings.get("bos_token")) or "",
            eos_token=token_content(settings.get("eos_token")) or "",
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text.

        Args:
            messages: as OpenAI has them, content as text. Missing content is empty text; a tool call's
                arguments, which clients send as JSON text, reach the template as the object that they spell.
            tools: JSON schemas, as OpenAI has them; an empty sequence is as none.
            add_generation_prompt: end with the mark that opens the assistant's turn.
            variables: further names for the template, e.g. ``enable_thinking``.

        Raises:
            InvalidRequestError: a variable has one of the `RESERVED_VARIABLES`' names, or the template
                refuses or cannot handle these messages; param ``messages``.
        """
        given = dict(variables or {})
        refuse_reserved(given)
        names = {
            **self._tokens,
            **given,
            "messages": [as_templates_expect(message) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(names)
        except _RefusedError as error:
            raise InvalidRequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        except Exception as error:  # a template may fail in any way that Python can
            raise InvalidRequestError(
                f"the model's chat template cannot render these messages: {error}", param="messages"
            ) from error


def refuse_reserved(variables: Mapping[str, Any]) -> None:
    """Check the names that a caller hands to a template.

    Raises:
        InvalidRequestError: some are reserved; names them.
    """
    if reserved := sorted(RESERVED_VARIABLES & variables.keys()):
        raise InvalidRequestError(
            f"chat_template_kwargs must not set {', '.join(reserved)}: the server does",
            param="chat_template_kwargs",
        )


class _RefusedError(Exception):
    """A template called ``raise_exception``."""


class _GenerationMarks(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what to train on; for serving it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", _GenerationMarks],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = FIXED_DATE.strftime
    return environment


def _reads(variable: str, source: str) -> bool:
    names = _environment().parse(source).find_all(nodes.Name)
    return any(name.name == variable and name.ctx == "load" for name in names)


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it; Jinja's own filter escapes it for HTML."""
    return segment_marks.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def as_templates_expect(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with what templates count on: content that is there, arguments as the object they spell."""
    prepared = dict(message)
    if prepared.get("content") is None:
        prepared["content"] = ""
    if prepared.get("tool_calls"):
        prepared["tool_calls"] = [_with_parsed_arguments(call) for call in prepared["tool_calls"]]
    return prepared


def _with_parsed_arguments(call: Any) -> Any:
    """`call` with arguments as an object; as it is where they are not JSON text of an object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
