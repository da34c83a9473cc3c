"""Guards the strictness of what is streamed as a call's arguments: exactly what the standard library reads as
JSON is a value, and everything before a value's end is a beginning."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.models.tools.json_scan import Scan, ValueScanner

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


def scan(text: str) -> list[Scan]:
    scanner, results = ValueScanner(), []
    for character in text:
        results.append(scanner.feed(character))
        if results[-1] is not Scan.MORE:
            break
    return results


@given(value=_VALUES, indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
def test_a_value_ends_at_its_last_character(
    value: object, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    results = scan(text + "}")
    assert results[:-1] == [Scan.MORE] * (len(results) - 1)
    if isinstance(value, str | list | dict):
        assert (results[-1], len(results)) == (Scan.DONE, len(text))
    else:
        assert (results[-1], len(results)) == (Scan.PAST, len(text) + 1)


@pytest.mark.parametrize(
    "text",
    [
        *("}", "]", ",", '{"a" 1', "{1", "{,", "[,", "[1,]", '{"a":1,}', '"\n', '"\\x', '"\\u12g'),
        *("01 ", "1. ", "- ", "tru ", "nul,", "+", "'", "[1 2", '{"a":1 "b"', "1e "),
    ],
)
def test_what_json_does_not_allow_is_bad_where_it_breaks(text: str) -> None:
    assert scan(text)[-1] is Scan.BAD


@given(text=st.text(alphabet='{}[]",:01-.etrufalsn\\ \n', max_size=12))
def test_the_scanner_agrees_with_the_standard_library(text: str) -> None:
    results = scan(text + " ")
    ended = results[-1] in (Scan.DONE, Scan.PAST)
    head = text[: len(results) - (results[-1] is Scan.PAST)]
    try:
        json.loads(head)
    except ValueError:
        assert not ended
    else:
        assert ended
