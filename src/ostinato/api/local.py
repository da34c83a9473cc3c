"""LocalBackend: the engine in this process, behind the API's `Backend` contract.

Adds what the engine does not know: chat templates and tokenisation. Both run in worker threads, since a
long prompt takes a while and the event loop serves everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import numpy as np

from ostinato.api.backend import BackendHealth, GenerationRequest, PromptInput, ServedModel
from ostinato.api.prompt import Prompt
from ostinato.api.unsupported import UNSUPPORTED_CODE
from ostinato.cache.types import TokenArray
from ostinato.engine.async_engine import AsyncEngine
from ostinato.engine.outputs import OutputDelta
from ostinato.engine.request import EngineRequest
from ostinato.engine.stats import EngineStats
from ostinato.errors import InvalidRequestError
from ostinato.models.chat_template import ChatTemplate

OWNER = "ostinato"
_FINGERPRINT_DIGITS = 12


class LocalBackend:
    """Implements `Backend` over an `AsyncEngine`, whose start and stop are the caller's."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        model = engine.model
        self._served = ServedModel(
            id=engine.config.served_model_name or model.name,
            created=int(model.path.stat().st_mtime),
            owned_by=OWNER,
            max_model_len=engine.limits.max_model_len,
            fingerprint=f"fp_{model.digest.hex()[:_FINGERPRINT_DIGITS]}",
        )

    def models(self) -> Sequence[ServedModel]:
        return (self._served,)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        """See `Backend.stream`."""
        engine_request = EngineRequest(
            request_id=request.request_id,
            prompt_token_ids=await self._token_ids(request.prompt),
            params=request.params,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            priority=request.priority,
        )
        self._engine.validate(engine_request)
        return self._deltas(engine_request)

    async def count(self, prompt: PromptInput) -> int:
        """See `Backend.count`."""
        return len(await self._token_ids(prompt))

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
        )

    async def _deltas(self, request: EngineRequest) -> AsyncGenerator[OutputDelta, None]:
        """The engine's deltas; closing this closes the engine's iterator and so aborts the request."""
        deltas = cast(AsyncGenerator[OutputDelta, None], self._engine.generate(request))
        async with aclosing(deltas):
            async for delta in deltas:
                yield delta

    async def _token_ids(self, prompt: PromptInput) -> TokenArray:
        if isinstance(prompt, tuple):
            return np.array(prompt, dtype=np.int32)
        return np.array(await asyncio.to_thread(self._encode, prompt), dtype=np.int32)

    def _encode(self, prompt: Prompt | str) -> list[int]:
        if isinstance(prompt, Prompt):
            return self._encode_chat(prompt)
        return self._engine.model.tokenizer.encode_prompt(prompt)

    def _encode_chat(self, prompt: Prompt) -> list[int]:
        template = self._engine.model.chat_template
        if template is None:
            raise InvalidRequestError(
                f"the model {self._served.id!r} has no chat template: use /v1/completions",
                param="messages",
                code=UNSUPPORTED_CODE,
            )
        _require_support(template, prompt)
        text = template.render(
            prompt.template_messages(),
            tools=prompt.tools or None,
            add_generation_prompt=prompt.add_generation_prompt,
            **prompt.template_variables,
        )
        return self._engine.model.tokenizer.encode(_well_formed(text))


def _require_support(template: ChatTemplate, prompt: Prompt) -> None:
    """Refuse what the template would drop without a word."""
    if prompt.tools and not template.supports_tools:
        raise InvalidRequestError(
            "this model's chat template has no place for tools: describe them in the system message, "
            "or serve a model with tool support",
            param="tools",
            code=UNSUPPORTED_CODE,
        )
    if prompt.has_tool_calls and "tool_calls" not in template.source:
        raise InvalidRequestError(
            "this model's chat template has no place for tool_calls: write the call into the "
            "assistant message's content, or serve a model with tool support",
            param="messages",
            code=UNSUPPORTED_CODE,
        )


def _well_formed(text: str) -> str:
    """Tools and template variables are free-form JSON and may hold lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequestError(
            "tools and chat_template_kwargs must be valid Unicode text, without lone surrogates",
            param="tools",
        ) from None
    return text
