"""OpenAI's fields about prompt caching, as Chat Completions and Responses both have them.

| field                               | what comes of it                                                       |
|-------------------------------------|------------------------------------------------------------------------|
| `prompt_cache_breakpoint` of a part | an explicit breakpoint at its end                                      |
| `prompt_cache_options.mode`         | implicit (default): one more breakpoint, where the house rules say     |
| `prompt_cache_options.ttl`          | lifetime class of breakpoints without one of their own: 30m, 12h       |
| `prompt_cache_retention`            | the same for the implicit one, where there is no `ttl`: in_memory, 24h |
| `prompt_cache_key`                  | entries of the prompt cache are shared under equal keys only           |

Seconds come from the house rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ostinato.api.fields import ApiModel, Text
from ostinato.api.prompt import Breakpoint, TTLClass
from ostinato.api.unsupported import unsupported

MAX_KEY_CHARACTERS = 1024

BreakpointOf: TypeAlias = "Callable[[BreakpointField | None], Breakpoint | None]"
"""What a part's marker means in its request."""
TTLName: TypeAlias = Literal["30m", "12h"]
_CLASSES: dict[str | None, TTLClass] = {
    None: TTLClass.SHORT,
    "30m": TTLClass.SHORT,
    "12h": TTLClass.LONG,
    "in_memory": TTLClass.SHORT,
    "24h": TTLClass.LONG,
}


class BreakpointField(ApiModel):
    """Cache everything up to the end of this part."""

    mode: Literal["explicit"]
    ttl: TTLName | None = None


class PromptCacheOptions(ApiModel):
    """How to cache this prompt."""

    mode: Literal["implicit", "explicit"] | None = Field(
        default=None, description="explicit: only where `prompt_cache_breakpoint` says so."
    )
    ttl: TTLName | None = None
    prewarm: bool | None = Field(
        default=None, description="Fill the cache, generate nothing. Responses only."
    )
    comparison_response_id: Text | None = Field(
        default=None,
        description="Tell in `prompt_cache_diagnostics` what keeps this request from reading what that one "
        "left. Responses only.",
    )


class CachingFields(ApiModel):
    """Of a whole request."""

    prompt_cache_key: Annotated[Text, Field(max_length=MAX_KEY_CHARACTERS)] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None

    @property
    def cache_options(self) -> PromptCacheOptions:
        return self.prompt_cache_options or PromptCacheOptions()

    def implicit_breakpoint(self) -> Breakpoint | None:
        """None in explicit mode."""
        options = self.cache_options
        if options.mode == "explicit":
            return None
        return Breakpoint(_CLASSES[options.ttl or self.prompt_cache_retention], explicit=False)

    def breakpoint_of(self, field: BreakpointField | None) -> Breakpoint | None:
        """Of a part; without a lifetime of its own it has the request's."""
        if field is None:
            return None
        return Breakpoint(_CLASSES[field.ttl or self.cache_options.ttl])

    def refuse_what_responses_has(self) -> None:
        """Refuse the options that Chat Completions lacks.

        Raises:
            InvalidRequestError: one is given.
        """
        for name in ("prewarm", "comparison_response_id"):
            if getattr(self.cache_options, name):
                raise unsupported(
                    f"prompt_cache_options.{name}", "Chat Completions lacks it: use /v1/responses"
                )

    def applied_options(self) -> dict[str, Any]:
        """`prompt_cache_options` as the response repeats them."""
        options = self.cache_options
        applied: dict[str, Any] = {"mode": options.mode or "implicit", "ttl": options.ttl or "30m"}
        if options.comparison_response_id is not None:
            applied["comparison_response_id"] = options.comparison_response_id
        return applied
