"""Guards stop strings: none may leak into a stream, and no text may be held back without need.

The oracle reads the whole text at once; the checker gets it cut into arbitrary deltas.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.engine.stop import StopChecker

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4).map(tuple)


def feed_all(stop: tuple[str, ...], deltas: list[str]) -> tuple[list[str], str | None]:
    checker = StopChecker(stop)
    shown = []
    for delta in deltas:
        emit, matched = checker.feed(delta)
        shown.append(emit)
        if matched is not None:
            return shown, matched
    return [*shown, checker.flush()], None


def textbook(stop: tuple[str, ...], text: str) -> tuple[str, str | None]:
    """The shortest beginning of `text` that ends with a stop string, without the longest such."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stop if text[:end].endswith(s)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(deadline=None)
@given(stop=STOPS, text=st.text("abc", max_size=30), data=st.data())
def test_the_outcome_is_that_of_reading_the_whole_text_at_once(
    stop: tuple[str, ...], text: str, data: st.DataObject
) -> None:
    inner = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    cuts = sorted([0, *inner, len(text)])
    deltas = [text[a:b] for a, b in pairwise(cuts)]
    shown, matched = feed_all(stop, deltas)
    assert ("".join(shown), matched) == textbook(stop, text)


@settings(deadline=None)
@given(stop=STOPS, text=st.text("abc", max_size=30))
def test_exactly_the_longest_possible_beginning_of_a_stop_string_is_held_back(
    stop: tuple[str, ...], text: str
) -> None:
    checker = StopChecker(stop)
    shown = ""
    for end, character in enumerate(text, start=1):
        emit, matched = checker.feed(character)
        if matched is not None:
            return
        shown += emit
        beginnings = [s[:k] for s in stop for k in range(1, len(s)) if text[:end].endswith(s[:k])]
        assert end - len(shown) == max(map(len, beginnings), default=0)


def test_text_without_stop_strings_passes_at_once() -> None:
    checker = StopChecker(())
    assert checker.feed("all of it") == ("all of it", None)
    assert checker.flush() == ""


def test_a_stop_string_that_spans_many_deltas_never_leaks() -> None:
    assert feed_all(("</answer>",), ["42 <", "/", "ans", "", "wer", "> more"]) == (
        ["42 ", "", "", "", "", ""],
        "</answer>",
    )


def test_a_false_beginning_is_released_as_soon_as_it_is_refuted() -> None:
    checker = StopChecker(("</answer>",))
    assert checker.feed("x </ans") == ("x ", None)
    assert checker.feed("w") == ("", None)
    assert checker.feed("!") == ("</answ!", None)


def test_a_false_beginning_that_hides_a_true_one_is_released_in_part() -> None:
    checker = StopChecker(("aab",))
    assert checker.feed("aa") == ("", None)
    assert checker.feed("a") == ("a", None)
    assert checker.feed("b!") == ("", "aab")


def test_of_several_stop_strings_the_one_complete_first_wins() -> None:
    assert feed_all(("world", "lo"), ["hello world"]) == (["hel"], "lo")
    assert feed_all(("abcd", "bc"), ["xabcd"]) == (["xa"], "bc")


def test_of_stop_strings_complete_at_the_same_character_the_longest_wins() -> None:
    assert feed_all(("b", "ab"), ["xab"]) == (["x"], "ab")


def test_a_stop_string_inside_a_longer_delta_cuts_it() -> None:
    assert feed_all(("\n\n",), ["one\n\ntwo"]) == (["one"], "\n\n")


def test_what_was_held_back_is_given_out_at_the_end() -> None:
    checker = StopChecker(("STOP",))
    assert checker.feed("go ST") == ("go ", None)
    assert checker.flush() == "ST"
    assert checker.flush() == ""


def test_a_flush_forgets_the_beginning_it_gave_out() -> None:
    checker = StopChecker(("STOP",))
    checker.feed("ST")
    checker.flush()
    assert checker.feed("OP") == ("OP", None)


def test_nothing_is_shown_after_a_match() -> None:
    checker = StopChecker(("end",))
    assert checker.feed("the end of") == ("the ", "end")
    assert checker.feed("it") == ("", "end")
    assert checker.flush() == ""


@pytest.mark.parametrize("stop", ["。", "🙂", "e\u0301"])
def test_stop_strings_of_any_script_work(stop: str) -> None:
    assert feed_all((stop,), [f"早上好{stop}再见"]) == (["早上好"], stop)


def test_a_very_long_stop_string_costs_linear_time() -> None:
    stop = "a" * 50_000 + "b"  # far beyond what a request may ask for
    checker = StopChecker((stop,))
    assert checker.feed("a" * 100_000) == ("a" * 50_000, None)
    assert checker.feed("b") == ("", stop)


def test_the_answers_of_one_call_share_the_tables_of_their_stop_strings() -> None:
    stop = ("ab" * 500, "aab")
    first, second = StopChecker(stop), StopChecker(list(stop))
    tables = [matcher._borders for matcher in first._matchers]
    assert all(
        matcher._borders is table for matcher, table in zip(second._matchers, tables, strict=True)
    )
    assert first.feed("xaab") == ("x", "aab")
    assert second.feed("b") == ("b", None)
