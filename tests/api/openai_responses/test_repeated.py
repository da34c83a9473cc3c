"""Guards what a response repeats of its request: text that cannot be written and numbers that JSON lacks are
refused before anything is computed, wherever they hide."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.fake import MODEL, FakeBackend
from tests.api.http import refused
from tests.hostile_json import Raw, json_text

FUNCTION = {"type": "function", "name": "add"}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/input_tokens"])
@pytest.mark.parametrize("value", ["\ud800", Raw("NaN"), Raw("1e999")])
@pytest.mark.parametrize(
    "place",
    [
        lambda value: ("tools", [{**FUNCTION, "parameters": {"default": value}}]),
        lambda value: ("input", [{"role": "user", "content": "x", "unknown": value}]),
        lambda value: ("text", {"format": {"type": "text", "unknown": value}}),
    ],
)
def test_what_cannot_be_repeated_is_refused_by_name(
    client: TestClient, backend: FakeBackend, path: str, value: Any, place: Any
) -> None:
    field, given = place(value)
    body = {"model": MODEL, "input": "x", field: given}
    headers = {"content-type": "application/json"}
    error = refused(client.post(path, content=json_text(body), headers=headers), 400)
    assert error["param"] == field
    assert not backend.requests


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("metadata", {"\ud800": "x"}, "metadata"),
        ("", Raw("NaN"), "a field without a name"),
    ],
)
def test_names_are_looked_through_too(
    client: TestClient, field: str, value: Any, param: str
) -> None:
    body = {"model": MODEL, "input": "x", field: value}
    headers = {"content-type": "application/json"}
    error = refused(client.post("/v1/responses", content=json_text(body), headers=headers), 400)
    assert error["param"] == param
