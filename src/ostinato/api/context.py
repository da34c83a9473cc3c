"""What the routes share, and how a call becomes requests to the backend."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.api.backend import Backend, EncodedPrompt, GenerationRequest, ServedModel
from ostinato.api.billing import Billing
from ostinato.api.fields import GenerationBody
from ostinato.api.recording import Recording
from ostinato.cache.types import TenantId
from ostinato.clock import Clock
from ostinato.engine.reasoning import allow_reasoning
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import RequestError
from ostinato.insight.metrics import ServerMetrics
from ostinato.product.entries import CacheScope
from ostinato.product.prompt_cache import CachedRequest, PromptCache


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Handed to every router.

    Attributes:
        backend: generates.
        metrics: of this server.
        clock: for timestamps in answers.
        started: monotonic seconds at which the server was made.
        prompt_cache: house rules and entries.
    """

    backend: Backend
    metrics: ServerMetrics
    clock: Clock
    started: float
    prompt_cache: PromptCache

    def plan(
        self,
        model: ServedModel,
        prompt: EncodedPrompt,
        *,
        tenant: TenantId,
        salt: str | None = None,
        accounting_key: str | None = None,
    ) -> CachedRequest:
        """What a request that begins now may read from the prompt cache and will write to it."""
        scope = CacheScope(tenant, f"{model.id} {model.fingerprint}", salt, accounting_key)
        return self.prompt_cache.plan(
            scope,
            prompt.token_ids,
            prompt.segments,
            prompt.boundaries,
            prompt.implicit_breakpoint,
        )

    def served_model(self, name: str) -> ServedModel:
        """The model of that name.

        Raises:
            RequestError: ``model_not_found``, listing what is served.
        """
        models = self.backend.models()
        for model in models:
            if model.id == name:
                return model
        served = ", ".join(repr(model.id) for model in models)
        raise RequestError(
            f"the model {name[:200]!r} is not served here; served: {served}",
            param="model",
            code="model_not_found",
        )


def new_answer_id(prefix: str) -> str:
    """Id of an answer. Never part of a prompt."""
    return f"{prefix}{secrets.token_hex(12)}"


async def prepare(
    context: ApiContext,
    model: ServedModel,
    answer_id: str,
    tenant: TenantId,
    body: GenerationBody,
    params: SamplingParams,
    recording: Recording,
) -> tuple[list[GenerationRequest], Billing]:
    """Encode a body's prompts, then `to_requests`.

    Raises:
        RequestError: a prompt cannot be rendered, or a caching field is wrong.
    """
    prompts = [await context.backend.encode(prompt) for prompt in body.to_prompts()]
    return to_requests(context, model, answer_id, tenant, body, params, recording, prompts)


def to_requests(
    context: ApiContext,
    model: ServedModel,
    answer_id: str,
    tenant: TenantId,
    body: GenerationBody,
    params: SamplingParams,
    recording: Recording,
    prompts: Sequence[EncodedPrompt],
) -> tuple[list[GenerationRequest], Billing]:
    """One request a prompt, with ids that are unique in this process, and how they will be billed and recorded.

    Raises:
        RequestError: a caching field is wrong.
    """
    retention_seconds = body.retention_seconds()
    planned = [
        context.plan(
            model,
            prompt,
            tenant=tenant,
            salt=body.cache_salt,
            accounting_key=body.accounting_key,
        )
        for prompt in prompts
    ]
    meters = [recording.meter() for _ in prompts]
    requests = [
        GenerationRequest(
            request_id=answer_id if len(prompts) == 1 else f"{answer_id}-{index}",
            model=body.model,
            prompt=prompt,
            params=allow_reasoning(params, prompt.reasoning),
            tenant=tenant,
            cache_salt=body.cache_salt,
            retain=(*cached.plan.retain, *whole_prompt(prompt, retention_seconds)),
            priority=body.priority or 0,
            clips_max_tokens=body.clips_max_tokens,
            meter=meters[index],
        )
        for index, (prompt, cached) in enumerate(zip(prompts, planned, strict=True))
    ]
    return requests, Billing(context.prompt_cache, planned, meters)


def whole_prompt(prompt: EncodedPrompt, seconds: float | None) -> tuple[tuple[int, float], ...]:
    """The promise that all of a prompt stays for so long, as `GenerationRequest.retain` has it; None: no
    promise."""
    return () if seconds is None else ((len(prompt.token_ids), seconds),)
