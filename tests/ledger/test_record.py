"""Guards the names that clients choose: whatever they send can be stored, is bounded, and stays distinct."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.ledger.record import MAX_LABEL_CHARACTERS, label, new_record_id


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=400))
def test_any_name_becomes_one_that_every_database_can_hold(text: str) -> None:
    name = label(text)
    assert name is not None
    assert "\0" not in name
    assert len(name.encode("utf-8")) <= 4 * MAX_LABEL_CHARACTERS


def test_an_ordinary_name_stays_as_it_is() -> None:
    assert label("répondre-v2 (日本)") == "répondre-v2 (日本)"
    assert label(None) is None


def test_long_names_that_differ_stay_different_and_show_nothing_of_their_text() -> None:
    texts = ["secret " * 100 + ending for ending in "ab"]
    names = {label(text) for text in texts}
    assert len(names) == 2
    assert all(name and name.startswith("sha256:") and "secret" not in name for name in names)


def test_no_two_records_have_the_same_id() -> None:
    assert len({new_record_id() for _ in range(1000)}) == 1000
