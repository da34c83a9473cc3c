"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Tag

from ostinato.api import unsupported
from ostinato.api.fields import (
    GenerationBody,
    Text,
    TokenId,
    require_stream_for_options,
    union_of,
)
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError, RequestError

DEFAULT_MAX_TOKENS = 16
"""OpenAI's and vLLM's default for this endpoint."""

MAX_PROMPTS = 1024
"""Most prompts in one call."""

_KINDS = "a string, a list of strings, a list of token ids or a list of lists of token ids"


def _prompt_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "~text"
    if not isinstance(value, list) or not value:
        return None
    first = value[0]
    if isinstance(first, str):
        return "~texts"
    return "~token_lists" if isinstance(first, list) else "~tokens"


class CompletionRequest(GenerationBody):
    """Body of a text completion."""

    prompt: Annotated[
        Annotated[Text, Tag("~text")]
        | Annotated[list[Text], Tag("~texts")]
        | Annotated[list[TokenId], Tag("~tokens")]
        | Annotated[list[list[TokenId]], Tag("~token_lists")],
        union_of(_prompt_kind, f"{_KINDS}, not empty"),
    ]
    max_tokens: int | None = Field(
        default=None,
        description=f"Most tokens to generate; default {DEFAULT_MAX_TOKENS}, or what fits.",
    )
    logprobs: int | None = None
    best_of: int | None = None

    def check(self) -> None:
        """Refuse what types alone cannot tell.

        Raises:
            InvalidRequestError: naming the field.
        """
        unsupported.refuse_unsupported(self.model_extra, unsupported.COMPLETIONS)
        if self.stream_options is not None:
            extra = self.stream_options.model_extra
            unsupported.refuse_unsupported(extra, unsupported.STREAM_OPTIONS, "stream_options.")
        require_stream_for_options(self)
        if self.best_of not in (None, self.n or 1):
            raise unsupported.unsupported("best_of", "generate with n and choose yourself")

    @property
    def clips_max_tokens(self) -> bool:
        return self.max_tokens is None

    def to_params(self) -> SamplingParams:
        """The engine's view.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        return self.sampling_params(max_tokens=max_tokens, logprobs=self.logprobs)

    def in_client_terms(self, error: RequestError) -> RequestError:
        """Unchanged: this dialect's names are the engine's."""
        return error

    def to_prompts(self) -> list[str | tuple[int, ...]]:
        """The prompts, one or many, each as text or as token ids.

        Raises:
            InvalidRequestError: there are too many.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [tuple(self.prompt)]
        if len(self.prompt) > MAX_PROMPTS:
            raise InvalidRequestError(
                f"prompt must have at most {MAX_PROMPTS} prompts, not {len(self.prompt)}: "
                "split them over several calls",
                param="prompt",
            )
        return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in self.prompt]
