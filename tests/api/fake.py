"""A backend without a model: it says what it is told to, one word a delta, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.api.backend import (
    BackendHealth,
    EncodedPrompt,
    GenerationRequest,
    PromptInput,
    ServedModel,
)
from ostinato.api.prompt import Prompt
from ostinato.cache.pool import PoolStats
from ostinato.cache.report import CacheReport
from ostinato.cache.types import MissReason, Tier
from ostinato.engine.metering import Metering
from ostinato.engine.outputs import FinishReason, OutputDelta, TokenLogprob, TopLogprob
from ostinato.engine.stats import EngineStats
from ostinato.models.tools.syntax import ToolCallStyle

MODEL = "tiny"
WORDS = ("Once", " upon", " a", " time")
PROMPT_TOKENS = 10
CACHED_TOKENS = 7
REPORT = CacheReport(
    prompt_tokens=PROMPT_TOKENS,
    read_by_tier={Tier.DEVICE: CACHED_TOKENS},
    miss_reason=MissReason.DIVERGED,
)


def logprob_of(position: int, word: str) -> TokenLogprob:
    rivals = (
        TopLogprob(position, word, word.encode(), -0.5),
        TopLogprob(99, "\ufffd", b"\xe2\x9c", float("-inf")),
    )
    return TokenLogprob(position, word, word.encode(), -0.5, rivals)


@dataclass
class FakeBackend:
    """See the module's docstring.

    Attributes:
        refuse: raised by `stream`.
        fail_after: number of deltas after which the generator raises `failure`.
        hang_after: number of deltas after which it waits for ever.
        finish: reason of the last delta.
        tool_call_style: that the model is said to have.
        requests: all that was asked, in order.
        cancelled: ids of the requests whose generator was closed before its end.
    """

    words: tuple[str, ...] = WORDS
    report: CacheReport = REPORT
    refuse: Exception | None = None
    failure: Exception | None = None
    fail_after: int | None = None
    hang_after: int | None = None
    finish: FinishReason = FinishReason.STOP
    alive: bool = True
    tool_call_style: ToolCallStyle | None = None
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    def models(self) -> Sequence[ServedModel]:
        style = self.tool_call_style
        return (ServedModel(MODEL, 1_700_000_000, "tests", 2048, "fp_0123", style),)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        self.requests.append(request)
        if self.refuse is not None:
            raise self.refuse
        return self._deltas(request)

    async def count(self, prompt: PromptInput) -> int:
        return len(prompt.messages) if isinstance(prompt, Prompt) else len(prompt)

    async def encode(self, prompt: PromptInput) -> EncodedPrompt:
        token_ids = np.arange(PROMPT_TOKENS, dtype=np.int32)
        if not isinstance(prompt, Prompt):
            return EncodedPrompt(prompt, token_ids)
        segments = prompt.segments()
        return EncodedPrompt(prompt, token_ids, segments, (None,) * len(segments))

    async def _deltas(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        sent = 0
        finished = False
        metering = Metering(request.meter)
        with metering.beginning():
            pass
        try:
            for position, word in enumerate(self.words):
                for index in range(request.params.n):
                    await self._maybe_stop(sent)
                    delta = self._delta(request, index, position, word)
                    metering.add(delta)
                    yield delta
                    sent += 1
            finished = True
        finally:
            if not finished:
                self.cancelled.append(request.request_id)
            metering.end()

    async def _maybe_stop(self, sent: int) -> None:
        if sent == self.fail_after:
            assert self.failure is not None
            raise self.failure
        if sent == self.hang_after:
            self.hanging.set()
            await asyncio.Event().wait()

    def _delta(
        self, request: GenerationRequest, index: int, position: int, word: str
    ) -> OutputDelta:
        last = position == len(self.words) - 1
        wants_logprobs = request.params.logprobs is not None
        return OutputDelta(
            request_id=request.request_id,
            index=index,
            text=word,
            token_ids=(position,),
            logprobs=(logprob_of(position, word),) if wants_logprobs else (),
            finish_reason=self.finish if last else None,
            stop_reason=None,
            report=self.report,
            num_output_tokens=position + 1,
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            running=2,
            waiting=3,
            blocks=PoolStats(
                total=100, free=50, in_use=30, cached=15, in_transfer=5, evicted_total=6
            ),
            prompt_tokens_total=1000,
            cached_tokens_total=700,
            computed_tokens_total=350,
            resumed_tokens_total=20,
            generated_tokens_total=40,
            preemptions_total=4,
            requests_finished_total={
                FinishReason.STOP: 8,
                FinishReason.LENGTH: 2,
                FinishReason.ERROR: 1,
            },
            steps_total=77,
            allocated_slots=480,
            used_slots=360,
            integrity_errors_total=0,
        )

    def health(self) -> BackendHealth:
        return BackendHealth(
            alive=self.alive,
            backend="fake",
            max_model_len=2048,
            pool_tokens=1600,
            num_blocks=100,
            block_size=16,
            min_cacheable_tokens=1,
            kv_bytes_per_token=512,
            max_num_seqs=2,
            max_waiting=3,
        )
