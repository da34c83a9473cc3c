"""Durations and moments as JSON of protocol buffers has them: ``300s``, ``2026-11-30T04:00:00.5Z``."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ostinato.errors import InvalidRequestError

_DURATION = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?s")
_EPOCH_YEARS = (1970, 9999)


def parse_duration(text: str, param: str) -> float:
    """Seconds.

    Raises:
        InvalidRequestError: it is no duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidRequestError(
            f"{param} must be seconds like '300s' or '3.5s', not {text[:40]!r}", param=param
        )
    return float(f"{match[1]}.{match[2] or 0}")


def parse_time(text: str, param: str) -> float:
    """Unix seconds.

    Raises:
        InvalidRequestError: it is no moment, or has no time zone.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None or not _EPOCH_YEARS[0] <= moment.year < _EPOCH_YEARS[1]:
            raise ValueError
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise InvalidRequestError(
            f"{param} must be a moment like '2026-11-30T04:00:00Z', with its time zone, "
            f"not {text[:40]!r}",
            param=param,
        ) from None


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
