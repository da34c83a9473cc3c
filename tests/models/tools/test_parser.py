"""Guards that what a model writes becomes the calls that it meant, and that nothing it writes is lost or shown
half: marks cut in two by the stream, calls that break off, calls to tools that do not exist."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.models.tools.events import AnswerText, CallArguments, CallStarted
from ostinato.models.tools.syntax import SYNTAXES, ToolCallStyle
from tests.models.tools.reading import NAMES, Read, events_of, put_together, read

HERMES, LLAMA, MISTRAL = ToolCallStyle.HERMES, ToolCallStyle.LLAMA, ToolCallStyle.MISTRAL
ADD = '{"name": "add", "arguments": {"a": 1, "b": "x}</tool_call>"}}'
ADD_READ = ("add", '{"a": 1, "b": "x}</tool_call>"}')
MARKED = f"<tool_call>\n{ADD}\n</tool_call>"


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        (HERMES, MARKED, Read("", (ADD_READ,))),
        (HERMES, f"Let me see.\n{MARKED}\n{MARKED}\n", Read("Let me see.", (ADD_READ, ADD_READ))),
        (HERMES, f"\n \n{MARKED}", Read("", (ADD_READ,))),
        (HERMES, f"<tool_call>{ADD}", Read("", (ADD_READ,))),
        (HERMES, f"<tool_call>{ADD}\n\nDone.", Read("\n\nDone.", (ADD_READ,))),
        (HERMES, ADD, Read("", (ADD_READ,))),
        (HERMES, f"```json\n{ADD}\n```", Read("", (ADD_READ,))),
        (HERMES, f"```\n{ADD}\n```\n", Read("", (ADD_READ,))),
        (
            HERMES,
            '<tool_call>{"id": 7, "arguments": {"a": []}, "name": "add"}</tool_call>',
            Read("", (("add", '{"a": []}'),)),
        ),
        (
            LLAMA,
            '{"name": "add", "parameters": {"a": 1}}; {"name": "get_weather", "parameters": {}}',
            Read("", (("add", '{"a": 1}'), ("get_weather", "{}"))),
        ),
        (
            LLAMA,
            '<|python_tag|>{"name": "add", "parameters": {}}',
            Read("", (("add", "{}"),)),
        ),
        (
            MISTRAL,
            'So:[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "x"}, '
            '{"name": "get_weather", "arguments": {}}]',
            Read("So:", (("add", '{"a": 1}'), ("get_weather", "{}"))),
        ),
    ],
)
def test_a_call_is_read_as_the_models_of_a_style_write_it(
    style: ToolCallStyle, text: str, expected: Read
) -> None:
    assert read(style, text) == expected


@pytest.mark.parametrize(
    ("style", "text"),
    [
        (HERMES, "Hello <b>world</b>\n\n  "),
        (HERMES, "ends in half a mark <tool_ca"),
        (HERMES, '{"name": "my-api", "port": 80}'),
        (HERMES, '{"name": "add"}'),
        (HERMES, '{"name": "add", "arguments": [1]}'),
        (HERMES, '<tool_call>{"name": "no_such_tool", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "name": "add", "arguments": {}}</tool_call>'),
        (HERMES, "<tool_call>add(1, 2)</tool_call>"),
        (HERMES, '<tool_call>\n{"name": "add", "argu'),
        (HERMES, "```python\nprint(1)\n```"),
        (HERMES, "\n\n"),
        (LLAMA, '<|python_tag|>brave_search.call(query="x")'),
        (LLAMA, '{"name": "add", "arguments": {}}'),
        (MISTRAL, '[TOOL_CALLS] {"name": "add", "arguments": {}}'),
        (MISTRAL, '{"name": "add", "arguments": {}}'),
    ],
)
def test_what_is_no_call_comes_back_as_the_text_it_was(style: ToolCallStyle, text: str) -> None:
    assert read(style, text) == Read(text)


def test_a_call_behind_a_broken_one_is_still_read() -> None:
    assert read(HERMES, f"<tool_call>oops {MARKED}") == Read("<tool_call>oops ", (ADD_READ,))


def test_a_call_that_breaks_in_its_arguments_keeps_what_was_valid_and_shows_the_rest() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": 1, oops}}</tool_call>'
    assert read(HERMES, text) == Read("oops}}</tool_call>", (("add", '{"a": 1, '),))


def test_a_call_that_is_cut_off_keeps_what_there_is_of_its_arguments() -> None:
    assert read(HERMES, MARKED[:51]) == Read("", (("add", '{"a": 1, "'),))


def test_behind_the_last_allowed_call_everything_is_text() -> None:
    assert read(HERMES, f"{MARKED}\n{MARKED}", max_calls=1) == Read(f"\n{MARKED}", (ADD_READ,))


def test_the_name_comes_once_and_the_arguments_as_they_are_written() -> None:
    pieces = [
        "Wait",
        "\n<tool",
        "_call>\n",
        '{"name": "ad',
        'd", "arguments": {"a"',
        ": 1",
        "2}",
        "}",
    ]
    assert events_of(HERMES, [*pieces, "\n</tool_call>"]) == [
        AnswerText("Wait"),
        CallStarted(0, "add"),
        CallArguments(0, '{"a"'),
        CallArguments(0, ": 1"),
        CallArguments(0, "2}"),
    ]


def test_plain_text_is_not_held_back() -> None:
    pieces = ["The", " answer", " is", " 4", "."]
    assert events_of(HERMES, pieces) == [AnswerText(piece) for piece in pieces]


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(max_size=5), _JSON, max_size=3)),
    max_size=3,
)
_FRAGMENTS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "\n",
            '{"name": "add", "arguments": {"a": ',
            "1",
            '"',
            "}",
            "{",
        ),
        *(
            "<tool",
            "[TOOL_CALLS]",
            " [",
            "]",
            ",",
            "<|python_tag|>",
            "```json\n",
            "text ",
            "\\",
            ";",
        ),
    ]
)


@given(style=st.sampled_from(ToolCallStyle), calls=_CALLS, indent=st.sampled_from([None, 1]))
def test_any_calls_written_in_a_style_are_read_back(
    style: ToolCallStyle, calls: list[tuple[str, dict[str, object]]], indent: int | None
) -> None:
    syntax = SYNTAXES[style]
    bodies = [
        json.dumps({"name": name, syntax.arguments_key: arguments}, indent=indent)
        for name, arguments in calls
    ]
    if syntax.lists_calls:
        text = syntax.opening + syntax.lead + syntax.separator.join(bodies) + syntax.trail
    elif syntax.writes_mark:
        marked = [
            f"{syntax.opening}{syntax.lead}{one}{syntax.trail}{syntax.closing}" for one in bodies
        ]
        text = syntax.separator.join(marked)
    else:
        text = syntax.separator.join(bodies)
    result = read(style, text if calls else "")
    assert [(name, json.loads(arguments)) for name, arguments in result.calls] == calls
    assert result.text == ""


@given(
    style=st.sampled_from(ToolCallStyle),
    fragments=st.lists(_FRAGMENTS, max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_how_the_text_is_cut_does_not_change_what_is_read(
    style: ToolCallStyle, fragments: list[str], cuts: list[int]
) -> None:
    text = "".join(fragments)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    whole = events_of(style, [text])
    assert put_together(events_of(style, pieces)) == put_together(whole)
    assert put_together(events_of(style, text)) == put_together(whole)


@given(style=st.sampled_from(ToolCallStyle), fragments=st.lists(_FRAGMENTS, max_size=12))
def test_text_without_a_call_is_given_back_whole(
    style: ToolCallStyle, fragments: list[str]
) -> None:
    text = "".join(fragments)
    result = read(style, text)
    if not result.calls:
        assert result.text == text
