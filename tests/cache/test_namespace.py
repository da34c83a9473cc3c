"""Guards isolation at its root: no two scopes may ever share a key, and keys must survive a restart."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.namespace import CacheNamespace, NamespaceFactory, load_or_create_secret
from ostinato.cache.types import TenantId
from ostinato.errors import ConfigError

BASE = CacheNamespace(TenantId("acme"), model_digest=b"m" * 32, kv_digest=b"k" * 32)
FACTORY = NamespaceFactory(b"s" * 32)


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": TenantId("other")},
        {"model_digest": b"n" * 32},
        {"kv_digest": b"l" * 32},
        {"salt": "x"},
        {"salt": ""},
        {"adapter": "x"},
        {"sparsity": "x"},
    ],
)
def test_every_part_of_a_namespace_changes_its_key(change: dict[str, object]) -> None:
    assert FACTORY.key(dataclasses.replace(BASE, **change)) != FACTORY.key(BASE)  # type: ignore[arg-type]


def test_a_salt_an_adapter_and_a_policy_of_one_name_do_not_collide() -> None:
    keys = {
        FACTORY.key(dataclasses.replace(BASE, **{part: "x"}))  # type: ignore[arg-type]
        for part in ("salt", "adapter", "sparsity")
    }
    assert len(keys) == 3


@given(
    st.tuples(st.text(max_size=4), st.text(max_size=4)),
    st.tuples(st.text(max_size=4), st.text(max_size=4)),
)
def test_text_cannot_be_moved_between_tenant_and_salt(
    one: tuple[str, str], two: tuple[str, str]
) -> None:
    keys = [
        FACTORY.key(dataclasses.replace(BASE, tenant=TenantId(tenant), salt=salt))
        for tenant, salt in (one, two)
    ]
    assert (keys[0] == keys[1]) == (one == two)


def test_one_secret_gives_one_key_in_every_process_and_another_secret_another() -> None:
    assert FACTORY.key(BASE) == NamespaceFactory(b"s" * 32).key(BASE)
    assert FACTORY.key(BASE) != NamespaceFactory(b"t" * 32).key(BASE)
    pinned = "3413"
    assert len(FACTORY.key(BASE)) == 32
    assert FACTORY.key(BASE).hex()[:4] == pinned, "keys on disk would no longer be found"


def test_the_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret"
    secret = load_or_create_secret(path)
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_secret(path) == secret


def test_a_secret_that_can_be_neither_read_nor_made_is_told_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "secret").mkdir(parents=True)
    for path in (tmp_path / "file" / "secret", tmp_path / "folder" / "secret"):
        with pytest.raises(ConfigError, match=r"can be neither read nor made .*--data-dir"):
            load_or_create_secret(path)


def test_a_damaged_secret_is_refused_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="delete it to make a new secret"):
        load_or_create_secret(path)
    with pytest.raises(ConfigError, match="at least 32 bytes"):
        NamespaceFactory(b"short")
