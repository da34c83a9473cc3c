"""Who may share with whom. The only maker of cache keys' roots.

A namespace is tenant + salt + model + adapter + K/V format + sparsity policy. Its key is an HMAC under the
server's secret, so that one tenant can neither collide with nor compute another's keys; every part is
tagged and length-prefixed, so that no two different namespaces ever serialise to the same bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ostinato.cache.types import NamespaceKey, TenantId
from ostinato.errors import ConfigError

SECRET_BYTES = 32
_FORMAT = b"ostinato-namespace-v1"


@dataclass(frozen=True, slots=True)
class CacheNamespace:
    """Scope of reuse. Two requests share K/V only if all fields are equal.

    Attributes:
        tenant: from the API key.
        salt: chosen by the client; it can only narrow within the tenant. None and "" are different.
        model_digest: of weights and configuration.
        kv_digest: of dtype, codec, layout and block size (`KVCacheSpec.digest`).
        adapter: LoRA name or None.
        sparsity: name and parameters of a keep/drop policy, or None.
    """

    tenant: TenantId
    model_digest: bytes
    kv_digest: bytes
    salt: str | None = None
    adapter: str | None = None
    sparsity: str | None = None


class NamespaceFactory:
    """Turns namespaces into keys under one server secret.

    Deterministic across processes and restarts for one secret.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES:
            raise ConfigError(f"the cache secret must have at least {SECRET_BYTES} bytes")
        self._secret = secret

    def key(self, namespace: CacheNamespace) -> NamespaceKey:
        """The root of every hash chain in this namespace. 32 bytes."""
        parts: tuple[tuple[bytes, bytes | None], ...] = (
            (b"tenant", namespace.tenant.encode()),
            (b"salt", _encode(namespace.salt)),
            (b"model", namespace.model_digest),
            (b"kv", namespace.kv_digest),
            (b"adapter", _encode(namespace.adapter)),
            (b"sparsity", _encode(namespace.sparsity)),
        )
        message = b"".join(_tagged(tag, value) for tag, value in parts)
        return NamespaceKey(hmac.digest(self._secret, _FORMAT + message, hashlib.sha256))


def load_or_create_secret(path: Path) -> bytes:
    """The server's secret, made at first start with mode 0600.

    Raises:
        ConfigError: if the file exists but is too short to be a secret, or it can be neither read nor
            written.
    """
    try:
        secret = _read_or_write_secret(path)
    except OSError as error:
        raise ConfigError(
            f"the cache secret {path} can be neither read nor made ({error.strerror}): {path.parent} must "
            f"be a folder that may be written, and {path.name} a file in it. Give another data folder "
            "(--data-dir), or change that"
        ) from error
    if len(secret) < SECRET_BYTES:
        raise ConfigError(
            f"{path} is damaged ({len(secret)} bytes instead of {SECRET_BYTES}): "
            "delete it to make a new secret; cached K/V of the old one will not be found again"
        )
    return secret


def _read_or_write_secret(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # Written aside and linked into place, so that a second process never sees half a secret.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".secret-")  # mode 0600
        draft = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
            path.hardlink_to(draft)
        except FileExistsError:
            pass  # another process was faster: its secret counts
        finally:
            draft.unlink()
    return path.read_bytes()


def _encode(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _tagged(tag: bytes, value: bytes | None) -> bytes:
    """Length-prefixed tag, then a presence byte, then the length-prefixed value: None is not empty."""
    head = struct.pack("<I", len(tag)) + tag
    if value is None:
        return head + b"\x00"
    return head + b"\x01" + struct.pack("<Q", len(value)) + value
