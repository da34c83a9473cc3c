"""Numbers that a model writes and JSON cannot carry once they are read: ``1e999`` becomes infinity."""

from __future__ import annotations

import math
import sys
from typing import Any


def finite(value: Any) -> Any:
    """`value`, as a JSON parser gives it, with the largest float of that sign in place of infinities."""
    match value:
        case float() if math.isinf(value):
            return math.copysign(sys.float_info.max, value)
        case dict():
            return {name: finite(one) for name, one in value.items()}
        case list():
            return [finite(one) for one in value]
        case _:
            return value
