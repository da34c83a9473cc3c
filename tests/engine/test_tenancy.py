"""Guards what the settings about tenants come to: whose share and whose budget is what."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ostinato.cache.identity import BlockIdentity
from ostinato.cache.tiers.record import BlockRecord
from ostinato.cache.types import BlockHash, TenantId, tenant_id
from ostinato.config_sections import SharedPrompt, TenantConfig
from ostinato.engine.tenancy import tenant_budgets, tenant_service

CONFIG = TenantConfig.model_validate(
    {
        "limits": {
            "acme": {"weight": 2, "num_blocks": 10, "ram_bytes": "1KiB"},
            "globex": {"num_blocks": 0},
            "*": {"weight": 0.5, "num_blocks": 5, "disk_bytes": 7},
        }
    }
)


@pytest.mark.parametrize(("tenant", "price"), [("acme", 50), ("globex", 200), ("another", 200)])
def test_weights_are_the_tenant_s_own_or_everybody_s(tenant: str, price: float) -> None:
    assert tenant_service(CONFIG).price(TenantId(tenant), 100) == price


@pytest.mark.parametrize(
    ("tenant", "blocks", "ram", "disk"),
    [("acme", 10, 1024, 7), ("globex", 0, None, 7), ("another", 5, None, 7)],
)
def test_budgets_are_the_tenant_s_own_or_everybody_s_or_unlimited(
    tenant: str, blocks: int | None, ram: int | None, disk: int | None
) -> None:
    places = ("num_blocks", "ram_bytes", "disk_bytes")
    found = [tenant_budgets(CONFIG, place).limit(TenantId(tenant)) for place in places]
    assert found == [blocks, ram, disk]


def test_without_settings_all_weigh_the_same_and_nobody_is_bounded() -> None:
    assert tenant_service(TenantConfig()).price(TenantId("a"), 100) == 100
    assert tenant_budgets(TenantConfig(), "num_blocks").limit(TenantId("a")) is None


@pytest.mark.parametrize("text", [{}, {"system_prompt": "a", "file": "b"}])
def test_a_shared_prompt_has_one_text(text: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="give one of system_prompt and file"):
        SharedPrompt.model_validate({"name": "a", "tenants": ["b"], **text})


@pytest.mark.parametrize("name", ["", "a b", "ä" * 64, "a" * 65, "**"])
def test_a_name_that_no_tenant_can_have_is_refused_where_it_is_set(name: str) -> None:
    with pytest.raises(ValidationError, match="cannot be the name of a tenant"):
        TenantConfig.model_validate({"limits": {name: {"num_blocks": 1}}})
    with pytest.raises(ValidationError, match="cannot be the name of a tenant"):
        SharedPrompt.model_validate({"name": "a", "tenants": [name], "system_prompt": "b"})


def test_every_name_that_a_tenant_can_have_fits_into_a_record() -> None:
    longest = tenant_id("a" * 64)
    identity = BlockIdentity(BlockHash(b"k" * 32), None, 0, longest)
    packed = BlockRecord(identity, 0, 1, None, 0.0, 0.0).pack()
    assert BlockRecord.unpack(packed).identity.tenant == longest
