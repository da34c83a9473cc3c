"""LocalBackend: the engine in this process, behind the API's `Backend` contract.

Adds what the engine does not know: chat templates and tokenisation. Both run in worker threads, since a
long prompt takes a while and the event loop serves everybody else.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import numpy as np

from ostinato.api.backend import (
    BackendHealth,
    EncodedPrompt,
    GenerationRequest,
    PromptInput,
    ServedModel,
)
from ostinato.api.prompt import Prompt
from ostinato.engine.async_engine import AsyncEngine
from ostinato.engine.outputs import OutputDelta, RequestMeter
from ostinato.engine.request import EngineRequest, token_array
from ostinato.engine.stats import EngineStats
from ostinato.models.chat_encoding import encode_segments
from ostinato.models.reasoning.syntax import choose_reasoning, reasoning_of
from ostinato.models.tools.syntax import choose_style

OWNER = "ostinato"
_FINGERPRINT_DIGITS = 12


def _fingerprint(engine: AsyncEngine) -> str:
    """Names what decides, besides the request, which tokens come out: weights, K/V format, kernels."""
    model, cache = engine.model, engine.config.cache
    kv_format = model.config.kv_spec(cache.kv_dtype, cache.block_size)
    parts = (model.digest, kv_format.digest(), model.decoder.backend.name.encode())
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return f"fp_{hashlib.sha256(digests).hexdigest()[:_FINGERPRINT_DIGITS]}"


class LocalBackend:
    """Implements `Backend` over an `AsyncEngine`, whose start and stop are the caller's."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        model = engine.model
        source = None if model.chat_template is None else model.chat_template.source
        self._reasoning = choose_reasoning(engine.config.reasoning_parser, source)
        self._served = ServedModel(
            id=engine.config.served_model_name or model.name,
            created=int(model.path.stat().st_mtime),
            owned_by=OWNER,
            max_model_len=engine.limits.max_model_len,
            fingerprint=_fingerprint(engine),
            tool_call_style=choose_style(engine.config.tool_call_parser, source),
            end_token_ids=model.tokenizer.eos_token_ids,
        )

    def models(self) -> Sequence[ServedModel]:
        return (self._served,)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        """See `Backend.stream`."""
        engine_request = EngineRequest(
            request_id=request.request_id,
            prompt_token_ids=request.prompt.token_ids,
            params=request.params,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            retain=request.retain,
            priority=request.priority,
        )
        if request.clips_max_tokens:
            engine_request = self._engine.limits.clip_max_tokens(engine_request)
        self._engine.validate(engine_request)
        if request.params.grammar is not None:
            await asyncio.to_thread(self._engine.grammars.compile, request.params.grammar)
        return self._deltas(engine_request, request.meter)

    async def count(self, prompt: PromptInput) -> int:
        """See `Backend.count`."""
        return len((await self.encode(prompt)).token_ids)

    async def encode(self, prompt: PromptInput) -> EncodedPrompt:
        """See `Backend.encode`."""
        if isinstance(prompt, tuple):
            return EncodedPrompt(prompt, token_array(prompt))
        return await asyncio.to_thread(self._encode, prompt)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def health(self) -> BackendHealth:
        limits = self._engine.limits
        return BackendHealth(
            alive=self._engine.is_running,
            backend=self._engine.model.decoder.backend.name,
            max_model_len=limits.max_model_len,
            pool_tokens=limits.pool_tokens,
            num_blocks=limits.num_blocks,
            block_size=limits.block_size,
            min_cacheable_tokens=limits.min_cacheable_tokens,
            kv_bytes_per_token=limits.kv_bytes_per_token,
            max_num_seqs=limits.max_num_seqs,
            max_waiting=self._engine.config.scheduler.max_waiting,
        )

    async def _deltas(
        self, request: EngineRequest, meter: RequestMeter | None
    ) -> AsyncGenerator[OutputDelta, None]:
        """The engine's deltas; closing this closes the engine's iterator and so aborts the request."""
        deltas = cast(AsyncGenerator[OutputDelta, None], self._engine.generate(request, meter))
        async with aclosing(deltas):
            async for delta in deltas:
                yield delta

    def _encode(self, prompt: Prompt | str) -> EncodedPrompt:
        model, max_model_len = self._engine.model, self._engine.limits.max_model_len
        if isinstance(prompt, str):
            model.tokenizer.require_fit(prompt, max_model_len)
            token_ids = np.array(model.tokenizer.encode_prompt(prompt), dtype=np.int32)
            return EncodedPrompt(prompt, token_ids)
        chat = encode_segments(
            model,
            prompt.template_messages(),
            tools=prompt.template_tools(),
            add_generation_prompt=prompt.add_generation_prompt,
            variables=prompt.template_variables,
            max_model_len=max_model_len,
        )
        thinks = reasoning_of(self._reasoning, chat.text_end)
        return EncodedPrompt(prompt, chat.token_ids, prompt.segments(), chat.boundaries, thinks)
