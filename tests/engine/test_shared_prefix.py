"""Guards what is shared between tenants on purpose: the public prompt is read and never written, what follows
it stays with its tenant, and who is not listed, or sent a salt, sees nothing of it. In pairs: each miss has a
hit beside it that shows that there was something to find."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.report import CacheReport
from ostinato.cache.types import MissReason, TenantId
from ostinato.engine.public_prompts import compute_prompt
from ostinato.engine.request import token_array
from tests.engine.harness import Engine, PrefixIndexName, expected_tokens, tokens

READERS = frozenset({TenantId("a"), TenantId("b")})


def sharing(
    public: list[int], *, readers: frozenset[TenantId] = READERS, **options: object
) -> Engine:
    engine = Engine(**options)  # type: ignore[arg-type]
    engine.core.share(compute_prompt(engine.core, token_array(public)), readers)
    return engine


def report(engine: Engine, name: str, prompt: list[int], **options: object) -> CacheReport:
    engine.add(name, prompt, max_tokens=3, ignore_eos=True, **options)
    answers = engine.run()
    assert answers[name, 0].tokens == expected_tokens(prompt, 3, ignore_eos=True)
    found = answers[name, 0].last.report
    assert found is not None
    return found


@pytest.mark.parametrize("length", [1, 3, 4, 5, 16, 23])
@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_a_reader_s_first_request_computes_only_what_follows_the_public_prompt(
    length: int, index: PrefixIndexName
) -> None:
    engine = sharing(tokens(length), prefix_index=index)
    shared = length if index == "radix" else length - length % 4
    for tenant in ("a", "b"):
        found = report(engine, f"{tenant} reads", [*tokens(length), *tokens(9, 1)], tenant=tenant)
        assert found.cached_tokens == shared


def test_who_is_not_listed_computes_everything() -> None:
    public = tokens(20)
    engine = sharing(public)
    assert report(engine, "stranger", [*public, 5], tenant="c").cached_tokens == 0
    assert report(engine, "reader", [*public, 5], tenant="a").cached_tokens == 20


def test_a_star_lists_everybody() -> None:
    public = tokens(20)
    engine = sharing(public, readers=frozenset({TenantId("*")}))
    assert report(engine, "anybody", [*public, 5], tenant="c").cached_tokens == 20


def test_a_salt_asks_to_share_with_nobody_and_gets_nothing_of_it() -> None:
    public = tokens(20)
    engine = sharing(public)
    assert report(engine, "salted", [*public, 5], tenant="a", salt="s").cached_tokens == 0
    assert report(engine, "unsalted", [*public, 5], tenant="a").cached_tokens == 20
    assert report(engine, "salted again", [*public, 5], tenant="a", salt="s").cached_tokens == 20


def test_what_follows_the_public_prompt_stays_with_its_tenant() -> None:
    public, tail = tokens(20), tokens(12, 1)
    engine = sharing(public)
    assert report(engine, "first", [*public, *tail, 5], tenant="a").cached_tokens == 20
    assert report(engine, "of another", [*public, *tail, 5], tenant="b").cached_tokens == 20
    assert report(engine, "of the same", [*public, *tail, 6], tenant="a").cached_tokens == 32


def test_reuse_of_a_public_prompt_ends_at_the_token_that_differs() -> None:
    public = tokens(20)
    engine = sharing(public)
    found = report(engine, "differs", [*public[:13], 63 - public[13] or 1, 4, 4], tenant="a")
    assert found.cached_tokens == 13
    assert found.miss_reason is MissReason.DIVERGED


def test_what_a_tenant_has_of_its_own_is_preferred_where_it_reaches_as_far() -> None:
    public = tokens(20)
    engine = sharing(public)
    report(engine, "first", [*public, 5, 6], tenant="a")
    found = report(engine, "second", [*public, 7, 8], tenant="a")
    assert found.cached_tokens == 20
    assert found.copied_tokens == 0  # whole blocks of its own


def test_the_public_prompt_outlives_any_traffic() -> None:
    public = tokens(20)
    engine = sharing(public, num_blocks=20)
    for number in range(20):
        engine.add(f"{number}", tokens(40, 10 + number), tenant="c", max_tokens=1)
        engine.run()
    assert engine.core.stats().blocks.evicted_total > 0
    assert report(engine, "reader", [*public, 5], tenant="a").cached_tokens == 20


def test_what_is_held_is_taken_off_the_largest_request() -> None:
    engine = sharing(tokens(20), num_blocks=20)
    limit = engine.core.limits.pool_tokens
    assert limit == (20 - 6) * 4
    report(engine, "largest", tokens(limit - 3, 1), tenant="a")


@settings(max_examples=40, deadline=None)
@given(
    public=st.integers(1, 24),
    asked=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 24),
            st.integers(1, 20),
            st.sampled_from([None, "s"]),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_sharing_never_changes_an_answer_and_loses_no_block(
    public: int, asked: list[tuple[str, int, int, str | None]]
) -> None:
    engine = sharing(tokens(public), num_blocks=32, max_num_seqs=3)
    held = engine.core.stats().blocks.in_use
    prompts = {}
    for number, (tenant, head, tail, salt) in enumerate(asked):
        prompt = [*tokens(public)[:head], *tokens(tail, number % 3)]
        prompts[f"{number}", 0] = prompt
        engine.add(f"{number}", prompt, tenant=tenant, salt=salt, max_tokens=4, ignore_eos=True)
    answers = engine.run()
    for name, prompt in prompts.items():
        assert answers[name].tokens == expected_tokens(prompt, 4, ignore_eos=True)
    engine.core.check_integrity()
    assert engine.core.stats().blocks.in_use == held
