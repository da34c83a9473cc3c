"""Anthropic's API versions, as the header ``anthropic-version`` names them.

| since      | what changed                                                                        |
|------------|-------------------------------------------------------------------------------------|
| 2023-06-01 | the first; also what a request without the header gets                              |
| 2026-10-21 | no `temperature`, `top_p`, `top_k`; no citations in the text of user messages       |

Later dates are taken as the last that is known.
"""

from __future__ import annotations

import datetime

from starlette.datastructures import Headers

from ostinato.api.anthropic.errors import VERSION_HEADER
from ostinato.errors import InvalidRequestError

FIRST = datetime.date(2023, 6, 1)
WITHOUT_SAMPLING = datetime.date(2026, 10, 21)
BETA_HEADER = "anthropic-beta"


def version_of(headers: Headers) -> datetime.date:
    """The version that a request asks for.

    Raises:
        InvalidRequestError: it is no date, or before the first version.
    """
    given = headers.get(VERSION_HEADER)
    if given is None:
        return FIRST
    try:
        version = datetime.date.fromisoformat(given)
    except ValueError:
        version = datetime.date.min
    if version < FIRST:
        raise InvalidRequestError(
            f"{VERSION_HEADER}: {given[:40]!r} is not a version; send 2023-06-01 or 2026-10-21",
            param=VERSION_HEADER,
        )
    return version


def betas_of(headers: Headers) -> list[str]:
    """The betas that a request names, sorted. All are accepted: what is not known changes nothing."""
    names = (name.strip() for line in headers.getlist(BETA_HEADER) for name in line.split(","))
    return sorted({name for name in names if name})
