"""Guards the served OpenAPI document: it describes the body of every route and the refusals of every dialect,
and a real server answers as it says to whatever can be made from it, sound or not; never with a 5xx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as conformance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.e2e.server import Server, running_server
from tests.tool_template import write_tool_model

FEW = 3
MANY = 25
"""Requests to an operation, sound ones and as many others."""
OLD_GEMINI = r"^/v1alpha/|^/v1/(models/\{model\}|cachedContents)"
"""The routes of /v1beta under other names: the short run leaves them out."""
TIMEOUT_SECONDS = 60.0

CHECKS = [
    schemathesis.checks.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_schema_conformance,
    conformance.response_headers_conformance,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its context is short, so that no answer is long, whatever is asked for."""
    model = write_tool_model(tmp_path_factory.mktemp("models") / "tiny-tools")
    flags = ("--num-blocks", "256", "--max-model-len", "256", "--disk-tier", "off")
    with running_server(str(model), tmp_path_factory.mktemp("data"), *flags) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: Server) -> dict[str, Any]:
    served: dict[str, Any] = httpx2.get(f"{server.url}/openapi.json").raise_for_status().json()
    return served


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation


def test_every_body_is_described_by_its_model(document: dict[str, Any]) -> None:
    bodies = {}
    for method, path, operation in operations_of(document):
        if method in ("post", "patch") and not path.endswith("/cancel"):
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            bodies[path] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    told = {
        "/v1/chat/completions": "messages",
        "/v1/completions": "prompt",
        "/v1/responses": "input",
        "/v1/responses/input_tokens": "input",
        "/v1/messages": "messages",
        "/v1/messages/count_tokens": "messages",
        "/v1beta/models/{model}:generateContent": "contents",
        "/v1beta/models/{model}:countTokens": "generateContentRequest",
        "/v1beta/cachedContents": "contents",
        "/v1beta/cachedContents/{name}": "ttl",
    }
    for path, name in told.items():
        assert name in bodies[path]["properties"], path


def test_every_refusal_has_the_shape_of_its_dialect(document: dict[str, Any]) -> None:
    titles = {
        "/v1/chat/completions": "OpenAIError",
        "/v1/responses": "OpenAIError",
        "/v1/messages": "AnthropicError",
        "/v1beta/models/{model}:generateContent": "GeminiError",
    }
    for path, title in titles.items():
        responses = document["paths"][path]["post"]["responses"]
        assert {"400", "401", "403", "404", "413", "415", "500", "503"} <= set(responses)
        assert "422" not in responses
        schemas = [
            answer["content"]["application/json"]["schema"]
            for status, answer in responses.items()
            if status != "200"
        ]
        assert {schema["title"] for schema in schemas} == {title}
    assert "529" in document["paths"]["/v1/messages"]["post"]["responses"]


def load(server: Server) -> OpenApiSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def try_everything(server: Server, schema: OpenApiSchema, examples: int) -> Counter[int]:
    """Requests made from the document, to every operation; how often each status came."""
    statuses: Counter[int] = Counter()
    wrong = []
    for result in schema.get_all_operations():
        operation = result.ok()
        modes = [GenerationMode.POSITIVE]
        if operation.body or operation.query:  # of a name in a path any text is a sound one
            modes.append(GenerationMode.NEGATIVE)
        for mode in modes:
            try:
                _try_operation(server, operation, mode, examples, statuses)
            except FailureGroup as failures:
                wrong.append(f"{operation.label}, {mode.value}: {failures}: {failures.exceptions}")
    assert not wrong, "\n\n".join(wrong)
    return statuses


def _try_operation(
    server: Server,
    operation: schemathesis.APIOperation,
    mode: GenerationMode,
    examples: int,
    statuses: Counter[int],
) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answers_as_documented(case: schemathesis.Case) -> None:
        _name_the_model(case, server.model)
        answer = case.call(timeout=TIMEOUT_SECONDS)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    answers_as_documented()


def _name_the_model(case: schemathesis.Case, model: str) -> None:
    """Half of the requests are for the model that is served; else all would end there."""
    if isinstance(case.body, dict) and len(str(case.body)) % 2:
        case.body["model"] = model
    if "model" in (case.path_parameters or {}):
        case.path_parameters["model"] = model


def assert_unharmed(server: Server) -> None:
    server.scrape_until(lambda metrics: metrics.is_idle).assert_no_block_is_lost()
    log = "".join(server.log)
    assert "Traceback" not in log, log[-4000:]


def test_the_server_answers_as_its_document_says(server: Server) -> None:
    schema = load(server).exclude(path_regex=OLD_GEMINI)
    statuses = try_everything(server, schema, FEW)
    assert statuses[200] > 0
    assert statuses[400] > 0
    assert_unharmed(server)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_server_answers_many_requests_as_its_document_says(server: Server) -> None:
    statuses = try_everything(server, load(server), MANY)
    print(f"\nschemathesis: {', '.join(f'{s}: {n}' for s, n in sorted(statuses.items()))}")
    assert_unharmed(server)
