"""Guards the list of models: one path, and the shape that the client's headers ask for."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from ostinato.api.anthropic.models import models_page
from ostinato.api.backend import ServedModel
from ostinato.errors import InvalidRequestError
from tests.api.fake import MODEL

VERSION = {"anthropic-version": "2023-06-01"}
MODELS = [ServedModel(name, 0, "tests", 2048, "fp") for name in "abcde"]


def test_the_list_has_anthropics_shape_for_its_clients_and_openais_for_others(
    client: TestClient,
) -> None:
    listed = client.get("/v1/models", headers=VERSION).json()
    [model] = listed["data"]
    assert listed == {"data": [model], "first_id": MODEL, "last_id": MODEL, "has_more": False}
    assert model["type"] == "model"
    assert model["created_at"] == "2023-11-14T22:13:20Z"
    assert model["max_input_tokens"] == 2048
    assert client.get(f"/v1/models/{MODEL}", headers=VERSION).json() == model
    assert client.get("/v1/models").json()["object"] == "list"


@pytest.mark.parametrize(
    ("limit", "before", "after", "names", "has_more"),
    [
        (20, None, None, "abcde", False),
        (2, None, None, "ab", True),
        (2, None, "b", "cd", True),
        (2, None, "c", "de", False),
        (2, "d", None, "bc", True),
        (1, "d", "b", "c", False),
        (2, None, "e", "", False),
    ],
)
def test_pages_are_cut_as_asked(
    limit: int, before: str | None, after: str | None, names: str, has_more: bool
) -> None:
    page = models_page(MODELS, limit, before, after)
    assert "".join(model["id"] for model in page["data"]) == names
    assert page["has_more"] is has_more


def test_a_cursor_that_is_not_served_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="after_id"):
        models_page(MODELS, 1, None, "z")
