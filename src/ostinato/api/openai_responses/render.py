"""The response object, as it stands at any moment of its life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.api.openai_responses.request import ResponsesRequest, TextConfig
from ostinato.api.openai_responses.tools import shown_tools
from ostinato.api.usage import TokenUsage, responses_usage
from ostinato.product.diagnosis import OPENAI_REASONS, SETTINGS, Change, MissCause

_CACHEABLE_CHANGES = frozenset(SETTINGS) - {Change.MODEL}
"""Settings that need not cost anything: whether they did is seen by the tokens read."""


def response_object(
    body: ResponsesRequest, response_id: str, created: int, model: str
) -> dict[str, Any]:
    """At its beginning: what was asked for, repeated, and nothing generated."""
    reasoning = {"effort": None, "summary": None}
    if body.reasoning is not None:
        reasoning = body.reasoning.model_dump()
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_options": body.applied_options(),
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": reasoning,
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.is_stored,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": _text(body.text or TextConfig()),
        "tool_choice": body.tool_choice or "auto",
        "tools": shown_tools(body.tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
    }


def _text(text: TextConfig) -> dict[str, Any]:
    return {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"}


def finished(
    begun: Mapping[str, Any],
    output: Sequence[Mapping[str, Any]],
    usage: TokenUsage,
    completed: int,
    *,
    is_cut_off: bool,
) -> dict[str, Any]:
    """At its end; `completed` in Unix seconds."""
    ended = {**begun, "output": list(output), "usage": usage_object(usage)}
    if is_cut_off:
        reason = {"reason": "max_output_tokens"}
        return {**ended, "status": "incomplete", "incomplete_details": reason}
    return {**ended, "status": "completed", "completed_at": completed}


def failed(begun: Mapping[str, Any], code: str, message: str) -> dict[str, Any]:
    """Broken off by an error."""
    return {**begun, "status": "failed", "error": {"code": code, "message": message}}


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    """OpenAI's fields, and DeepSeek's two beside them."""
    return {
        **responses_usage(usage),
        "prompt_cache_hit_tokens": usage.read,
        "prompt_cache_miss_tokens": usage.prompt - usage.read,
    }


NOT_FOUND = {"type": "comparison_response_not_found"}
UNAVAILABLE = {"type": "unavailable"}


def diagnostics(cause: MissCause | None, usage: TokenUsage) -> dict[str, Any]:
    """``prompt_cache_diagnostics``, where the response to compare with is known.

    A change of settings alone is no miss if something was read all the same. Equal prompts of which nothing
    was read (expired, evicted, too short) have no reason of OpenAI's: ``unavailable``.
    """
    is_harmless = cause is None or cause.change in _CACHEABLE_CHANGES
    if usage.read and is_harmless:
        return {"type": "cache_hit"}
    if cause is None or cause.change not in OPENAI_REASONS:
        return UNAVAILABLE
    return {
        "type": "cache_miss",
        "reason": OPENAI_REASONS[cause.change],
        "cache_missed_tokens": cause.missed_tokens,
        "comparison_reusable_tokens": cause.reusable_tokens,
    }
