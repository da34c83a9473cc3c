"""What the engine tells the outside: plain values, safe to hand to other threads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ostinato.cache.report import CacheReport


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """End-of-sequence token, stop token or stop string."""
    LENGTH = "length"
    """`max_tokens` or the context was reached."""
    ABORT = "abort"
    """The client went away or the engine stopped."""
    ERROR = "error"
    """Computing it failed. Only counted: the request ends with an exception, not with a delta."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One of the likeliest tokens at a position."""

    token_id: int
    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token of a position, with its rivals."""

    token_id: int
    text: str
    raw: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """One piece of one answer.

    Attributes:
        request_id: as given by the caller.
        index: which of the `n` answers.
        text: what may be shown now; never half a character, never part of a stop string.
        token_ids: tokens generated since the last delta of this answer.
        logprobs: one entry a token of `token_ids` if they were asked for, else empty.
        finish_reason: set on the last delta of this answer.
        stop_reason: the stop string or stop token that ended it, None for end-of-sequence.
        report: where the prompt's tokens came from; the same object on every delta.
        num_output_tokens: tokens generated so far for this answer, the one that ended it included.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    report: CacheReport | None
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """What the engine counted for one request, however it ended; adds up to `EngineStats` over all requests.

    Attributes:
        report: where the prompt's tokens came from; None if the request was never admitted: then nothing of it
            was counted.
        num_output_tokens: sampled tokens of all its answers, those that nobody waited for included.
        finish_reason: ERROR if computing it failed, else the last of STOP, LENGTH and ABORT that one of its
            answers ended with; None if it was refused.
    """

    report: CacheReport | None = None
    num_output_tokens: int = 0
    finish_reason: FinishReason | None = None


class RequestMeter(Protocol):
    """Told about one request, by whoever computes it."""

    def begin(self) -> None:
        """From now on tokens may be counted; `end` will follow exactly once."""
        ...

    def end(self, end: RequestEnd) -> None:
        """The request has left the engine. Called from any thread; must return at once."""
        ...
