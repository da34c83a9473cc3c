"""Computing what a cache object stands for, and having its K/V kept.

The object's tokens are those that every prompt begins with that goes on from it: its content is rendered with a
user's text behind it, and what lies before that text is the object's, see `contents.CachedPrompt`.
"""

from __future__ import annotations

from starlette.requests import Request

from ostinato.api.backend import EncodedPrompt, GenerationRequest, ServedModel
from ostinato.api.billing import Billing
from ostinato.api.context import ApiContext, new_answer_id
from ostinato.api.gemini.contents import build_prompt
from ostinato.api.gemini.request import in_client_terms
from ostinato.api.gemini.wire import Content, Part, PrefixFields
from ostinato.api.generation import collect, open_streams
from ostinato.api.recording import recording_of
from ostinato.api.tenants import tenant_of
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError, RequestError

_PROBE = PrefixFields(contents=[Content(role="user", parts=[Part(text="a")])])
TOO_SMALL = "cached_content_too_small"


async def object_prompt(
    context: ApiContext, model: ServedModel, fields: PrefixFields
) -> EncodedPrompt:
    """The tokens of an object.

    Raises:
        RequestError: it cannot be rendered, is too small, or this server caches no prefixes.
    """
    if context.backend.health().min_cacheable_tokens is None:
        raise InvalidRequestError(
            "this server was started with --prefix-index none: there is no cache to keep an object in"
        )
    composed = build_prompt(_PROBE, fields)
    try:
        encoded = await context.backend.encode(composed.prompt)
    except RequestError as error:
        raise in_client_terms(error) from error
    total = composed.cached_tokens(encoded.boundaries)
    least = max(context.prompt_cache.rules.min_tokens, 1)
    if total < least:
        raise InvalidRequestError(
            f"the cached content is too small: total_token_count={total}, min_total_token_count={least}",
            param="contents",
            code=TOO_SMALL,
        )
    token_ids = encoded.token_ids[:total]
    return EncodedPrompt(tuple(token_ids.tolist()), token_ids)


async def prefill(
    context: ApiContext,
    request: Request,
    model: ServedModel,
    prompt: EncodedPrompt,
    seconds: float,
) -> None:
    """Compute an object's tokens, as far as they are not cached, and promise their K/V for so long.

    Raises:
        RequestError: they fit neither context nor pool.
    """
    timer = context.metrics.start_request()
    recording = recording_of(request.scope)
    recording.timer = timer
    tenant = tenant_of(request.scope)
    planned = context.plan(model, prompt, tenant=tenant)
    meter = recording.meter()
    generation = GenerationRequest(
        request_id=new_answer_id("cache-"),
        model=model.id,
        prompt=prompt,
        params=SamplingParams.prewarm(),
        tenant=tenant,
        retain=((len(prompt.token_ids), seconds),),
        meter=meter,
    )
    try:
        streams = await open_streams(context.backend, [generation])
    except RequestError as error:
        raise in_client_terms(error) from error
    billing = Billing(context.prompt_cache, [planned], [meter])
    await collect(streams, 1, timer, billing)
