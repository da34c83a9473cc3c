"""Guards the token prefix of continued responses: one token that differs makes all K/V behind it useless.

A random model answers with bytes that are no text, which no tokenizer gives back as they were generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from ostinato.api.app import create_app
from ostinato.api.backend import EncodedPrompt
from ostinato.api.local import LocalBackend
from ostinato.api.openai_responses.continuation import (
    Continuation,
    continuation_of,
    spliced,
)
from ostinato.api.openai_responses.store import ResponseStore
from ostinato.api.prompt import Segment, SegmentKind
from ostinato.clock import ManualClock
from tests.api.openai_responses.test_responses import LOOK, ask
from tests.api.test_local import start_engine
from tests.tiny import CHAT_TEMPLATE, tiny_vocabulary

END = tiny_vocabulary()["<|im_end|>"]
ENDS_SOON = {"logit_bias": {str(END): 4.0}, "seed": 7, "max_output_tokens": 60}
OTHER_WHITE_SPACE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '\n<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that writes calls otherwise than they are generated."""
TRIMS = CHAT_TEMPLATE.replace("message['content']", "(message['content'] | trim)")


@pytest.fixture
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    template = getattr(request, "param", CHAT_TEMPLATE)
    engine = start_engine(tmp_path, template, num_blocks=128)
    clock = ManualClock()
    store = ResponseStore(tmp_path / "responses.sqlite3", clock)
    with TestClient(create_app(LocalBackend(engine), clock=clock, responses=store)) as client:
        yield client
    store.close()
    engine.stop()


def tokens(response: dict[str, Any]) -> tuple[int, int, int]:
    """Of the input, of them cached, of the output."""
    usage = response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return usage["input_tokens"], cached, usage["output_tokens"]


@pytest.mark.parametrize("client", [CHAT_TEMPLATE, TRIMS], indirect=True, ids=["plain", "trims"])
def test_each_turn_reads_the_whole_prompt_and_answer_before_it(client: TestClient) -> None:
    last = ask(client, "hello there", **ENDS_SOON)
    for turn in range(4):
        before, _, generated = tokens(last)
        assert last["status"] == "completed"
        last = ask(client, f"turn {turn}", previous_response_id=last["id"], **ENDS_SOON)
        _, cached, _ = tokens(last)
        assert cached == before + generated - 1  # the token that ended it was never computed


@pytest.mark.parametrize("client", [OTHER_WHITE_SPACE], indirect=True)
def test_calls_are_continued_as_they_were_generated(client: TestClient) -> None:
    look = {
        **LOOK,
        "parameters": {
            "type": "object",
            "properties": {"at": {"enum": ["here", "there"]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    }
    fields = {"tools": [look], "parallel_tool_calls": False, "seed": 3, "max_output_tokens": 90}
    first = ask(client, "hello", tool_choice="required", **fields)
    [call] = first["output"]
    assert call["type"] == "function_call"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "nothing"}
    second = ask(client, [output], previous_response_id=first["id"], tool_choice="none", **fields)
    before, _, generated = tokens(first)
    _, cached, _ = tokens(second)
    assert cached >= before + generated - 1


def test_an_answer_that_was_cut_off_is_continued_exactly(client: TestClient) -> None:
    first = ask(client, "hello there", max_output_tokens=9, ignore_eos=True, seed=1)
    assert first["status"] == "incomplete"
    second = ask(client, "go on", previous_response_id=first["id"], max_output_tokens=1)
    before, _, generated = tokens(first)
    assert tokens(second)[1] == before + generated - 1  # its last token was never computed


def test_other_instructions_are_rendered_anew_and_not_spliced(client: TestClient) -> None:
    first = ask(client, "hello there", instructions="be brief", **ENDS_SOON)
    same = {"previous_response_id": first["id"], "max_output_tokens": 1}
    other = ask(client, "go on", instructions="be kind!", **same)
    assert tokens(other)[1] < tokens(first)[0]
    kept = ask(client, "go on", instructions="be brief", **same)
    assert tokens(kept)[1] >= sum(tokens(first)[::2]) - 1


def test_the_count_of_a_continuation_is_that_of_the_request_itself(client: TestClient) -> None:
    first = ask(client, "hello there", **ENDS_SOON)
    body = {"model": "tiny", "input": "go on", "previous_response_id": first["id"]}
    counted = client.post("/v1/responses/input_tokens", json=body).json()["input_tokens"]
    second = ask(client, "go on", previous_response_id=first["id"], max_output_tokens=1)
    assert tokens(second)[0] == counted


def test_a_prewarm_generates_nothing_and_the_next_request_reads_it(client: TestClient) -> None:
    warm = ask(client, "hello there", prompt_cache_options={"prewarm": True})
    assert (warm["status"], warm["output"], tokens(warm)[2]) == ("completed", [], 0)
    used = ask(client, "hello there", max_output_tokens=1)
    assert tokens(used)[1] == tokens(warm)[0] - 1
    streamed = client.post(
        "/v1/responses",
        json={
            "model": "tiny",
            "input": "hello",
            "stream": True,
            "prompt_cache_options": {"prewarm": True},
        },
    )
    kinds = [line for line in streamed.text.splitlines() if line.startswith("event: ")]
    assert kinds == [f"event: response.{kind}" for kind in ("created", "in_progress", "completed")]


USER, ANSWER = SegmentKind.USER, SegmentKind.ASSISTANT


def encoded(token_ids: list[int], *segments: tuple[SegmentKind, int | None]) -> EncodedPrompt:
    return EncodedPrompt(
        "",
        np.array(token_ids, dtype=np.int32),
        tuple(Segment(kind, "") for kind, _ in segments),
        tuple(end for _, end in segments),
    )


FIRST = encoded([1, 2, 9, 5], (USER, 2))
"""A question of two tokens, its end (9), the opening of the answer (5)."""


def left(output: list[int], *, is_cut_off: bool = False) -> Continuation:
    found = continuation_of(FIRST, FIRST, output, {9}, is_cut_off=is_cut_off)
    assert found is not None
    return found


def test_generated_tokens_replace_those_that_their_text_became() -> None:
    rendered = encoded([1, 2, 9, 5, 7, 9, 3, 9, 5], (USER, 2), (ANSWER, 5), (USER, 7))
    prompt = spliced(left([6, 8, 9]), rendered, 1, {9})
    assert prompt.token_ids.tolist() == [1, 2, 9, 5, 6, 8, 9, 3, 9, 5]
    assert prompt.boundaries == (2, 6, 8)


@pytest.mark.parametrize(
    ("token_ids", "segments"),
    [
        ([1, 4, 9, 5, 7, 9, 3], ((USER, 2), (ANSWER, 5), (USER, 7))),
        ([1, 2, 9, 5, 7, 3, 3, 3, 9], ((USER, 2), (ANSWER, 5), (USER, 8))),
        ([1, 2, 9, 5, 7, 9, 3], ((USER, None), (ANSWER, 5), (USER, 7))),
        ([1, 2, 9, 5, 7, 9, 3], ((USER, 2), (ANSWER, None), (USER, 7))),
        ([1, 2, 9], ((USER, 2),)),
    ],
    ids=["another question", "a turn without end", "no start", "no end", "no answer"],
)
def test_where_it_is_not_certain_the_new_rendering_is_taken(
    token_ids: list[int], segments: tuple[tuple[SegmentKind, int | None], ...]
) -> None:
    rendered = encoded(token_ids, *segments)
    assert spliced(left([6, 8, 9]), rendered, 1, {9}) is rendered


@given(st.lists(st.integers(10, 99)), st.lists(st.integers(10, 99)), st.booleans())
def test_a_continuation_begins_with_prompt_and_answer_and_ends_with_what_is_new(
    output: list[int], new: list[int], is_cut_off: bool
) -> None:
    answer = [*output, 11] if is_cut_off else [*output, 9]
    rendered = encoded([1, 2, 9, 5, 7, 9, *new], (USER, 2), (ANSWER, 5), (USER, 6 + len(new)))
    kept = Continuation.from_json(left(answer, is_cut_off=is_cut_off).to_json())
    prompt = spliced(kept, rendered, 1, {9})
    generated = answer if is_cut_off else output
    assert prompt.token_ids.tolist() == [1, 2, 9, 5, *generated, 9, *new]
    assert prompt.boundaries[-1] == len(prompt.token_ids)
