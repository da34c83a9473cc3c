"""From a sound request to one that is most likely malformed. A pure function of the random numbers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.e2e.fuzz.seed import Seed
from tests.hostile_json import SCHEMAS, VALUES, Pairs, Raw, json_text

Place: TypeAlias = tuple[Any, Any]
"""A container and a key or an index in it."""

_SCHEMA_FIELDS = (
    *("parameters", "schema", "input_schema", "json", "guided_json", "responseSchema"),
    *("responseJsonSchema", "parametersJsonSchema"),
)
_TEXTS = (
    "",
    "x",
    "ephemeral",
    "text",
    "tool",
    "auto",
    "a" * 70_000,
    "\u0000",
    "٣",
    "\udfff",
    "../..",
)
_NUMBERS = (0, -1, 0.5, 1e308, -1e308, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 129, 1e-320)
_EXTRAS = (
    *("functions", "audio", "documents", "conversation", "prompt", "fallbacks", "thread", "echo"),
    *("use_beam_search", "speechConfig", "cachedContent", "previous_response_id", "bad_words"),
    *("cache_control", "prompt_cache_breakpoint", "inlineData", "fileData", "__proto__", ""),
)
_TYPES = (
    *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""),
    *("application/json; charset=utf-16", "application/json;;;", "application/xml", "json", "*/*"),
)
_VERSIONS = ("", "2022-01-01", "9999-99-99", "2026-10-21", "tomorrow", "2023-06-01,2023-06-01")
_NAMES = ("nobody", "%00", "%FF%FE", "..%2F..", "a" * 4000, "%ED%A0%80", "models", "%20")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A request as it goes over the wire."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def mutate(seed: Seed, rng: random.Random) -> Mutant:
    """A mutant of `seed`."""
    way = rng.random()
    if way < 0.08:
        return _with_strange_headers(seed, rng)
    if way < 0.14:
        return _elsewhere(seed, rng)
    body = copy.deepcopy(dict(seed.body))
    changes = _SCHEMA_WAYS if way < 0.26 else _TREE_WAYS
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        body = _changed(body, rng, changes)
    text = json_text(body)
    encoded = text.encode()
    if way > 0.86:
        encoded = rng.choice(_BYTE_WAYS)(encoded, rng)
    return Mutant(seed.method, seed.path, seed.headers, encoded)


def _places(value: Any) -> list[Place]:
    """Every key and index of a tree."""
    found: list[Place] = []
    stack = [value]
    while stack:
        node = stack.pop()
        keys = node.keys() if isinstance(node, dict) else range(len(node))
        for key in keys:
            found.append((node, key))
            if isinstance(node[key], dict | list):
                stack.append(node[key])
    return found


def _changed(
    body: dict[str, Any], rng: random.Random, ways: Sequence[Callable[..., None]]
) -> dict[str, Any]:
    places = _places(body)
    if places:
        rng.choice(ways)(*rng.choice(places), rng, places)
    return body


def _replace(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    node[key] = Raw(rng.choice(VALUES))


def _neighbour(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    """A value of the same type that is out of range, or unknown."""
    old = node[key]
    if isinstance(old, bool) or old is None:
        node[key] = rng.choice((not old, int(bool(old)), str(old)))
    elif isinstance(old, int | float):
        node[key] = rng.choice((*_NUMBERS, -old, Raw(f"{old}.5"), str(old)))
    elif isinstance(old, str):
        node[key] = rng.choice((*_TEXTS, old + "x", old.upper(), old[:1], [old], {old: old}))
    elif isinstance(old, list):
        node[key] = rng.choice(([], [old], old[::-1], old * 5, old * 40, {"0": old}, *old))
    else:
        node[key] = rng.choice(({}, [old], None, "x", 5))


def _drop(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    del node[key]


def _rename(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    if isinstance(node, dict):
        value = node.pop(key)
        node[rng.choice((key + "s", key.upper(), key[:-1], f" {key}", *_EXTRAS))] = value


def _twice(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    """Name all keys of an object twice, the second time with another one's value."""
    if isinstance(node[key], dict) and node[key]:
        items = tuple(node[key].items())
        values = [value for _, value in items]
        rng.shuffle(values)
        again = zip([name for name, _ in items], values, strict=True)
        node[key] = Pairs((*items, *again))


def _repeat(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    """A part many times: too many breakpoints, messages, tools of one name, stops."""
    if isinstance(node, list):
        node[key:key] = [copy.deepcopy(node[key])] * rng.choice((1, 5, 60))


def _swap(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    """A value that belongs elsewhere."""
    other, at = rng.choice(places)
    node[key] = copy.deepcopy(other[at])


def _extra(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    if isinstance(node, dict):
        values = (1, "x", True, [{}], {"type": "ephemeral"}, Raw(rng.choice(VALUES)))
        node[rng.choice(_EXTRAS)] = rng.choice(values)


def _schema(node: Any, key: Any, rng: random.Random, places: Sequence[Place]) -> None:
    """Another schema where one stands, or where a part of one does."""
    schemas = [(n, k) for n, k in places if k in _SCHEMA_FIELDS]
    parts = [(n, k) for n, k in places if k in ("properties", "items", "name", "age", "type")]
    for choices in (schemas, parts) if rng.random() < 0.7 else (parts, schemas):
        if choices:
            node, key = rng.choice(choices)
            node[key] = copy.deepcopy(rng.choice(SCHEMAS))
            return
    node[key] = copy.deepcopy(rng.choice(SCHEMAS))


_SCHEMA_WAYS = (_schema,)
_TREE_WAYS = (
    *(_replace, _replace, _neighbour, _neighbour, _neighbour, _drop, _drop),
    *(_rename, _twice, _repeat, _swap, _extra),
)


def _cut(body: bytes, rng: random.Random) -> bytes:
    return body[: rng.randrange(len(body))]


def _flip(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.choice((1, 1, 3))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _insert(body: bytes, rng: random.Random) -> bytes:
    pieces = (
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"//x\n",
        b",",
        b"]",
        b'"',
        b"\\ud800",
        b"\xef\xbb\xbf",
    )
    at = rng.randrange(len(body) + 1)
    return body[:at] + rng.choice(pieces) + body[at:]


def _whole(body: bytes, rng: random.Random) -> bytes:
    """Something else than an object in UTF-8."""
    text = body.decode()
    others = (b"", b" ", b"null", b"5", b'"x"', b"[]", b"\xff" * 9, body + body, b"[" + body + b"]")
    coded = (text.encode("utf-16"), text.encode("utf-32"), b"\xef\xbb\xbf" + body, body[::-1])
    value = rng.choice(VALUES).encode()
    return rng.choice((*others, *coded, value, text.replace('"', "'").encode()))


_BYTE_WAYS = (_cut, _flip, _insert, _whole)


def _with_strange_headers(seed: Seed, rng: random.Random) -> Mutant:
    headers = dict(seed.headers)
    choice = rng.randrange(4)
    if choice == 0:
        headers.pop("content-type")
    elif choice == 1:
        headers["content-type"] = rng.choice(_TYPES)
    elif choice == 2 and "anthropic-version" in headers:
        headers["anthropic-version"] = rng.choice(_VERSIONS)
    else:
        headers["content-encoding"] = rng.choice(("gzip", "br", "nope"))
        headers["anthropic-beta"] = ",".join(["x"] * 500)
    body = json_text(_changed(copy.deepcopy(dict(seed.body)), rng, _TREE_WAYS))
    return Mutant(seed.method, seed.path, headers, body.encode())


def _elsewhere(seed: Seed, rng: random.Random) -> Mutant:
    """Ids and names in the path that are none, or a method that is not there."""
    name = rng.choice(_NAMES)
    body = json_text(seed.body).encode()
    places: list[tuple[str, str]] = [("PUT", seed.path), ("GET", f"{seed.path}/{name}")]
    if seed.path.startswith("/v1/responses"):
        places += [
            ("GET", f"/v1/responses/{name}"),
            ("DELETE", f"/v1/responses/{name}"),
            ("POST", f"/v1/responses/{name}/cancel"),
            ("GET", f"/v1/responses/{name}/input_items?limit={rng.choice((0, 5, 101, 'x'))}"),
        ]
    if seed.path.startswith("/v1beta/"):
        verb = rng.choice(("generateContent", "countTokens", "nothing", ""))
        places += [
            ("POST", f"/v1beta/models/{name}:{verb}"),
            ("GET", f"/v1beta/cachedContents/{name}"),
            ("DELETE", f"/v1beta/cachedContents/{name}"),
            ("PATCH", f"/v1beta/cachedContents/{name}"),
            ("GET", f"/v1beta/cachedContents?pageSize={rng.choice((-1, 0, 'x', 10**30))}"),
            ("GET", f"/v1beta/cachedContents?pageToken={name}"),
        ]
    method, path = rng.choice(places)
    return Mutant(method, path, seed.headers, b"" if method in ("GET", "DELETE") else body)
