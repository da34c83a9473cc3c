"""Guards the ends of segments: exact token positions in the rendered prompt, and never another prompt for it.

A boundary that is off by one token is a cache entry that the next request does not find; marks that changed a
single token would change what the model reads.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import normalizers

from ostinato.config import load_config
from ostinato.errors import ModelNotFoundError
from ostinato.models.chat_encoding import PART_SEPARATOR, EncodedChat, encode_chat, encode_segments
from ostinato.models.chat_template import ChatTemplate
from ostinato.models.registry import resolve_model
from ostinato.models.segment_marks import dumps, marked_object, take_out_marks, transferred
from ostinato.models.tokenizer_gguf import tokenizer_from_gguf
from ostinato.models.weights.gguf_format import read_header
from tests import tiny
from tests.models.test_chat_encoding import Model, model_with

HERMES = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>{{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
    "{{ m.tool_call_id }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "g", "strict": True, "parameters": {}}},
]


def said(role: str, *parts: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": parts, **more}


def calling(call_id: str, arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**m, "content": PART_SEPARATOR.join(m["content"])} for m in messages]


def checked(model: Model, messages: list[dict[str, Any]], **more: Any) -> EncodedChat:
    """Encoded with segments, and held to the encoding without."""
    chat = encode_segments(model, messages, **more)
    assert chat.token_ids.tolist() == encode_chat(model, joined(messages), **more)
    return chat


def cut(model: Model, chat: EncodedChat) -> list[str | None]:
    """The prompt up to each boundary, less what the boundary before it had."""
    pieces: list[str | None] = []
    done = 0
    for end in chat.boundaries:
        if end is None:
            pieces.append(None)
            continue
        raw = b"".join(map(model.tokenizer.token_bytes, chat.token_ids[done:end].tolist()))
        pieces.append(raw.decode())
        done = end
    return pieces


def test_each_part_ends_where_its_text_does() -> None:
    model = model_with()
    chat = checked(model, [said("system", "be brief", "be kind"), said("user", "hello")])
    assert cut(model, chat) == [
        "<|im_start|>system\nbe brief",
        "\nbe kind",
        "<|im_end|>\n<|im_start|>user\nhello",
    ]


def test_tools_come_first_and_end_behind_their_braces() -> None:
    model = model_with(HERMES)
    chat = checked(model, [said("user", "hello")], tools=TOOLS)
    first, second, message = cut(model, chat)
    assert first == json.dumps(TOOLS[0])
    assert second == "\n" + json.dumps(TOOLS[1])
    assert message is not None
    assert message.endswith("user\nhello")


@pytest.mark.parametrize("arguments", ['{"a": "x"}', '{"a": 3}', "{}", '{"a": [1, {"b": null}]}'])
def test_a_call_ends_behind_its_arguments(arguments: str) -> None:
    model = model_with(HERMES)
    messages = [said("user", "go"), said("assistant", tool_calls=[calling("x", arguments)])]
    _, call = cut(model, checked(model, messages))
    assert call is not None
    assert call.endswith(f"call00000 f {arguments}")


def test_ids_of_calls_are_their_order_whatever_the_client_made_up() -> None:
    model = model_with(HERMES)

    def conversation(first: str, second: str) -> list[dict[str, Any]]:
        calls = [calling(first, "{}"), calling(second, "{}")]
        return [
            said("assistant", tool_calls=calls),
            said("tool", "two", tool_call_id=second),
            said("tool", "one", tool_call_id=first),
        ]

    one = checked(model, conversation("toolu_8f3a", "toolu_77b1"))
    assert one.token_ids.tolist() == checked(model, conversation("b", "a")).token_ids.tolist()
    text = b"".join(map(model.tokenizer.token_bytes, one.token_ids.tolist())).decode()
    assert "twocall00001" in text
    assert "onecall00000" in text


def test_a_system_message_in_mid_conversation_stays_where_it_is() -> None:
    model = model_with()
    messages = [said("user", "a"), said("assistant", "b"), said("system", "c"), said("user", "d")]
    ends = checked(model, messages).boundaries
    assert list(ends) == sorted(e for e in ends if e is not None)


@pytest.mark.parametrize(
    "trim", ["m.content | trim", "m.content.strip()", "m.content.rstrip('\\n')"]
)
@pytest.mark.parametrize("text", ["hello", " hello \n", "\n\n", "", "a \n "])
def test_a_template_that_trims_still_trims(trim: str, text: str) -> None:
    model = model_with("{% for m in messages %}[{{ " + trim + " }}]{% endfor %}")
    chat = checked(model, [said("user", text), said("user", "next")])
    _, end = cut(model, chat)[-2:]
    assert end is not None
    assert end.endswith("[next")
    if text.strip():
        first = cut(model, chat)[0]
        assert first is not None
        assert first.rstrip().endswith(text.strip())


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% if m.content == 'stop' %}!{% endif %}{{ m.content }};{% endfor %}",
        "{% for m in messages %}{{ m.content.split('p')[0] }};{% endfor %}",
        "{% for m in messages %}{{ m.content | length }}{{ m.content }};{% endfor %}",
        "{% for m in messages %}{{ m.content | upper }};{% endfor %}",
        "{% for m in messages %}{{ m.content | tojson(ensure_ascii=true) }};{% endfor %}",
        "{{ messages | tojson(indent=2) }}",
        "{{ messages }}",
        "{% for m in messages | reverse %}{{ m.content }};{% endfor %}",
        "{{ messages[-1].content }}",
    ],
)
def test_a_template_that_looks_closely_changes_no_token_and_no_boundary_is_beyond_the_end(
    source: str,
) -> None:
    model = model_with(source)
    chat = checked(model, [said("user", "start"), said("user", "stop"), said("user", "end")])
    assert all(end is None or 0 <= end <= len(chat.token_ids) for end in chat.boundaries)


def test_what_lies_around_a_difference_is_still_found() -> None:
    model = model_with(
        "{% for m in messages %}{{ m.content }}{% if m.content == 'stop' %}!{% endif %};{% endfor %}"
    )
    chat = checked(model, [said("user", "start"), said("user", "stop"), said("user", "end")])
    first, _, last = cut(model, chat)
    assert first == "start"
    assert last is not None
    assert last.endswith(";end")


def test_a_message_that_is_not_shown_has_no_boundary() -> None:
    model = model_with("{{ messages[-1].content }}")
    assert checked(model, [said("user", "old"), said("user", "new")]).boundaries[0] is None


texts = st.text(alphabet='ab <|im_end>\n\u00e9\u4f60\ufdee\ufde0\ufdef\ufdd0\ufdd1"\\', max_size=12)


@given(
    st.lists(st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=4),
    st.sampled_from([tiny.CHAT_TEMPLATE, HERMES]),
)
def test_whatever_is_written_marks_change_no_token(texts: list[list[str]], source: str) -> None:
    model = model_with(source)
    chat = checked(model, [said("user", *parts) for parts in texts], tools=None or [])
    assert len(chat.boundaries) == sum(map(len, texts))
    assert all(end is None or 0 <= end <= len(chat.token_ids) for end in chat.boundaries)


def test_a_longer_conversation_has_the_same_boundaries_as_far_as_the_shorter_goes() -> None:
    model = model_with()
    short = [said("system", "one "), said("user", "two", "three")]
    longer = [*short, said("assistant", "four"), said("user", "five")]
    before, after = checked(model, short), checked(model, longer)
    assert after.boundaries[: len(before.boundaries)] == before.boundaries


def test_a_tokenizer_that_changes_text_is_cut_by_the_offsets_it_keeps() -> None:
    lower = json.loads(
        normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]).__getstate__()
    )
    model = model_with(normalizer=lower)
    chat = checked(model, [said("user", "e\u0301 A"), said("user", "END")])
    pieces = cut(model, chat)
    assert pieces[0] == "<|im_start|>user\n\u00e9 a"
    assert pieces[1] is not None
    assert pieces[1].endswith("end")


@pytest.mark.parametrize(
    "layout",
    [{}, {"indent": 4}, {"separators": (",", ":")}, {"ensure_ascii": True}, {"sort_keys": True}],
)
@pytest.mark.parametrize(
    "value", [{}, {"b": {}, "a": "x"}, {"a": [1, "y"]}, {"a": {"b": [{"c": None}]}}]
)
def test_an_object_is_written_as_json_has_it_with_its_mark_behind_it(
    value: dict[str, Any], layout: dict[str, Any]
) -> None:
    text, offsets = take_out_marks(dumps([marked_object(value, 5), 1], **layout))
    plain = json.dumps([value, 1], **layout)
    assert text == plain
    assert plain[: offsets[5]].endswith("}")
    assert plain[offsets[5] :].lstrip(", \n").startswith("1")


@given(st.text("ab"), st.text("abc", max_size=3), st.text("abc", max_size=3), st.text("ab"))
def test_offsets_are_transferred_around_one_difference(
    head: str, old: str, new: str, tail: str
) -> None:
    marked, plain = head + old + tail, head + new + tail
    assume(not plain.startswith(marked))  # else it cannot be told which end is meant
    offsets = {0: len(head), 1: len(marked) - len(tail), 2: len(marked)}
    moved = transferred(offsets, marked, plain)
    assert moved[0] == len(head)
    assert moved[2] == len(plain)
    if 1 in moved:
        assert plain[moved[1] :] == tail or marked[: moved[1]] == plain[: moved[1]]


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"])
def real(request: pytest.FixtureRequest) -> Model:
    try:
        path = resolve_model(request.param, load_config().data_dir)
    except ModelNotFoundError as error:
        pytest.skip(f"{request.param} is not here: {error}")  # ok: 478 MB, fetched by who wants it
    metadata = read_header(path).metadata
    return Model(request.param, tokenizer_from_gguf(metadata), ChatTemplate.from_gguf(metadata))


def test_a_real_template_shows_every_part_and_its_end(real: Model) -> None:
    messages = [
        said("system", "Be brief. \n", "And kind"),
        said("user", "Hi", "what's up?  \n"),
        said("assistant", "Fine"),
        said("user", "Thanks <|im_end|> bye"),
    ]
    pieces = cut(real, checked(real, messages))
    written = [text for m in messages for text in m["content"]]
    for piece, text in zip(pieces, written, strict=True):
        assert piece is not None
        assert piece.rstrip(" .\n").endswith(text.rstrip(" .\n"))


def test_a_real_template_with_tools_shows_tools_calls_and_results(real: Model) -> None:
    assert real.chat_template is not None
    if not real.chat_template.supports_tools:
        pytest.skip(f"{real.name} has no place for tools")  # ok: its template has none
    messages = [
        said("user", "go"),
        said("assistant", "Let me see", tool_calls=[calling("c1", '{"a": 1}')]),
        said("tool", "done", tool_call_id="c1"),
    ]
    chat = checked(real, messages, tools=TOOLS)
    assert None not in chat.boundaries
    ids = chat.token_ids.tolist()
    ends = [
        b"".join(map(real.tokenizer.token_bytes, ids[:end])).decode() for end in chat.boundaries
    ]
    assert [end[-4:] for end in ends[3:]] == [" see", ends[4][-4:], "done"]
    # the last brace may be one token with the line break behind it
    assert ends[0].rstrip("}").endswith('["a", "b"]')
    assert ends[1].rstrip("}").endswith('"parameters": {')
    assert ends[4].rstrip("}").endswith('"arguments": {"a": 1')
