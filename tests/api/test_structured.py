"""Guards structured output on the wire: every way of asking for a form reaches the engine as one grammar, and
what is malformed or asked for twice is refused under the name that the client used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.engine.grammar.spec import Grammar, GrammarKind
from tests.api.fake import MODEL, FakeBackend
from tests.api.http import CHAT, refused

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}, "required": ["z"]}


def ask(client: TestClient, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "hi"}]
    return client.post(CHAT, json={"model": MODEL, "messages": messages, **fields})


def schema_of(grammar: Grammar) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(grammar.text)
    return schema


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_SCHEMA, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            GrammarKind.JSON_SCHEMA,
            "response_format.json_schema.schema",
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            GrammarKind.JSON_SCHEMA,
            "structured_outputs.json",
        ),
        (
            {"structured_outputs": {"json_object": True}},
            GrammarKind.JSON_SCHEMA,
            "structured_outputs.json_object",
        ),
        ({"structured_outputs": {"regex": "a+"}}, GrammarKind.REGEX, "structured_outputs.regex"),
        (
            {"structured_outputs": {"grammar": "start: /a/"}},
            GrammarKind.LARK,
            "structured_outputs.grammar",
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            GrammarKind.LARK,
            "structured_outputs.choice",
        ),
        ({"guided_json": SCHEMA}, GrammarKind.JSON_SCHEMA, "guided_json"),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "guided_regex"),
        ({"guided_choice": ["a"]}, GrammarKind.LARK, "guided_choice"),
        ({"guided_grammar": "start: /a/"}, GrammarKind.LARK, "guided_grammar"),
    ],
)
def test_each_way_of_asking_for_a_form_is_a_grammar(
    client: TestClient, backend: FakeBackend, fields: dict[str, Any], kind: GrammarKind, param: str
) -> None:
    assert ask(client, **fields).status_code == 200
    grammar = backend.requests[0].params.grammar
    assert isinstance(grammar, Grammar)
    assert (grammar.kind, grammar.param) == (kind, param)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
    ],
)
def test_plain_text_needs_no_grammar(
    client: TestClient, backend: FakeBackend, fields: dict[str, Any]
) -> None:
    assert ask(client, **fields).status_code == 200
    assert backend.requests[0].params.grammar is None


def test_a_schema_keeps_the_order_of_its_properties_and_strict_decides_what_is_refused(
    client: TestClient, backend: FakeBackend
) -> None:
    for strict in (True, False):
        wanted = {"name": "x", "schema": SCHEMA, "strict": strict}
        ask(client, response_format={"type": "json_schema", "json_schema": wanted})
    strictly, loosely = (request.params.grammar for request in backend.requests)
    assert isinstance(strictly, Grammar)
    assert isinstance(loosely, Grammar)
    assert list(schema_of(strictly)["properties"]) == ["z", "a"]
    assert schema_of(strictly)["x-guidance"]["lenient"] is False
    assert schema_of(loosely)["x-guidance"]["lenient"] is True


def test_a_form_can_be_asked_of_a_text_completion_too(
    client: TestClient, backend: FakeBackend
) -> None:
    body = {"model": MODEL, "prompt": "x", "structured_outputs": {"choice": ["a"]}}
    assert client.post("/v1/completions", json=body).status_code == 200
    assert isinstance(backend.requests[0].params.grammar, Grammar)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"regex": ["a"]}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": "ab"}}, "structured_outputs.choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_what_is_malformed_or_asked_for_twice_is_refused_and_named(
    client: TestClient, backend: FakeBackend, fields: dict[str, Any], param: str
) -> None:
    assert refused(ask(client, **fields), 400)["param"] == param
    assert backend.requests == []
