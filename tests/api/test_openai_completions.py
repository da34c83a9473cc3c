"""Guards the shapes of /v1/completions: four kinds of prompt, numbering of choices, legacy logprobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.backend import GenerationRequest
from ostinato.clock import ManualClock
from ostinato.engine.outputs import OutputDelta
from tests.api.fake import CACHED_TOKENS, MODEL, PROMPT_TOKENS, FakeBackend

URL = "/v1/completions"


def ask(client: TestClient, **fields: Any) -> Any:
    response = client.post(URL, json={"model": MODEL, "prompt": "Tell", **fields})
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL, "prompt": "Tell", "stream": True, **fields}
    frames = client.post(URL, json=body).text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def test_an_answer_has_the_shape_that_sdks_read(client: TestClient) -> None:
    answer = ask(client)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "Once upon a time",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == CACHED_TOKENS


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [
        ("text", ["text"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_prompts_come_as_text_or_tokens_one_or_many(
    client: TestClient, backend: FakeBackend, prompt: Any, asked: list[Any]
) -> None:
    ask(client, prompt=prompt)
    assert [request.prompt.source for request in backend.requests] == asked
    assert len({request.request_id for request in backend.requests}) == len(asked)


def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(client: TestClient) -> None:
    answer = ask(client, prompt=["a", "b"], n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == 2 * PROMPT_TOKENS
    assert usage["completion_tokens"] == 16
    assert usage["prompt_cache_hit_tokens"] == 2 * CACHED_TOKENS


def test_streams_of_several_prompts_run_side_by_side(client: TestClient) -> None:
    chunks = stream(client, prompt=["a", "b"], stream_options={"include_usage": True})
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == 2 * PROMPT_TOKENS
    assert all(chunk["usage"] is None for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == "Once upon a time"
        assert [choice["finish_reason"] for choice in own] == [None] * 3 + ["stop"]


def test_the_default_length_is_sixteen_tokens(client: TestClient, backend: FakeBackend) -> None:
    ask(client)
    assert backend.requests[-1].params.max_tokens == 16
    assert backend.requests[-1].clips_max_tokens
    ask(client, max_tokens=16)
    assert not backend.requests[-1].clips_max_tokens


def test_no_more_prompts_of_a_call_run_at_once_than_an_idle_backend_takes() -> None:
    class Counts(FakeBackend):
        running = most = 0

        async def _deltas(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
            self.running += 1
            self.most = max(self.most, self.running)
            async for delta in super()._deltas(request):
                await asyncio.sleep(0)
                yield delta
            self.running -= 1

    backend = Counts()
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        assert len(ask(client, prompt=["a"] * 30)["choices"]) == 30
        assert backend.most == 2 + 3  # run + wait
        backend.most = 0
        assert len(ask(client, prompt=["a"] * 30, n=2)["choices"]) == 60
        assert backend.most == 1 + 3


def test_logprobs_have_the_legacy_shape(client: TestClient) -> None:
    logprobs = ask(client, logprobs=2)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["Once", " upon", " a", " time"]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["text_offset"] == [0, 4, 9, 11]
    assert logprobs["top_logprobs"][1] == {" upon": -0.5, "\ufffd": -9999.0}


def test_zero_logprobs_still_reports_the_chosen_tokens(client: TestClient) -> None:
    logprobs = ask(client, logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["top_logprobs"] is None


def test_streamed_text_offsets_go_on_where_the_last_chunk_ended(client: TestClient) -> None:
    offsets = [
        chunk["choices"][0]["logprobs"]["text_offset"] for chunk in stream(client, logprobs=0)
    ]
    assert offsets == [[0], [4], [9], [11]]


def test_echo_false_and_best_of_equal_to_n_mean_nothing(client: TestClient) -> None:
    ask(client, echo=False, best_of=2, n=2, suffix=None)
