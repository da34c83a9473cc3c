"""The file of API keys: one JSON object a line, nothing in it that could be used as a key.

    {"format": "ostinato-api-keys", "version": 1, "salt": "…"}
    {"id": "k_5f0c21", "tenant": "acme", "role": "tenant", "digest": "…", "created": "2026-01-31T08:00:00Z"}

A key is 32 random bytes behind a prefix that secret scanners can look for. Stored is its HMAC-SHA-256 under
the file's salt. A slow hash (scrypt) protects secrets that can be guessed; 256 random bits cannot be, and a
slow hash at every request would hand strangers a way to keep the CPU busy. The salt keeps equal keys in two
files apart.

Writers take a lock on the folder, write a new file with mode 0600 beside the old one and rename it, so a reader
sees either of them and never a half.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ostinato.cache.types import TenantId, tenant_id
from ostinato.clock import Clock
from ostinato.errors import ConfigError

KEY_PREFIX = "sk-ost-"
DEFAULT_FILE_NAME = "api-keys.jsonl"
"""In the data folder."""

_FORMAT = "ostinato-api-keys"
_VERSION = 1
_KEY_BYTES = 32
_SALT_BYTES = 32
_ID_BYTES = 4


class KeyRole(StrEnum):
    """What a key is for."""

    TENANT = "tenant"
    """Everything under ``/v1``."""
    MONITOR = "monitor"
    """``/metrics`` and ``/health``, which speak of all tenants together."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key, as far as it is kept.

    Attributes:
        key_id: names the key to its operator; says nothing about it.
        tenant: whose it is.
        role: what it may do.
        digest: `digest_of` the key.
        created: ISO 8601, UTC.
    """

    key_id: str
    tenant: TenantId
    role: KeyRole
    digest: bytes
    created: str


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The content of a file of keys."""

    salt: bytes
    records: tuple[KeyRecord, ...]


def digest_of(salt: bytes, key: str) -> bytes:
    """What is stored of a key. 32 bytes."""
    return hmac.digest(salt, key.encode("utf-8", "surrogatepass"), hashlib.sha256)


def read_keys(path: Path) -> KeyFile:
    """Raises: ConfigError: the file cannot be read or is not one of ours; names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        if isinstance(error, FileNotFoundError):
            reason = f"there is no such file; `ostinato keys add TENANT --api-keys {path}` makes it"
        raise ConfigError(f"cannot read the API keys in {path}: {reason}") from error
    records = []
    salt = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if salt is None:
                salt = _salt(fields)
            else:
                records.append(_record(fields))
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise ConfigError(
                f"{path}, line {number}: not a line of a file of API keys ({error!r})"
            ) from error
    if salt is None:
        raise ConfigError(f"{path} is empty; `ostinato keys add TENANT` makes a file of API keys")
    return KeyFile(salt, tuple(records))


def add_key(path: Path, tenant: TenantId, role: KeyRole, clock: Clock) -> tuple[KeyRecord, str]:
    """Make a key and store its digest; makes the file if there is none.

    Returns:
        Its record, and the key itself, which is kept nowhere.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    with _rewriting(path):
        known = read_keys(path) if path.exists() else KeyFile(secrets.token_bytes(_SALT_BYTES), ())
        key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
        created = datetime.datetime.fromtimestamp(clock.time(), datetime.UTC)
        record = KeyRecord(
            key_id=f"k_{secrets.token_hex(_ID_BYTES)}",
            tenant=tenant,
            role=role,
            digest=digest_of(known.salt, key),
            created=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        _write(path, KeyFile(known.salt, (*known.records, record)))
    return record, key


def revoke_key(path: Path, key_id: str) -> KeyRecord:
    """Forget a key.

    Raises:
        ConfigError: there is none of that id, or the file cannot be read or written.
    """
    with _rewriting(path):
        known = read_keys(path)
        gone = [record for record in known.records if record.key_id == key_id]
        if not gone:
            raise ConfigError(f"{path} has no key {key_id!r}; `ostinato keys ls` lists them")
        _write(path, KeyFile(known.salt, tuple(r for r in known.records if r.key_id != key_id)))
    return gone[0]


def others_may_read(path: Path) -> bool:
    """Whether the file's mode lets anybody but its owner at it."""
    return bool(path.stat().st_mode & 0o077)


def _salt(fields: Any) -> bytes:
    if fields["format"] != _FORMAT or fields["version"] != _VERSION:
        raise ValueError(f"expected format {_FORMAT!r}, version {_VERSION}")
    return bytes.fromhex(fields["salt"])


def _record(fields: Any) -> KeyRecord:
    return KeyRecord(
        key_id=str(fields["id"]),
        tenant=tenant_id(fields["tenant"]),
        role=KeyRole(fields["role"]),
        digest=bytes.fromhex(fields["digest"]),
        created=str(fields["created"]),
    )


def _lines(content: KeyFile) -> Iterable[str]:
    yield json.dumps({"format": _FORMAT, "version": _VERSION, "salt": content.salt.hex()})
    for record in content.records:
        fields = {
            "id": record.key_id,
            "tenant": record.tenant,
            "role": record.role.value,
            "digest": record.digest.hex(),
            "created": record.created,
        }
        yield json.dumps(fields)


def _write(path: Path, content: KeyFile) -> None:
    with tempfile.NamedTemporaryFile(  # made with mode 0600
        "w", dir=path.parent, prefix=f".{path.name}-", encoding="utf-8", delete=False
    ) as file:
        try:
            file.writelines(f"{line}\n" for line in _lines(content))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _rewriting(path: Path) -> Iterator[None]:
    """Keep other writers out: a key that one of two revokes must not come back with the other's rename."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigError(f"cannot write the API keys in {path}: {error.strerror}") from error
