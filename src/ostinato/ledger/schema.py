"""The ledger's tables, their version, and the steps from one version to the next.

To change a table: change it here, and append to `MIGRATIONS` the step that changes an existing one. Steps only
add, with columns that may be NULL, so that an older server that still runs can go on writing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    select,
    text,
)

from ostinato.cache.types import Tier
from ostinato.errors import LedgerError
from ostinato.ledger.record import LedgerRecord

MICROSECONDS = 1_000_000
_UPGRADE_LOCK = 0x6F7374696E61
"""Of PostgreSQL's advisory locks: one server upgrades at a time."""

METADATA = MetaData()

VERSION = Table("ostinato_ledger_version", METADATA, Column("version", Integer, nullable=False))

REQUESTS = Table(
    "ostinato_requests",
    METADATA,
    Column("record_id", String(32), primary_key=True),
    Column("time_us", BigInteger, nullable=False),  # microseconds since 1970, UTC
    Column("request_id", String, nullable=False),
    Column("response_id", String),
    Column("tenant", String, nullable=False),
    Column("model", String),
    Column("dialect", String, nullable=False),
    Column("template_id", String),
    Column("template_version", String),
    Column("prompt_cache_key", String),
    Column("retention", String),
    Column("house_rules", String, nullable=False),
    Column("answer_cache", String, nullable=False),
    Column("answers", Integer, nullable=False),
    # Tokens; all NULL where they are not known.
    Column("input_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("cached_device_tokens", BigInteger),
    Column("cached_ram_tokens", BigInteger),
    Column("cached_disk_tokens", BigInteger),
    Column("cached_remote_tokens", BigInteger),
    Column("cache_read_tokens", BigInteger),
    Column("cache_write_short_tokens", BigInteger),
    Column("cache_write_long_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("total_tokens", BigInteger),
    Column("storage_token_seconds", BigInteger, nullable=False),
    Column("ttft_s", Float),
    Column("e2e_s", Float, nullable=False),
    Column("status", Integer),
    Column("finish_reason", String),
    Column("error", String),
    Index("ostinato_requests_time", "time_us"),
    Index("ostinato_requests_tenant_time", "tenant", "time_us"),
)

TOKEN_COLUMNS = tuple(c.name for c in REQUESTS.c if c.name.endswith("_tokens"))

Migration: TypeAlias = Callable[[Connection], None]

MIGRATIONS: Sequence[Migration] = ()
"""Step i brings version i + 1 to version i + 2."""


def row_of(record: LedgerRecord) -> dict[str, Any]:
    """A row of `REQUESTS`."""
    return {
        "record_id": record.record_id,
        "time_us": round(record.time * MICROSECONDS),
        "request_id": record.request_id,
        "response_id": record.response_id,
        "tenant": record.tenant,
        "model": record.model,
        "dialect": record.dialect,
        "template_id": record.template_id,
        "template_version": record.template_version,
        "prompt_cache_key": record.prompt_cache_key,
        "retention": record.retention,
        "house_rules": record.house_rules,
        "answer_cache": record.answer_cache,
        "answers": record.answers,
        **_token_columns(record),
        "storage_token_seconds": record.storage_token_seconds,
        "ttft_s": record.ttft,
        "e2e_s": record.e2e,
        "status": record.status,
        "finish_reason": record.finish_reason,
        "error": record.error,
    }


def _token_columns(record: LedgerRecord) -> dict[str, int | None]:
    tokens = record.tokens
    if tokens is None:
        return dict.fromkeys(TOKEN_COLUMNS)
    return {
        "input_tokens": tokens.input,
        "cached_tokens": tokens.cached,
        **{f"cached_{tier.value}_tokens": tokens.cached_by_tier.get(tier, 0) for tier in Tier},
        "cache_read_tokens": tokens.read,
        "cache_write_short_tokens": tokens.write_short,
        "cache_write_long_tokens": tokens.write_long,
        "output_tokens": tokens.output,
        "reasoning_tokens": tokens.reasoning,
        "total_tokens": tokens.total,
    }


def upgrade(connection: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the tables to this program's version, within the transaction of `connection`.

    Raises:
        LedgerError: they were made by a newer program.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _UPGRADE_LOCK})
    newest = len(migrations) + 1
    if not inspect(connection).has_table(VERSION.name):
        METADATA.create_all(connection)
        connection.execute(VERSION.insert().values(version=newest))
        return
    version = connection.execute(select(VERSION.c.version)).scalar_one()
    if version > newest:
        raise LedgerError(
            f"the ledger is of version {version}, this Ostinato knows versions up to {newest}:"
            " upgrade Ostinato, or write to another ledger with --ledger"
        )
    for step in migrations[version - 1 :]:
        step(connection)
    if version < newest:
        connection.execute(VERSION.update().values(version=newest))
