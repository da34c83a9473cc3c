"""The pieces that request models are made of: strict types, and the sampling fields both dialects share.

A boolean is not an integer here and ``"5"`` is not 5: what a client got wrong is said, not guessed.
Unknown fields are accepted and ignored, as vLLM does, except those that `unsupported` knows would change
the answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from ostinato.api import structured
from ostinato.api.backend import PromptInput, ServedModel
from ostinato.cache.retention import parse_ttl
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError, RequestError

MAX_SALT_CHARACTERS = 1024
MAX_CACHE_TTL = 7 * 24 * 3600
"""Seconds."""
MAX_TOKEN_ID = 2**31 - 1
_MAX_TOKEN_ID_DIGITS = len(str(MAX_TOKEN_ID))
NO_EFFORT = "none"
"""OpenAI's word for a model that is not to think."""
TAG_PREFIX = "~"
"""Marks the parts of an error's location that name a branch of a union and not a field."""


def _well_formed(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise PydanticCustomError(
            "malformed_text", "must be valid Unicode text, not text with a lone surrogate"
        ) from None
    return text


Text = Annotated[str, AfterValidator(_well_formed)]
"""A string that can be written as UTF-8. JSON can smuggle in lone surrogates, which cannot."""

Salt = Annotated[
    str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS), AfterValidator(_well_formed)
]

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]


def union_of(kind: Callable[[Any], str | None], expected: str) -> Discriminator:
    """A union whose branch is chosen by the value's JSON type, so that errors speak of one branch only."""
    return Discriminator(kind, custom_error_type="wrong_kind", custom_error_message=expected)


def text_or_list(value: Any) -> str | None:
    if isinstance(value, str):
        return f"{TAG_PREFIX}text"
    return f"{TAG_PREFIX}list" if isinstance(value, list) else None


def _text_or_number(value: Any) -> str | None:
    if isinstance(value, str):
        return f"{TAG_PREFIX}text"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{TAG_PREFIX}number" if is_number else None


class ApiModel(BaseModel):
    """Base of all request models."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class StreamOptions(ApiModel):
    """How to stream."""

    include_usage: bool | None = Field(
        default=None, description="Send one last chunk without choices that carries `usage`."
    )


class SamplingFields(ApiModel):
    """What chat and text completions have in common. Names that OpenAI lacks are vLLM's."""

    model: Text = Field(description="Name of a served model; see /v1/models.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(
        default=None, description="Answers to generate; the prompt is computed once."
    )
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(
        default=None, description="Keep the k likeliest tokens; 0 or −1: all."
    )
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: (
        Annotated[
            Annotated[Text, Tag("~text")] | Annotated[list[Text], Tag("~list")],
            union_of(text_or_list, "a string or a list of strings"),
        ]
        | None
    ) = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    response_format: dict[str, Any] | None = Field(
        default=None, description="Answers that are JSON: json_object or json_schema."
    )
    structured_outputs: dict[str, Any] | None = Field(
        default=None, description="One of json, json_object, regex, choice, grammar (Lark)."
    )
    guided_json: dict[str, Any] | None = None
    guided_regex: Text | None = None
    guided_choice: list[Text] | None = None
    guided_grammar: Text | None = None
    cache_salt: Salt | None = Field(
        default=None, description="Share cached K/V only with requests that send the same salt."
    )
    cache_ttl: (
        Annotated[
            Annotated[Text, Tag("~text")] | Annotated[float, Tag("~number")],
            union_of(_text_or_number, "seconds, or a text like '5m' or '1h'"),
        ]
        | None
    ) = Field(
        default=None,
        description="Keep this prompt's K/V for so long after each use: seconds, '5m' or '1h'.",
    )
    priority: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = Field(
        default=None, description="Lower runs earlier."
    )

    @property
    def streams(self) -> bool:
        return self.stream is True

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage is True

    def sampling_params(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """The engine's view of these fields; null means the default.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        given: dict[str, Any] = {
            "n": self.n,
            "min_tokens": self.min_tokens,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed,
            "stop": None if stop is None else tuple(stop),
            "stop_token_ids": None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            "ignore_eos": self.ignore_eos,
            "logit_bias": self._logit_bias(),
            "skip_special_tokens": self.skip_special_tokens,
            "max_tokens": max_tokens,
            "logprobs": logprobs,
        }
        return SamplingParams(**{name: v for name, v in given.items() if v is not None})

    def _guided_fields(self) -> dict[str, Any]:
        names = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
        return {name: getattr(self, name) for name in names}

    def retention_seconds(self) -> float | None:
        """`cache_ttl` in seconds.

        Raises:
            InvalidRequestError: it is no duration, or longer than `MAX_CACHE_TTL`.
        """
        if self.cache_ttl is None:
            return None
        try:
            seconds = parse_ttl(self.cache_ttl)
        except ValueError as error:
            raise InvalidRequestError(f"cache_ttl: {error}", param="cache_ttl") from error
        if seconds > MAX_CACHE_TTL:
            raise InvalidRequestError(
                f"cache_ttl must be at most {MAX_CACHE_TTL} seconds (7d), not {self.cache_ttl!r}",
                param="cache_ttl",
            )
        return seconds

    def _logit_bias(self) -> dict[int, float] | None:
        if self.logit_bias is None:
            return None
        biases = {}
        for key, bias in self.logit_bias.items():
            if not _spells_token_id(key):
                raise InvalidRequestError(
                    f"logit_bias must map token ids to numbers; {key[:40]!r} is not a token id",
                    param="logit_bias",
                )
            biases[int(key)] = bias
        return biases


class GenerationBody(SamplingFields, ABC):
    """A whole request body: what a call needs of each dialect."""

    @property
    def clips_max_tokens(self) -> bool:
        """Whether `max_tokens` shrinks to the room there is, as a default has to; else what does not fit is
        refused."""
        return False

    @property
    def accounting_key(self) -> str | None:
        """Within the tenant, requests with another one read none of its prompt-cache entries."""
        return None

    @abstractmethod
    def check(self) -> None:
        """Refuse what types alone cannot tell.

        Raises:
            InvalidRequestError: naming the field.
        """

    @abstractmethod
    def to_params(self) -> SamplingParams:
        """The engine's view of how to generate.

        Raises:
            InvalidRequestError: a value is out of range, under the name that the client used.
        """

    def constrained(self, params: SamplingParams, model: ServedModel) -> SamplingParams:
        """`params` with the form that this body asks of its answers.

        Raises:
            InvalidRequestError: the form is malformed, or more than one is asked for.
        """
        grammar = structured.only_one(
            [
                structured.response_format(self.response_format),
                structured.structured_outputs(self.structured_outputs),
                *structured.guided(self._guided_fields()),
            ]
        )
        return params if grammar is None else replace(params, grammar=grammar)

    @abstractmethod
    def to_prompts(self) -> Sequence[PromptInput]:
        """What to continue; each prompt is answered on its own.

        Raises:
            InvalidRequestError: a prompt cannot be used.
        """

    @abstractmethod
    def in_client_terms(self, error: RequestError) -> RequestError:
        """The engine's complaint, under the names of this dialect."""


def _spells_token_id(key: str) -> bool:
    # The length comes first: Python refuses to convert numbers of thousands of digits.
    is_number = len(key) <= _MAX_TOKEN_ID_DIGITS and key.isascii() and key.isdigit()
    return is_number and int(key) <= MAX_TOKEN_ID


def require_stream_for_options(fields: SamplingFields) -> None:
    """Refuse `stream_options` where nothing is streamed.

    Raises:
        InvalidRequestError: as OpenAI does.
    """
    if fields.stream_options is not None and not fields.streams:
        raise InvalidRequestError(
            "stream_options is allowed only together with stream: true", param="stream_options"
        )
