"""Guards the split of an answer into thought and answer: the same however the text was cut into pieces, nothing
lost but marks and the line breaks around them, and no thought where the model does not think."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.models.reasoning.parser import ReasoningParser
from ostinato.models.reasoning.syntax import (
    THINK,
    Reasoning,
    choose_reasoning,
    detect_reasoning,
    reasoning_of,
)

MAY, OPEN = Reasoning(THINK, is_open=False), Reasoning(THINK, is_open=True)
QWEN = "{% if '</think>' in m.content %}{% endif %}{{ '<think>\\n' + m.reasoning_content }}"


def read(reasoning: Reasoning, pieces: Iterable[str]) -> tuple[str, str]:
    """Thought and answer; a thought never comes behind the answer's first piece."""
    parser = ReasoningParser(reasoning)
    thought = answer = ""
    for found in [*map(parser.feed, pieces), parser.finish()]:
        assert not (found.thought and answer)
        thought += found.thought
        answer += found.answer
    return thought, answer


CASES = [
    (MAY, "<think>\nHm.\n\nSo 3.\n</think>\n\nThree.", ("Hm.\n\nSo 3.", "Three.")),
    (MAY, "\n <think>Hm.</think>Three.", ("Hm.", "Three.")),
    (MAY, "<think>\n\n</think>\n\nThree.\n", ("", "Three.\n")),
    (MAY, "<think>\nno end", ("no end", "")),
    (MAY, "<think>\nno end</thi", ("no end</thi", "")),
    (MAY, "<think>a < b, </b> and </think", ("a < b, </b> and </think", "")),
    (MAY, "<think>\n  indented\n</think>\n  code", ("  indented", "  code")),
    (MAY, "Three.", ("", "Three.")),
    (MAY, "  \nThree", ("", "  \nThree")),
    (MAY, "<thin", ("", "<thin")),
    (MAY, "<thinking>x</thinking>", ("", "<thinking>x</thinking>")),
    (MAY, "I write <think>x</think>.", ("", "I write <think>x</think>.")),
    (MAY, "<think>x</think>y<think>z</think>", ("x", "y<think>z</think>")),
    (MAY, "", ("", "")),
    (OPEN, "Hm.\n</think>\n\nThree.", ("Hm.", "Three.")),
    (OPEN, "<think>\nHm.\n</think>\nThree.", ("Hm.", "Three.")),
    (OPEN, "</think>Three.", ("", "Three.")),
    (OPEN, "<b>no end", ("<b>no end", "")),
    (OPEN, "<thi", ("<thi", "")),
]


@pytest.mark.parametrize(("reasoning", "text", "expected"), CASES)
def test_a_thought_is_told_from_the_answer_at_every_cut(
    reasoning: Reasoning, text: str, expected: tuple[str, str]
) -> None:
    assert read(reasoning, [text]) == expected
    assert read(reasoning, text) == expected
    for at in range(len(text) + 1):
        assert read(reasoning, [text[:at], text[at:]]) == expected


@given(
    st.sampled_from([MAY, OPEN]),
    st.lists(st.sampled_from(["<think>", "</think>", "\n", "<", "</th", "ink>", " ", "so", "x"])),
    st.lists(st.integers(1, 9)),
)
def test_no_way_of_cutting_changes_what_comes_out(
    reasoning: Reasoning, words: list[str], sizes: list[int]
) -> None:
    text = "".join(words)
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert read(reasoning, [*pieces, rest]) == read(reasoning, [text])


@given(st.text(alphabet="<>/think \nab"))
def test_nothing_but_marks_and_line_breaks_is_lost(text: str) -> None:
    thought, answer = read(MAY, [text])
    kept = text
    if text.lstrip().startswith(THINK.opening):
        kept = text.lstrip().removeprefix(THINK.opening).replace(THINK.closing, "", 1)
    else:
        assert (thought, answer) == ("", text)
    assert (thought + answer).replace("\n", "") == kept.replace("\n", "")


def test_a_parser_knows_where_it_is() -> None:
    parser = ReasoningParser(MAY)
    assert parser.is_undecided
    parser.feed("<think")
    assert (parser.is_undecided, parser.is_thinking) == (True, False)
    parser.feed(">")
    assert (parser.is_undecided, parser.is_thinking, parser.has_begun) == (False, True, True)
    parser.feed("</think>\n")
    assert (parser.is_thinking, parser.has_begun) == (False, True)
    assert ReasoningParser(OPEN).is_thinking


def test_only_a_template_that_knows_both_marks_makes_a_model_think() -> None:
    assert detect_reasoning(QWEN) == THINK
    assert detect_reasoning("{{ m.content }}") is None
    assert detect_reasoning("{{ m.content.split('</think>')[-1] }}") is None


def test_the_setting_is_stronger_than_the_template() -> None:
    assert choose_reasoning("auto", QWEN) == THINK
    assert choose_reasoning("auto", None) is None
    assert choose_reasoning("none", QWEN) is None
    assert choose_reasoning("think", None) == THINK
    with pytest.raises(ValueError, match="reasoning_parser"):
        choose_reasoning("guess", None)


@pytest.mark.parametrize(
    ("prompt_end", "expected"),
    [
        ("<|im_start|>assistant\n", MAY),
        ("<|im_start|>assistant\n<think>\n", OPEN),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None),
    ],
)
def test_how_a_prompt_ends_says_where_its_answers_begin(
    prompt_end: str, expected: Reasoning | None
) -> None:
    assert reasoning_of(THINK, prompt_end) == expected
    assert reasoning_of(None, prompt_end) is None
