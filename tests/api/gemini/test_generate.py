"""Guards the shape of Gemini's answers, whole and streamed, of its errors, and of what its requests ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.clock import ManualClock
from ostinato.errors import EngineStoppedError
from tests.api.fake import FakeBackend
from tests.api.gemini.conftest import Place

HELLO = [{"role": "user", "parts": [{"text": "hello"}]}]
GENERATE = "/v1/models/tiny:generateContent"
JSON = {"content-type": "application/json"}
STREAM = "/v1beta/models/tiny:streamGenerateContent"
TOOLS = [
    {
        "functionDeclarations": [
            {"name": "look", "parameters": {"type": "OBJECT", "properties": {"at": AT}}}
            for AT in [{"type": "STRING", "enum": ["sun"]}]
        ]
        + [{"name": "wait", "parametersJsonSchema": {"type": "object", "properties": {}}}]
    }
]


def refused(response: Any, code: int, status: str) -> str:
    assert response.status_code == code, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "status"}
    assert (body["error"]["code"], body["error"]["status"]) == (code, status)
    message: str = body["error"]["message"]
    return message


def texts(body: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in body["candidates"][0]["content"]["parts"])


def test_a_whole_answer_has_candidates_usage_version_and_id(place: Place) -> None:
    config = {"maxOutputTokens": 4, "temperature": 0.0, "topK": 40.0, "topP": 0.9}
    body = place.generate({"contents": HELLO, "generationConfig": config, "safetySettings": [{}]})
    [candidate] = body["candidates"]
    assert candidate["finishReason"] == "MAX_TOKENS"
    assert candidate["content"]["role"] == "model"
    assert body["modelVersion"] == "tiny"
    assert body["responseId"]
    usage = body["usageMetadata"]
    assert usage["candidatesTokenCount"] == 4
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + 4
    assert "cachedContentTokenCount" not in usage
    again = place.generate({"contents": HELLO, "generationConfig": config})
    assert again["usageMetadata"]["cachedContentTokenCount"] == usage["promptTokenCount"] - 1


def test_every_frame_of_a_stream_is_a_response_and_the_last_says_why_it_ended(place: Place) -> None:
    body = {"contents": HELLO, "generationConfig": {"maxOutputTokens": 6, "temperature": 0.0}}
    whole = place.generate(body)
    response = place.post(f"{STREAM}?alt=sse", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: {") for frame in frames)
    pieces = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert "".join(map(texts, pieces)) == texts(whole)
    assert all(piece["candidates"][0]["content"]["parts"] for piece in pieces)
    reasons = [piece["candidates"][0].get("finishReason") for piece in pieces]
    assert reasons == [None] * (len(pieces) - 1) + ["MAX_TOKENS"]
    assert len({piece["responseId"] for piece in pieces}) == 1
    counts = [piece["usageMetadata"]["candidatesTokenCount"] for piece in pieces]
    assert counts == sorted(counts)
    assert counts[-1] == 6


def test_without_alt_the_same_stream_is_one_json_array(place: Place) -> None:
    config = {"maxOutputTokens": 3, "temperature": 0.0, "candidateCount": 2}
    body = {"contents": HELLO, "generationConfig": config}
    response = place.post(STREAM, body)
    assert response.headers["content-type"] == "application/json"
    pieces = response.json()
    ended = [p["candidates"][0]["index"] for p in pieces if "finishReason" in p["candidates"][0]]
    assert sorted(ended) == [0, 1]


def test_log_probabilities_have_the_chosen_and_the_top_tokens(place: Place) -> None:
    config = {"maxOutputTokens": 2, "responseLogprobs": True, "logprobs": 3}
    [candidate] = place.generate({"contents": HELLO, "generationConfig": config})["candidates"]
    result = candidate["logprobsResult"]
    assert [len(one["candidates"]) for one in result["topCandidates"]] == [3, 3]
    total = sum(chosen["logProbability"] for chosen in result["chosenCandidates"])
    assert result["logProbabilitySum"] == pytest.approx(total)
    assert candidate["avgLogprobs"] == pytest.approx(total / 2)


@pytest.mark.parametrize("stream", [False, True])
def test_mode_any_calls_an_allowed_function_and_nothing_else(place: Place, stream: bool) -> None:
    calling = {"mode": "ANY", "allowedFunctionNames": ["look"]}
    body = {
        "contents": HELLO,
        "tools": TOOLS,
        "toolConfig": {"functionCallingConfig": calling},
        "generationConfig": {"maxOutputTokens": 300, "seed": 1},
    }
    if stream:
        pieces = place.post(STREAM, body).json()
        parts = [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]
    else:
        parts = place.generate(body)["candidates"][0]["content"]["parts"]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    assert calls
    assert {call["name"] for call in calls} == {"look"}
    assert all(set(call) == {"id", "name", "args"} for call in calls)
    assert all(call["args"] in ({}, {"at": "sun"}) for call in calls)
    assert all(not part.get("text", "").strip() for part in parts)


def test_mode_none_keeps_the_prompt_and_reads_no_call(place: Place) -> None:
    body = {"contents": HELLO, "tools": TOOLS, "generationConfig": {"maxOutputTokens": 1}}
    auto = place.generate(body)["usageMetadata"]
    none = place.generate({**body, "toolConfig": {"functionCallingConfig": {"mode": "NONE"}}})
    assert none["usageMetadata"]["promptTokenCount"] == auto["promptTokenCount"]
    assert none["usageMetadata"]["cachedContentTokenCount"] == auto["promptTokenCount"] - 1


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        (
            {
                "responseMimeType": "application/json",
                "responseSchema": {
                    "type": "OBJECT",
                    "properties": {"ok": {"type": "BOOLEAN"}},
                    "required": ["ok"],
                },
            },
            ('{"ok":true}', '{"ok":false}'),
        ),
        (
            {
                "responseMimeType": "application/json",
                "responseJsonSchema": {"enum": ["red", "green"]},
            },
            ('"red"', '"green"'),
        ),
        (
            {"responseMimeType": "text/x.enum", "responseSchema": {"enum": ["red", "green"]}},
            ("red", "green"),
        ),
    ],
)
def test_an_answer_has_the_form_that_is_asked_for(
    place: Place, config: dict[str, Any], allowed: tuple[str, ...]
) -> None:
    body = place.generate(
        {"contents": HELLO, "generationConfig": {**config, "maxOutputTokens": 200, "seed": 5}}
    )
    assert "".join(texts(body).split()) in allowed
    assert body["candidates"][0]["finishReason"] == "STOP"


def test_a_count_is_what_generating_would_report(place: Place) -> None:
    whole = {"contents": HELLO, "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    generated = place.generate({**whole, "generationConfig": {"maxOutputTokens": 1}})
    asked = {"generateContentRequest": {"model": "models/tiny", **whole}}
    counted = place.post("/v1/models/tiny:countTokens", asked).json()
    assert counted["totalTokens"] == generated["usageMetadata"]["promptTokenCount"]
    alone = place.post("/v1/models/tiny:countTokens", {"contents": HELLO}).json()
    assert alone["totalTokens"] < counted["totalTokens"]


def test_models_are_listed_in_the_shape_of_who_asks(place: Place) -> None:
    openai = place.client.get("/v1/models").json()
    assert openai["data"][0]["id"] == "tiny"
    for path, headers in (
        ("/v1/models", {"x-goog-api-key": "k"}),
        ("/v1/models?key=k", {}),
        ("/v1beta/models", {}),
    ):
        [model] = place.client.get(path, headers=headers).json()["models"]
        assert model["name"] == "models/tiny"
        assert model["inputTokenLimit"] == 4096
    one = place.client.get("/v1/models/tiny", headers={"x-goog-api-key": "k"}).json()
    assert one["supportedGenerationMethods"][0] == "generateContent"
    assert place.client.get("/v1/models/tiny").json()["object"] == "model"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"topP": 3.0}, "topP"),
        ({"topK": 1.5}, "topK"),
        ({"maxOutputTokens": 0}, "maxOutputTokens"),
        ({"candidateCount": 0}, "candidateCount"),
        ({"temperature": "hot"}, "temperature"),
        ({"logprobs": 2}, "responseLogprobs"),
        ({"responseMimeType": "image/png"}, "responseMimeType"),
        ({"responseSchema": {"type": "STRING"}}, "responseMimeType"),
        ({"responseModalities": ["IMAGE"]}, "responseModalities"),
        ({"speechConfig": {}}, "speechConfig"),
        ({"stopSequences": [""]}, "stopSequences"),
    ],
)
def test_a_wrong_setting_is_refused_under_geminis_name(
    place: Place, config: dict[str, Any], named: str
) -> None:
    response = place.post(GENERATE, {"contents": HELLO, "generationConfig": config})
    assert named in refused(response, 400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "system", "parts": [{"text": "x"}]}]}, "role"),
        ({"contents": [{"parts": [{"inlineData": {}}]}]}, "inlineData"),
        ({"contents": HELLO, "tools": [{"googleSearch": {}}]}, "tools[0].googleSearch"),
        (
            {"contents": HELLO, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
            "functionCallingConfig",
        ),
        (
            {
                "contents": HELLO,
                "tools": TOOLS,
                "toolConfig": {
                    "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["nix"]}
                },
            },
            "'nix'",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    place: Place, body: dict[str, Any], named: str
) -> None:
    assert named in refused(place.post(GENERATE, body), 400, "INVALID_ARGUMENT")


def test_every_failure_on_its_paths_has_geminis_shape(place: Place) -> None:
    client = place.client
    refused(
        client.post("/v1/models/gpt:generateContent", json={"contents": HELLO}), 404, "NOT_FOUND"
    )
    refused(client.post("/v1/models/tiny:dance", json={}), 405, "UNIMPLEMENTED")
    refused(client.get("/v1beta/nowhere"), 404, "NOT_FOUND")
    refused(client.post(GENERATE, content=b"{", headers=JSON), 400, "INVALID_ARGUMENT")
    refused(client.delete("/v1beta/models"), 405, "UNIMPLEMENTED")
    form = client.post(GENERATE, content=b"a=b", headers={"content-type": "text/plain"})
    refused(form, 415, "INVALID_ARGUMENT")
    refused(client.post(f"{STREAM}?alt=xml", json={"contents": HELLO}), 400, "INVALID_ARGUMENT")
    place.engine.stop()
    refused(client.post(GENERATE, json={"contents": HELLO}), 503, "UNAVAILABLE")
    refused(client.post(f"{STREAM}?alt=sse", json={"contents": HELLO}), 503, "UNAVAILABLE")


def test_a_failure_in_mid_stream_is_the_last_frame_or_element() -> None:
    backend = FakeBackend(failure=EngineStoppedError("gone"), fail_after=2)
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        frames = client.post(f"{STREAM}?alt=sse", json={"contents": HELLO}).text.split("\n\n")
        elements = client.post(STREAM, json={"contents": HELLO}).json()
    assert len(elements) == 3
    error = elements[-1]["error"]
    assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
    assert json.loads(frames[2].removeprefix("data: ")) == elements[-1]
    assert frames[3:] == [""]


@pytest.mark.parametrize(
    "more",
    [
        {
            "generationConfig": {
                "responseMimeType": "text/x.enum",
                "responseSchema": {"enum": ["\ud800"]},
            }
        },
        {
            "tools": [
                {
                    "functionDeclarations": [
                        {"name": "f", "parametersJsonSchema": {"title": "\ud800"}}
                    ]
                }
            ]
        },
    ],
)
def test_a_lone_surrogate_inside_a_schema_is_refused(place: Place, more: dict[str, Any]) -> None:
    body = json.dumps({"contents": HELLO, **more})
    response = place.client.post(GENERATE, content=body, headers=JSON)
    assert "Unicode" in refused(response, 400, "INVALID_ARGUMENT")
