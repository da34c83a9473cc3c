"""Guards pre-warming: a request that wants no answer computes all of its prompt and leaves nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinato.cache.types import Tier
from ostinato.engine.core import EngineCore
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.request import EngineRequest
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError
from ostinato.models.loader import LoadedModel
from tests.engine.tiny_engine import load_tiny, tiny_core

PROMPT = list(range(1, 100))
BLOCKS = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def core(model: LoadedModel, tmp_path: Path, request: pytest.FixtureRequest) -> EngineCore:
    index = getattr(request, "param", "radix")
    return tiny_core(model, tmp_path, cache={"num_blocks": BLOCKS, "prefix_index": index})


def run(core: EngineCore, *requests: EngineRequest) -> list[OutputDelta]:
    for one in requests:
        core.add_request(one)
    deltas: list[OutputDelta] = []
    while core.has_work:
        deltas += core.step()
    core.check_integrity()
    return deltas


def prewarm(name: str, tokens: list[int], **more: object) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        prompt_token_ids=np.array(tokens, dtype=np.int32),
        params=SamplingParams.prewarm(),
        **more,  # type: ignore[arg-type]
    )


def ask(name: str, tokens: list[int], max_tokens: int = 3) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    ids = np.array(tokens, dtype=np.int32)
    return EngineRequest(request_id=name, prompt_token_ids=ids, params=params)


def test_it_ends_with_one_delta_that_has_a_report_and_no_tokens(core: EngineCore) -> None:
    [delta] = run(core, prewarm("warm", PROMPT))
    assert (delta.text, delta.token_ids, delta.num_output_tokens) == ("", (), 0)
    assert delta.finish_reason is FinishReason.LENGTH
    assert delta.report is not None
    assert delta.report.computed_tokens == len(PROMPT)
    stats = core.stats()
    assert stats.generated_tokens_total == 0
    assert stats.requests_finished_total[FinishReason.LENGTH] == 1
    assert stats.blocks.in_use == 0


@pytest.mark.parametrize(("core", "reused"), [("radix", 99), ("block_hash", 96)], indirect=["core"])
def test_whoever_goes_on_from_there_reuses_all_of_it_the_last_token_too(
    core: EngineCore, reused: int
) -> None:
    run(core, prewarm("warm", PROMPT))
    report = run(core, ask("next", [*PROMPT, 7, 8]))[-1].report
    assert report is not None
    assert report.read_by_tier == {Tier.DEVICE: reused}


def test_a_warm_prompt_costs_one_token(core: EngineCore) -> None:
    run(core, prewarm("warm", PROMPT))
    [delta] = run(core, prewarm("again", PROMPT))
    assert delta.report is not None
    assert delta.report.computed_tokens == 1


def test_it_runs_beside_others_and_changes_none_of_their_tokens(
    model: LoadedModel, tmp_path: Path
) -> None:
    alone = run(tiny_core(model, tmp_path / "a"), ask("x", PROMPT))
    together = run(
        tiny_core(model, tmp_path / "b"), ask("x", PROMPT), prewarm("warm", PROMPT[::-1])
    )
    tokens = [d.token_ids for d in together if d.request_id == "x"]
    assert tokens == [d.token_ids for d in alone]


def test_a_prompt_as_long_as_the_context_can_be_warmed(core: EngineCore) -> None:
    limit = min(core.limits.max_model_len, core.limits.pool_tokens)
    [delta] = run(core, prewarm("warm", [n % 50 + 1 for n in range(limit)]))
    assert delta.finish_reason is FinishReason.LENGTH


def test_no_other_way_asks_for_no_tokens() -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens must be at least 1"):
        SamplingParams(max_tokens=0)


def test_promises_lie_on_the_prefix_that_they_name_and_keep_it(core: EngineCore) -> None:
    run(core, prewarm("kept", PROMPT, retain=((40, 300.0),)))
    for n in range(4):
        run(core, prewarm(f"traffic {n}", [100 + n, *(k % 90 + 1 for k in range(120 + n))]))
    report = run(core, ask("back", PROMPT))[-1].report
    assert report is not None
    assert report.cached_tokens == 48  # 40 tokens lie in three blocks of 16
