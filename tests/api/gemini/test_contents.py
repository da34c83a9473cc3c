"""Guards the way from Gemini's contents to the canonical prompt: order, turns, calls and results, schemas."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.api.gemini.contents import CachedPrompt, build_prompt
from ostinato.api.gemini.schema import to_json_schema
from ostinato.api.gemini.times import format_time, parse_duration, parse_time
from ostinato.api.gemini.wire import PrefixFields
from ostinato.api.prompt import Message, Role
from ostinato.errors import InvalidRequestError


def fields(*contents: Any, **more: Any) -> PrefixFields:
    return PrefixFields.model_validate({"contents": list(contents), **more})


def said(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "parts": [{"text": p} if isinstance(p, str) else p for p in parts]}


def messages(*contents: Any, **more: Any) -> tuple[Message, ...]:
    return build_prompt(fields(*contents, **more)).prompt.messages


def test_an_answer_kept_as_many_small_contents_is_one_text_again() -> None:
    [user, model] = messages(said("user", "a"), said("model", "Once"), said("model", " upon", " a"))
    assert user.text == "a"
    assert model.text == "Once upon a"
    assert len(model.parts) == 1


def test_contents_of_the_user_in_a_row_are_one_message_of_several_parts() -> None:
    [only] = messages(said("user", "the book"), {"parts": [{"text": "the question"}]})
    assert [part.text for part in only.parts] == ["the book", "the question"]


def test_results_find_their_calls_by_name_and_order_where_clients_send_no_ids() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"functionCall": {"name": name, "args": {"n": 1}}}

    def result(name: str, value: int) -> dict[str, Any]:
        return {"functionResponse": {"name": name, "response": {"result": value}}}

    made = messages(
        said("user", "go"),
        said("model", call("f"), call("g"), call("f")),
        said("user", result("g", 1), result("f", 2), result("f", 3), "and?"),
    )
    calls = made[1].tool_calls
    assert [c.arguments for c in calls] == ['{"n": 1}'] * 3
    results = [message for message in made if message.role is Role.TOOL]
    assert [m.tool_call_id for m in results] == [calls[i].call_id for i in (1, 0, 2)]
    assert [m.text for m in results] == ['{"result": 1}', '{"result": 2}', '{"result": 3}']
    assert made[-1].role is Role.USER


def test_thoughts_are_reasoning_and_not_text() -> None:
    thought = {"text": "hm", "thought": True}
    [_, model] = messages(said("user", "q"), said("model", thought, "yes"))
    assert (model.reasoning, model.text) == ("hm", "yes")


def test_what_a_cache_object_holds_comes_first_and_is_counted_by_its_segments() -> None:
    held = fields(
        said("user", "book"),
        systemInstruction=said("user", "sys"),
        tools=[{"functionDeclarations": [{"name": "f"}]}],
    )
    composed = build_prompt(fields(said("user", "question")), held)
    assert composed.num_cached_segments == 3
    segments = composed.prompt.segments()
    assert [segment.path for segment in segments] == [
        "tools[0]",
        "messages[0].content[0]",
        "messages[1].content[0]",
        "messages[1].content[1]",
    ]


def test_a_models_turn_is_not_merged_across_the_end_of_a_cache_object() -> None:
    held = fields(said("user", "q"), said("model", "Once"))
    composed = build_prompt(fields(said("model", " upon"), said("user", "go on")), held)
    assert [message.text for message in composed.prompt.messages] == ["q", "Once", " upon", "go on"]
    assert composed.num_cached_segments == 2


@pytest.mark.parametrize(
    ("held", "boundaries", "tokens"),
    [
        (2, (10, 30, 50), 30),
        (2, (30, 10, 50), 30),  # tools behind the system message
        (2, (40, 10, 35), 10),  # tools behind a message that is not the object's
        (2, (None, 10, 35), 10),
        (1, (None, 35), 0),
        (0, (5,), 0),
        (1, (7,), 7),
    ],
)
def test_an_objects_tokens_end_before_anything_that_is_not_its_own(
    held: int, boundaries: tuple[int | None, ...], tokens: int
) -> None:
    composed = CachedPrompt(build_prompt(fields(said("user", "x"))).prompt, held)
    assert composed.cached_tokens(boundaries) == tokens


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"inlineData": {"mimeType": "image/png", "data": ""}}, "inlineData"),
        ({"inline_data": {"mime_type": "audio/wav", "data": ""}}, "inlineData"),
        ({"fileData": {"fileUri": "x"}}, "fileData"),
        ({"executableCode": {"code": "1"}}, "executableCode"),
        ({}, "contents[0].parts[0]"),
        ({"functionCall": {"name": "f"}}, "contents[0].parts[0]"),
    ],
)
def test_a_part_that_cannot_be_read_is_named(part: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match="text") as refused:
        messages({"role": "user", "parts": [part]})
    assert named in (refused.value.param or "")


def test_a_gemini_schema_becomes_json_schema_in_the_order_in_which_it_is_to_be_written() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "b": {"type": "INTEGER", "format": "int32", "minimum": 1},
            "a": {"type": "STRING", "nullable": True},
            "c": {"type": "ARRAY", "items": {"type": "NUMBER"}, "maxItems": "3"},
            "d": {"type": "STRING", "enum": ["x", "y"], "nullable": True},
        },
        "required": ["a"],
        "propertyOrdering": ["a", "b"],
    }
    made = to_json_schema(schema, "s")
    assert list(made["properties"]) == ["a", "b", "c", "d"]
    assert made["properties"] == {
        "a": {"type": ["string", "null"]},
        "b": {"type": "integer", "minimum": 1},
        "c": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        "d": {"anyOf": [{"type": "string", "enum": ["x", "y"]}, {"type": "null"}]},
    }
    assert made["required"] == ["a"]
    assert made["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "THING"}, "s.type"),
        ({"type": "OBJECT", "properties": {"a": 1}}, "s.properties.a"),
        ({"anyOf": {}}, "s.anyOf"),
        ({"type": "ARRAY", "minItems": "many"}, "s.minItems"),
    ],
)
def test_a_malformed_schema_names_the_place(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        to_json_schema(schema, "s")
    assert refused.value.param == named


def test_a_schema_inside_itself_without_end_is_refused() -> None:
    schema: dict[str, Any] = {"type": "STRING"}
    for _ in range(100):
        schema = {"type": "ARRAY", "items": schema}
    with pytest.raises(InvalidRequestError, match="nested"):
        to_json_schema(schema, "s")


def test_durations_and_moments_are_read_and_written_as_protocol_buffers_do() -> None:
    assert parse_duration("300s", "ttl") == 300.0
    assert parse_duration("3.5s", "ttl") == 3.5
    assert parse_time("2026-11-30T05:00:00+01:00", "t") == parse_time("2026-11-30T04:00:00Z", "t")
    assert parse_time("2026-11-30T04:00:00.123456789Z", "t") == pytest.approx(
        parse_time("2026-11-30T04:00:00Z", "t") + 0.123456
    )
    assert format_time(parse_time("2026-11-30T04:00:00.5Z", "t")) == "2026-11-30T04:00:00.500000Z"


@pytest.mark.parametrize("text", ["", "300", "5m", "-3s", "1e3s", "١s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="ttl must be seconds"):
        parse_duration(text, "ttl")


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-11-30T04:00:00", "0001-01-01T00:00:00Z"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="time zone"):
        parse_time(text, "expireTime")
