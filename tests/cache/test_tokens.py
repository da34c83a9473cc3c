"""Guards the comparison that every token-exact match rests on."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.cache.tokens import common_prefix


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [([], [], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [1, 3], 1), ([2], [1], 0)],
)
def test_common_prefix_counts_equal_leading_tokens(
    left: list[int], right: list[int], common: int
) -> None:
    assert common_prefix(np.array(left, np.int32), np.array(right, np.int32)) == common
