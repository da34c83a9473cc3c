"""Guards the arithmetic of K/V memory: figures that people buy machines by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cli.kv_memory import HeadLayout, KVPlan, LatentLayout, compare_head_counts
from ostinato.errors import ConfigError

LLAMA_3_8B = HeadLayout(layers=32, kv_heads=8, head_dim=128)
small = st.integers(1, 128)


def test_llama_3_8b_takes_512_mib_for_4096_tokens_in_fp16() -> None:
    plan = KVPlan(LLAMA_3_8B, kv_bytes=2, context=4096, batch=1)
    assert plan.bytes_per_token == 128 * 1024
    assert plan.bytes_total == 512 * 2**20


def test_a_batch_multiplies_what_one_context_takes() -> None:
    plan = KVPlan(LLAMA_3_8B, kv_bytes=2, context=4096, batch=3)
    assert plan.bytes_per_context == 512 * 2**20
    assert plan.bytes_total == 3 * plan.bytes_per_context


def test_mla_keeps_one_latent_and_one_rotated_part_a_layer() -> None:
    plan = KVPlan(LatentLayout(layers=61, latent=512, rope=64), kv_bytes=2, context=1, batch=1)
    assert plan.bytes_total == (512 + 64) * 61 * 2


def test_four_bit_elements_take_half_a_byte() -> None:
    plan = KVPlan(LLAMA_3_8B, kv_bytes=0.5, context=4096, batch=1)
    assert plan.bytes_total == 128 * 2**20


def test_what_fits_is_rounded_down_to_whole_tokens_and_contexts() -> None:
    plan = KVPlan(LLAMA_3_8B, kv_bytes=2, context=1000, batch=1)
    memory = 2500 * 128 * 1024 - 1
    assert plan.tokens_in(memory) == 2499
    assert plan.contexts_in(memory) == 2


@given(small, small, small, st.sampled_from([KVDtype.FP16, KVDtype.FP32]))
def test_the_plan_agrees_with_what_the_cache_allocates(
    layers: int, kv_heads: int, head_dim: int, dtype: KVDtype
) -> None:
    spec = KVCacheSpec(layers, kv_heads, head_dim, dtype, block_size=16)
    plan = KVPlan(HeadLayout(layers, kv_heads, head_dim), dtype.numpy.itemsize, 16, 1)
    assert plan.bytes_per_token == spec.bytes_per_token
    assert plan.bytes_per_context == spec.bytes_per_block


def test_mha_gqa_and_mqa_are_compared_by_their_head_counts() -> None:
    rows = compare_head_counts(KVPlan(LLAMA_3_8B, 2, 4096, 1), heads=32)
    assert [(row.kind, row.kv_heads, row.share_of_mha) for row in rows] == [
        ("MHA", 32, 1.0),
        ("GQA", 8, 0.25),
        ("MQA", 1, 1 / 32),
    ]
    assert [row.plan.bytes_total for row in rows] == [2**31, 2**29, 2**26]


@pytest.mark.parametrize(("kv_heads", "kinds"), [(32, ["MHA", "MQA"]), (1, ["MHA", "MQA"])])
def test_a_model_that_is_mha_or_mqa_itself_is_listed_once(kv_heads: int, kinds: list[str]) -> None:
    rows = compare_head_counts(KVPlan(HeadLayout(2, kv_heads, 8), 2, 1, 1), heads=32)
    assert [row.kind for row in rows] == kinds


def test_query_heads_that_cannot_share_the_kv_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple"):
        compare_head_counts(KVPlan(LLAMA_3_8B, 2, 4096, 1), heads=30)


def test_head_counts_mean_nothing_for_mla() -> None:
    with pytest.raises(ConfigError, match="MLA"):
        compare_head_counts(KVPlan(LatentLayout(61, 512, 64), 2, 4096, 1), heads=128)


@pytest.mark.parametrize("field", ["kv_bytes", "context", "batch"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_numbers_that_cannot_be_are_refused_by_name(field: str, value: float) -> None:
    load = {"kv_bytes": 2.0, "context": 1, "batch": 1, field: value}
    with pytest.raises(ConfigError, match=field):
        KVPlan(LLAMA_3_8B, **load)  # type: ignore[arg-type]
