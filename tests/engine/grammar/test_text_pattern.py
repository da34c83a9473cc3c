"""Guards searching with a stranger's pattern: it finds what Python's `re` finds, and never takes long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.engine.grammar.text_pattern import MAX_PATTERN_CHARACTERS, TextPattern

TEXT = "get_weather of a city"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("weather", True),
        ("WEATHER", False),
        ("(?i)WEATHER", True),
        ("^get_", True),
        ("^weather", False),
        ("city$", True),
        ("of$", False),
        ("^get.*city$", True),
        (r"\bof\b", True),
        (r"get_\w+ of", True),
        ("rain|city", True),
        (r"a\$", False),
        ("", True),
    ],
)
def test_a_pattern_is_found_anywhere_in_the_text(pattern: str, found: bool) -> None:
    assert TextPattern(pattern).is_in(TEXT) is found


@pytest.mark.parametrize("pattern", ["[", "x)|(y", "(?=x)", "(a)\\1", "*", "a" * 201])
def test_what_is_no_pattern_here_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        TextPattern(pattern)


def test_a_pattern_that_would_take_for_ever_does_not() -> None:
    assert not TextPattern("(a+)+(a+)+b$").is_in("a" * 2_000)


def test_the_longest_pattern_is_taken() -> None:
    assert TextPattern("a" * MAX_PATTERN_CHARACTERS).is_in("a" * MAX_PATTERN_CHARACTERS)


@given(
    pattern=st.text(alphabet="ab.|*+?()", max_size=8),
    text=st.text(alphabet="ab\nx", max_size=8),
)
def test_it_finds_what_re_finds(pattern: str, text: str) -> None:
    try:
        compiled = TextPattern(pattern)
    except ValueError:
        return
    assert compiled.is_in(text) == (re.search(pattern, text) is not None)
