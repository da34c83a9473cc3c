"""GroupBy: what the ledger can put requests together by. Imports no database."""

from __future__ import annotations

from enum import StrEnum


class GroupBy(StrEnum):
    """What requests can be put together by."""

    DAY = "day"
    HOUR = "hour"
    MODEL = "model"
    TENANT = "tenant"
    TEMPLATE = "template"
    DIALECT = "dialect"
    CACHE_KEY = "cache-key"
