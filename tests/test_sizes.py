"""Guards against memory sizes that are read wrongly, or printed so that nobody can read them."""

from __future__ import annotations

import pytest

from ostinato.errors import ConfigError
from ostinato.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        ("512MiB", 512 * 2**20),
        ("2GiB", 2**31),
        ("2 gib", 2**31),
        ("1.5KiB", 1536),
        ("1.5GB", 1_500_000_000),
        ("3TiB", 3 * 2**40),
    ],
)
def test_units_with_an_i_are_powers_of_1024_and_others_of_1000(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "2 potatoes", "-1GiB", "1GiB2", "2G", "1e9", "inf"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="for example 512MiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + "GiB", "8192PiB", f"{2**63}"])
def test_a_size_that_no_machine_has_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="below 8,192 PiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.2B"])
def test_a_size_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="at least one byte"):
        parse_size(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (23_040, "22.5 KiB"),
        (512 * 2**20, "512 MiB"),
        (2**30 - 1, "1,024 MiB"),
        (2**50 * 2048, "2,048 PiB"),
    ],
)
def test_bytes_are_printed_in_the_largest_unit_that_fits(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text
