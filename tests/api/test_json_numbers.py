"""Guards that no call makes an answer that is no JSON: a model may write a number that no float holds."""

from __future__ import annotations

import json
import sys

from ostinato.api.anthropic.render import finished_input
from ostinato.api.json_numbers import finite

LARGEST = sys.float_info.max


def test_infinities_become_the_largest_float_wherever_they_are() -> None:
    read = json.loads('{"a": [1e999, {"b": -1e999}], "c": 1.5, "d": 7, "e": null, "f": "Infinity"}')
    sound = finite(read)
    assert sound == {"a": [LARGEST, {"b": -LARGEST}], "c": 1.5, "d": 7, "e": None, "f": "Infinity"}
    assert json.loads(json.dumps(sound, allow_nan=False)) == sound


def test_arguments_of_a_call_are_finite_even_if_cut_off() -> None:
    assert finished_input('{"a": 1e999, "b": [-1e9999, 2') == {"a": LARGEST, "b": [-LARGEST, 2]}
