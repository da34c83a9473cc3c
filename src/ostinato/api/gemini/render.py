"""Answers in Gemini's shape: candidates with parts, usage, and the same piece by piece."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ostinato.api.answer_reader import AnswerEvent, AnswerReader, FinishedCall, Thought
from ostinato.api.json_numbers import finite
from ostinato.api.logprobs import LOWEST
from ostinato.api.usage import TokenUsage, gemini_usage
from ostinato.engine.outputs import FinishReason, OutputDelta, TokenLogprob, TopLogprob
from ostinato.models.tools.events import AnswerText, CallStarted

WirePart: TypeAlias = dict[str, Any]

_FINISH_REASONS = {FinishReason.STOP: "STOP", FinishReason.LENGTH: "MAX_TOKENS"}
_MALFORMED = "MALFORMED_FUNCTION_CALL"


class AnswerParts:
    """Turns one answer into parts, as it comes.

    A call is shown when it is whole, since Gemini's clients know no pieces of one.

    Args:
        reader: of the answer.
        shows_thoughts: whether the client asked for them (``includeThoughts``).

    Attributes:
        shown: all parts so far; pieces of one text are one part.
        malformed: what the model wrote instead of a call's arguments, if it did.
    """

    def __init__(self, reader: AnswerReader, *, shows_thoughts: bool) -> None:
        self.shown: list[WirePart] = []
        self._reader = reader
        self._shows_thoughts = shows_thoughts
        self._num_begun = 0
        self._num_shown = 0
        self.malformed: str | None = None

    def read(self, delta: OutputDelta) -> list[WirePart]:
        """What the next delta shows; with the last one also what was held back."""
        parts = self._parts(self._reader.read(delta))
        if delta.finish_reason is not None:
            parts += self._show_calls(len(self._reader.calls))
        for part in parts:
            self._keep(part)
        return parts

    @property
    def num_reasoning_tokens(self) -> int | None:
        """See `AnswerReader.num_reasoning_tokens`."""
        return self._reader.num_reasoning_tokens

    def _parts(self, events: Sequence[AnswerEvent]) -> list[WirePart]:
        parts: list[WirePart] = []
        for event in events:
            match event:
                case Thought(text):
                    if self._shows_thoughts:
                        parts.append({"text": text, "thought": True})
                case AnswerText(text):
                    parts += self._show_calls(self._num_begun)
                    parts.append({"text": text})
                case CallStarted(index, _):
                    parts += self._show_calls(index)
                    self._num_begun = index + 1
        return parts

    def _keep(self, part: WirePart) -> None:
        last = self.shown[-1] if self.shown else {}
        if "text" in part and "text" in last and part.get("thought") == last.get("thought"):
            self.shown[-1] = {**last, "text": last["text"] + part["text"]}
        else:
            self.shown.append(part)

    def _show_calls(self, count: int) -> list[WirePart]:
        """The calls up to number `count`, all of them over, that were not shown yet."""
        calls = self._reader.calls[self._num_shown : count]
        self._num_shown = max(self._num_shown, count)
        parts = []
        for call in calls:
            arguments = _arguments(call)
            if arguments is None:
                self.malformed = f"{call.name}: {call.arguments}"
            else:
                shown = {"id": call.call_id, "name": call.name, "args": arguments}
                parts.append({"functionCall": shown})
        return parts


def candidate(
    index: int,
    parts: Sequence[WirePart],
    *,
    logprobs: Sequence[TokenLogprob] = (),
) -> dict[str, Any]:
    """One candidate, or a piece of one."""
    shown: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": index}
    if logprobs:
        shown["avgLogprobs"] = _sum(logprobs) / len(logprobs)
        shown["logprobsResult"] = _logprobs_result(logprobs)
    return shown


def ending(reason: FinishReason, malformed: str | None) -> dict[str, Any]:
    """The fields that say why a candidate ended."""
    if malformed is not None and reason is FinishReason.STOP:
        return {
            "finishReason": _MALFORMED,
            "finishMessage": f"Malformed function call: {malformed}",
        }
    return {"finishReason": _FINISH_REASONS[reason]}


def response(
    head: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]], usage: TokenUsage
) -> dict[str, Any]:
    """A whole GenerateContentResponse, or one of a stream."""
    return {"candidates": list(candidates), "usageMetadata": gemini_usage(usage), **head}


def _arguments(call: FinishedCall) -> dict[str, Any] | None:
    """None if the model did not write an object."""
    try:
        arguments = finite(json.loads(call.arguments))
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _logprobs_result(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {
        "logProbabilitySum": _sum(tokens),
        "chosenCandidates": [_named(token) for token in tokens],
        "topCandidates": [
            {"candidates": [_named(rival) for rival in token.top]} for token in tokens
        ],
    }


def _sum(tokens: Sequence[TokenLogprob]) -> float:
    return sum(_finite(token.logprob) for token in tokens)


def _named(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {
        "token": token.text,
        "tokenId": token.token_id,
        "logProbability": _finite(token.logprob),
    }


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
