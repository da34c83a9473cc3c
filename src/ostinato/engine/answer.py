"""Answer: the output side of one sequence, from sampled tokens to what the client may see."""

from __future__ import annotations

from typing import Protocol

from ostinato.cache.report import CacheReport
from ostinato.engine.detokenizer import Detokenizer, TokenBytes
from ostinato.engine.grammar.compiler import GrammarCompiler
from ostinato.engine.grammar.matcher import TokenMatcher
from ostinato.engine.logprobs import TokenNames, token_logprob
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.request import EngineRequest
from ostinato.engine.sampler import SampledToken, SamplerState
from ostinato.engine.stop import StopChecker


class AnswerTokenizer(TokenBytes, TokenNames, Protocol):
    """What an answer needs of `models.tokenizer.Tokenizer`."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens with which the model says that it is done."""
        ...


class Answer:
    """One of a request's n answers; survives preemption.

    A token that ends the answer counts as generated, but is not part of the text. Stop strings are looked
    for in what follows the first `min_tokens` tokens, as in vLLM.

    Args:
        request: whose answer it is.
        index: which of the n.
        max_tokens: most tokens to generate.
        tokenizer: turns tokens into text.
        matcher: of the grammar that it must match, if it must.

    Attributes:
        sampler: its random stream and penalties.
    """

    def __init__(
        self,
        request: EngineRequest,
        index: int,
        max_tokens: int,
        tokenizer: AnswerTokenizer,
        matcher: TokenMatcher | None = None,
    ) -> None:
        params = request.params
        self._request_id = request.request_id
        self._index = index
        self._params = params
        self._max_tokens = max_tokens
        self._tokenizer = tokenizer
        self._eos = frozenset() if params.ignore_eos else tokenizer.eos_token_ids
        self._detokenizer = Detokenizer(
            tokenizer, params.skip_special_tokens, params.shown_special_tokens
        )
        self._stop = StopChecker(params.stop)
        self._num_tokens = 0
        self.sampler = SamplerState(params, request.prompt_token_ids, index, self._eos, matcher)

    def accept(self, token: SampledToken, report: CacheReport | None) -> OutputDelta:
        """Take the next token; the delta has a `finish_reason` if it was the last."""
        self._num_tokens += 1
        self.sampler.observe(token.token_id)
        text, reason, stop_reason = self._advance(token.token_id)
        wanted = self._params.logprobs is not None
        return OutputDelta(
            request_id=self._request_id,
            index=self._index,
            text=text,
            token_ids=(token.token_id,),
            logprobs=(token_logprob(token, self._tokenizer),) if wanted else (),
            finish_reason=reason,
            stop_reason=stop_reason,
            report=report,
            num_output_tokens=self._num_tokens,
        )

    def abort(self, report: CacheReport | None) -> OutputDelta:
        """The last delta of an answer that is broken off: what was held back."""
        return self._break_off(FinishReason.ABORT, report)

    def without_output(self, report: CacheReport | None) -> OutputDelta:
        """The only delta of an answer of no tokens."""
        return self._break_off(FinishReason.LENGTH, report)

    def _break_off(self, reason: FinishReason, report: CacheReport | None) -> OutputDelta:
        text, _, _ = self._end(reason, None)
        return OutputDelta(
            request_id=self._request_id,
            index=self._index,
            text=text,
            token_ids=(),
            logprobs=(),
            finish_reason=reason,
            stop_reason=None,
            report=report,
            num_output_tokens=self._num_tokens,
        )

    def _advance(self, token_id: int) -> tuple[str, FinishReason | None, str | int | None]:
        """Text to show, and why the answer ends if it does."""
        if token_id in self._eos:
            return self._end(FinishReason.STOP, None)
        if token_id in self._params.stop_token_ids:
            return self._end(FinishReason.STOP, token_id)
        shown, matched = self._look_for_stop(self._detokenizer.feed(token_id))
        if matched is not None:
            return shown, FinishReason.STOP, matched
        if self.sampler.is_complete:
            rest, reason, stop_reason = self._end(FinishReason.STOP, None)
            return shown + rest, reason, stop_reason
        if self._num_tokens < self._max_tokens:
            return shown, None, None
        rest, reason, stop_reason = self._end(FinishReason.LENGTH, None)
        return shown + rest, reason, stop_reason

    def _look_for_stop(self, text: str) -> tuple[str, str | None]:
        if self._num_tokens <= self._params.min_tokens:
            return text, None
        return self._stop.feed(text)

    def _end(
        self, reason: FinishReason, stop_reason: int | None
    ) -> tuple[str, FinishReason, str | int | None]:
        """Let go of everything held back, unless that completes a stop string."""
        shown, matched = self._look_for_stop(self._detokenizer.flush())
        if matched is not None:
            return shown, FinishReason.STOP, matched
        return shown + self._stop.flush(), reason, stop_reason


def make_answers(
    request: EngineRequest,
    max_tokens: int,
    tokenizer: AnswerTokenizer,
    grammars: GrammarCompiler,
) -> dict[int, Answer]:
    """The request's n answers, each with a matcher of its own.

    Raises:
        InvalidRequestError: its grammar cannot be compiled.
    """
    grammar = request.params.grammar
    return {
        index: Answer(
            request,
            index,
            max_tokens,
            tokenizer,
            None if grammar is None else grammars.matcher(grammar),
        )
        for index in range(request.params.n)
    }
