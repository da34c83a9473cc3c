"""Guards OpenAI's prompt-cache semantics on the whole way of a response, over a real engine: a row each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.local import LocalBackend
from ostinato.clock import ManualClock
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import HOUSE_RULES
from tests.api.openai_responses.test_continuation import ENDS_SOON, OTHER_WHITE_SPACE
from tests.api.openai_responses.test_responses import LOOK, ask
from tests.api.test_local import start_engine

RULES = {"role": "developer", "content": "be brief and kind " * 6}
EXPLICIT = {"mode": "explicit"}


@dataclass
class House:
    """A server under OpenAI's rules, their minimum aside."""

    client: TestClient
    clock: ManualClock

    def __call__(self, given: Any, **fields: Any) -> tuple[int, int, int]:
        """Read, written for 30 minutes, written for 12 hours."""
        return counters(ask(self.client, given, **{"max_output_tokens": 1, **fields}))


def counters(response: dict[str, Any]) -> tuple[int, int, int]:
    details = response["usage"]["input_tokens_details"]
    by_ttl = details["cache_write_tokens_details"]
    return details["cached_tokens"], by_ttl["ttl_30m_tokens"], by_ttl["ttl_12h_tokens"]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    engine = start_engine(tmp_path, OTHER_WHITE_SPACE, num_blocks=128)
    clock = ManualClock()
    rules = replace(HOUSE_RULES["openai-5.6"], min_tokens=1)
    cache = PromptCache(clock, b"s" * 32, rules, 1)
    with TestClient(create_app(LocalBackend(engine), clock=clock, prompt_cache=cache)) as client:
        yield House(client, clock)
    engine.stop()


def user(*texts: str, mark: dict[str, Any] | None = None) -> dict[str, Any]:
    """A message of several parts, the first of which is marked."""
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": text} for text in texts]
    if mark is not None:
        parts[0]["prompt_cache_breakpoint"] = mark
    return {"role": "user", "content": parts}


SHORT, LONG = {"mode": "explicit"}, {"mode": "explicit", "ttl": "12h"}


def test_first_and_repeated(house: House) -> None:
    read, written, _ = house([RULES, user("hello")])
    assert (read, written > 60) == (0, True)
    assert house([RULES, user("hello")]) == (written, 0, 0)


def test_a_turn_longer_reads_the_turn_before_and_writes_the_rest(house: House) -> None:
    first = ask(house.client, [RULES, user("hello")], **ENDS_SOON)
    written = counters(first)[1]
    read, more, _ = house("go on", previous_response_id=first["id"])
    assert read == written
    assert more > first["usage"]["output_tokens"]


def test_another_question_does_not_read_rules_that_were_never_written(house: House) -> None:
    house([RULES, user("hello")])
    assert house([RULES, user("something else")])[0] == 0


def test_a_changed_tool_reads_nothing(house: House) -> None:
    house([RULES, user("hello")], tools=[LOOK])
    assert house([RULES, user("hello")], tools=[{**LOOK, "description": "now with one"}])[0] == 0


def test_another_choice_of_tool_reads_everything(house: House) -> None:
    _, written, _ = house([RULES, user("hello")], tools=[LOOK])
    assert house([RULES, user("hello")], tools=[LOOK], tool_choice="none") == (written, 0, 0)


def test_explicit_without_a_breakpoint_is_no_caching_at_all(house: House) -> None:
    for _ in range(2):
        assert house([RULES, user("hello")], prompt_cache_options=EXPLICIT) == (0, 0, 0)


def test_an_explicit_breakpoint_ends_exactly_behind_its_part(house: House) -> None:
    def marked(question: str) -> tuple[int, int, int]:
        return house(
            [RULES, user("a shared text", question, mark=SHORT)], prompt_cache_options=EXPLICIT
        )

    _, written, _ = marked("one")
    assert marked("two") == (written, 0, 0)


def test_from_implicit_to_explicit_old_entries_are_not_read(house: House) -> None:
    house([RULES, user("hello")])
    marked = {**user(RULES["content"], mark=SHORT), "role": "developer"}
    read, written, _ = house([marked, user("hello")], prompt_cache_options=EXPLICIT)
    assert (read, written > 50) == (0, True)


def test_twelve_hours_are_counted_apart_and_outlive_half_an_hour(house: House) -> None:
    def marked(**mark: Any) -> tuple[int, int, int]:
        return house([RULES, user("shared", "one", mark=mark)], prompt_cache_options=EXPLICIT)

    read, short, long = marked(**LONG)
    assert (read, short) == (0, 0)
    house.clock.advance(1801)
    assert marked(**SHORT) == (long, 0, 0)
    house.clock.advance(12 * 3600 + 1)
    assert marked(**SHORT) == (0, long, 0)


def test_an_entry_expires_and_a_hit_refreshes_it(house: House) -> None:
    _, written, _ = house([RULES, user("hello")])
    for _ in range(2):
        house.clock.advance(1799)
        assert house([RULES, user("hello")]) == (written, 0, 0)
    house.clock.advance(1801)
    assert house([RULES, user("hello")]) == (0, written, 0)


def test_keys_separate_the_accounting(house: House) -> None:
    _, written, _ = house([RULES, user("hello")], prompt_cache_key="a")
    assert house([RULES, user("hello")], prompt_cache_key="b") == (0, written, 0)
    assert house([RULES, user("hello")], prompt_cache_key="a") == (written, 0, 0)


def test_a_key_that_changed_is_the_diagnosis(house: House) -> None:
    first = ask(house.client, "hello", prompt_cache_key="a", max_output_tokens=1)
    options = {"comparison_response_id": first["id"]}
    second = ask(
        house.client,
        "hello",
        prompt_cache_key="b",
        prompt_cache_options=options,
        max_output_tokens=1,
    )
    assert second["prompt_cache_diagnostics"]["reason"] == "prompt_cache_key_changed"


def test_what_expired_has_no_reason(house: House) -> None:
    first = ask(house.client, "hello", max_output_tokens=1)
    house.clock.advance(1801)
    options = {"comparison_response_id": first["id"]}
    second = ask(house.client, "hello", prompt_cache_options=options, max_output_tokens=1)
    assert second["prompt_cache_diagnostics"] == {"type": "unavailable"}


def test_a_prewarm_is_billed_as_a_write(house: House) -> None:
    options = {**EXPLICIT, "prewarm": True}
    _, written, _ = house([RULES, user("shared", ".", mark=SHORT)], prompt_cache_options=options)
    assert written > 60
    read = house([RULES, user("shared", "now", mark=SHORT)], prompt_cache_options=EXPLICIT)
    assert read == (written, 0, 0)


def test_of_five_marks_the_latest_four_are_written(house: House) -> None:
    def marks(count: int, options: dict[str, Any]) -> tuple[int, int, int]:
        messages = [user(f"part {n}", mark=SHORT) for n in range(count)]
        return house([RULES, *messages, user("end")], prompt_cache_options=options)

    marks(5, EXPLICIT)
    assert marks(1, EXPLICIT)[0] == 0  # the first was not written
    assert marks(2, EXPLICIT)[0] > 0
