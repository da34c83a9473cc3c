"""Records to write."""

from __future__ import annotations

from typing import Any

from ostinato.cache.types import Tier
from ostinato.ledger.record import LedgerRecord, TokenRecord

NOON = 1_796_040_000.0
"""2026-11-30 12:00 UTC."""


def record(number: int = 0, **fields: Any) -> LedgerRecord:
    """A plain record; `number` makes its id, its time and its counts."""
    tokens = TokenRecord(
        input=100 + number,
        cached_by_tier={Tier.DEVICE: 30, Tier.DISK: number},
        read=30 + number,
        output=10,
    )
    given: dict[str, Any] = {
        "record_id": f"{number:032x}",
        "time": NOON + number,
        "request_id": f"req_{number}",
        "tenant": "default",
        "model": "tiny",
        "dialect": "openai_chat",
        "house_rules": "local",
        "tokens": tokens,
        "e2e": 1.5,
        "ttft": 0.25,
        "status": 200,
        "finish_reason": "stop",
    }
    return LedgerRecord(**(given | fields))
