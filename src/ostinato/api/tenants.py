"""Who is asking: from an API key to a tenant, before anything else of a request is read.

    Authorization: Bearer sk-ost-…  ──►  KeyRing.authenticate  ──►  Caller(tenant, roles)  ──►  every cache key

| path                               | who may, where there are keys                     |
|------------------------------------|---------------------------------------------------|
| `/health`                          | everybody: alive or not; with any key: everything |
| `/docs`, `/redoc`, `/openapi.json` | everybody: the same on every server               |
| `/metrics`                         | role `monitor`: the figures speak of all tenants  |
| all else                           | role `tenant`                                     |

Where the request comes from never counts: behind a proxy on the same machine everybody comes from loopback.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ostinato.api.error_shapes import failure_response
from ostinato.api.failure import Failure
from ostinato.api.gemini import errors as gemini_errors
from ostinato.api.key_file import (
    KeyFile,
    KeyRecord,
    KeyRole,
    digest_of,
    others_may_read,
    read_keys,
)
from ostinato.cache.types import DEFAULT_TENANT, TenantId, tenant_id
from ostinato.clock import Clock
from ostinato.errors import ConfigError

logger = logging.getLogger("ostinato.api")

RELOAD_SECONDS = 1.0
"""How often it is asked whether the file has changed, at most."""
MIN_GIVEN_KEY = 20
"""Characters that a key from the environment needs: those are not of our making and may be guessable."""

OPEN_PATHS = frozenset({"/health", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
MONITOR_PATHS = frozenset({"/metrics"})

_BUCKET_BYTES = 8
_Stamp: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what for."""

    tenant: TenantId
    roles: frozenset[KeyRole]


ANYBODY = Caller(DEFAULT_TENANT, frozenset(KeyRole))
"""Who asks where there are no keys."""


class _Keys:
    """Keys of one source. Found by a part of their digest, then compared in constant time.

    That a lookup by digest takes a time that depends on the digest tells nothing about any key: nobody can
    choose a key by its digest without the salt.
    """

    def __init__(self, content: KeyFile) -> None:
        self.records = content.records
        self._salt = content.salt
        self._by_digest = {record.digest[:_BUCKET_BYTES]: record for record in content.records}
        self._nobody = KeyRecord("", DEFAULT_TENANT, KeyRole.TENANT, secrets.token_bytes(32), "")

    def find(self, key: str) -> KeyRecord | None:
        digest = digest_of(self._salt, key)
        record = self._by_digest.get(digest[:_BUCKET_BYTES], self._nobody)
        return record if hmac.compare_digest(record.digest, digest) else None


class KeyRing:
    """All keys of a server; those of the file follow its changes.

    A file that can no longer be read, or is gone, changes nothing: the keys that were read last stay valid, and
    the log says so. Requests that run are not touched by a reload.

    Args:
        file: made by `key_file.add_key`.
        given: keys that do not come from a file.
        clock: paces the look at the file.

    Raises:
        ConfigError: the file cannot be read, or there is not a single key.
    """

    def __init__(self, file: Path | None, given: KeyFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._given = _Keys(given)
        self._stored = _Keys(KeyFile(given.salt, ()))
        self._stamp: _Stamp | None = None
        self._wanted = False
        self._checked = clock.monotonic()
        if file is not None:
            self._stamp = _stamp(file)
            self._stored = _Keys(read_keys(file))
            self._warn_about_mode(file)
        if not self.records:
            where = f"{file} holds no key" if file else "OSTINATO_API_KEYS holds no key"
            raise ConfigError(f"{where}; `ostinato keys add TENANT` makes one")

    @property
    def records(self) -> tuple[KeyRecord, ...]:
        """All that are valid now."""
        return self._stored.records + self._given.records

    def authenticate(self, key: str) -> Caller | None:
        """Who holds this key; None if nobody does. The work is the same for every key, right or wrong."""
        self._follow_file()
        found = [record for keys in (self._stored, self._given) if (record := keys.find(key))]
        return Caller(found[0].tenant, frozenset({found[0].role})) if found else None

    def reload(self) -> None:
        """Read the file again at the next request, changed or not. Safe in a signal handler."""
        self._wanted = True

    def _follow_file(self) -> None:
        now = self._clock.monotonic()
        if self._file is None or not (self._wanted or now - self._checked >= RELOAD_SECONDS):
            return
        self._checked = now
        stamp = _stamp(self._file)
        if stamp == self._stamp and not self._wanted:
            return
        self._stamp, self._wanted = stamp, False
        try:
            self._stored = _Keys(read_keys(self._file))
        except ConfigError as error:
            logger.error("the API keys stay as they were: %s", error)
            return
        logger.info("read %d API keys from %s", len(self._stored.records), self._file)
        self._warn_about_mode(self._file)

    @staticmethod
    def _warn_about_mode(file: Path) -> None:
        if others_may_read(file):
            logger.warning("others may read %s: run `chmod 600 %s`", file, file)


def _stamp(file: Path) -> _Stamp | None:
    """Changes whenever the file does; None if it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def key_ring(file: Path | None, given: str | None, clock: Clock) -> KeyRing | None:
    """The keys of a server; None if it is to have none.

    Args:
        file: of keys.
        given: ``TENANT=KEY,TENANT=KEY``.
        clock: see `KeyRing`.

    Raises:
        ConfigError: see `KeyRing`, or `given` is not what it should be.
    """
    if file is None and given is None:
        return None
    return KeyRing(file, _parse_given(given or ""), clock)


def _parse_given(text: str) -> KeyFile:
    salt = secrets.token_bytes(32)
    records = []
    for number, pair in enumerate(filter(None, map(str.strip, text.split(","))), start=1):
        name, equals, key = pair.partition("=")
        if not equals:
            raise ConfigError(
                f"OSTINATO_API_KEYS must be TENANT=KEY,TENANT=KEY; its entry {number} has no '='"
            )
        if len(key) < MIN_GIVEN_KEY:
            raise ConfigError(
                f"the key of tenant {name!r} in OSTINATO_API_KEYS is shorter than {MIN_GIVEN_KEY} characters"
                " and could be guessed; `openssl rand -hex 32` makes a good one"
            )
        digest = digest_of(salt, key)
        records.append(KeyRecord("environment", tenant_id(name), KeyRole.TENANT, digest, ""))
    return KeyFile(salt, tuple(records))


def _bearer(value: str) -> str | None:
    scheme, _, key = value.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


CREDENTIALS: Mapping[str, Callable[[str], str | None]] = {
    "authorization": _bearer,
    "x-api-key": str.strip,
    gemini_errors.KEY_HEADER: str.strip,
}
"""By header, how the key is written in it. A dialect with a header of its own adds it here."""


def api_key_of(headers: Headers, in_query: Sequence[str] = ()) -> str | None:
    """The key that a request carries; None if it carries none, or several that differ.

    Args:
        headers: of the request.
        in_query: keys that its URL has.
    """
    keys = set(in_query) | {
        key
        for name, read in CREDENTIALS.items()
        for value in headers.getlist(name)
        if (key := read(value))
    }
    return keys.pop() if len(keys) == 1 else None


def caller_of(scope: Scope) -> Caller | None:
    """Who sent this request; None where anybody may ask and nobody said who he is."""
    caller: Caller | None = scope["state"]["caller"]
    return caller


def tenant_of(scope: Scope) -> TenantId:
    """Whose request this is. Only for paths that `ApiKeyMiddleware` lets no stranger through to."""
    caller = caller_of(scope)
    if caller is None:
        raise RuntimeError(f"{scope['path']} is open to strangers but asks for a tenant")
    return caller.tenant


class ApiKeyMiddleware:
    """Lets through who may pass, by the table of the module's docstring; no byte of a body is read before.

    Args:
        app: what comes after.
        keys: None lets everybody through as `ANYBODY`.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing | None) -> None:
        self.app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        key = None
        if self._keys is not None:
            key = api_key_of(Headers(scope=scope), gemini_errors.keys_in_query(scope))
        caller = ANYBODY if self._keys is None else None
        if self._keys is not None and key is not None:
            caller = self._keys.authenticate(key)
        scope.setdefault("state", {})["caller"] = caller
        path = scope["path"]
        if path in OPEN_PATHS:
            await self.app(scope, receive, send)
        elif caller is None:
            await _refuse_stranger(key)(scope, receive, send)
        elif (role := _role_for(path)) not in caller.roles:
            await _refuse_role(role)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _role_for(path: str) -> KeyRole:
    return KeyRole.MONITOR if path in MONITOR_PATHS else KeyRole.TENANT


def _refuse_stranger(key: str | None) -> ASGIApp:
    """401. What was sent is not repeated: it may be a key of somebody else's."""
    if key is None:
        message = (
            "this server asks for an API key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'; the"
            " operator makes one with `ostinato keys add TENANT`"
        )
    else:
        message = (
            "the API key is not valid here: it was mistyped, revoked, or is for another server"
        )
    headers = {"www-authenticate": "Bearer"}
    return _answer(Failure(401, message, "invalid_api_key", headers=headers))


def _refuse_role(role: KeyRole) -> ASGIApp:
    what = {
        KeyRole.TENANT: "this key is for monitoring: it may read /metrics and /health only",
        KeyRole.MONITOR: "the figures speak of all tenants: this path takes a key that was made with"
        " `ostinato keys add NAME --role monitor`",
    }
    return _answer(Failure(403, what[role], "insufficient_permissions"))


def _answer(failure: Failure) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await failure_response(scope, failure)(scope, receive, send)

    return app
