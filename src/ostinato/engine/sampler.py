"""Choosing the next token of each sequence from the logits of one step.

What happens to a row, in this order (vLLM's):

    1. refuse NaN, infinite and absurd logits   a numerical fault must not become a garbage token
    2. log-probabilities, if asked for          log-softmax of the *unmodified* logits
    3. min_tokens                               tokens that would end the sequence become −inf
    4. logit_bias                               added
    5. repetition, frequency, presence penalty  see `penalties.py`
       grammar                                  what it does not allow becomes −inf
    6. greedy: the largest logit                done
    7. temperature                              divides, after the maximum was subtracted
    8. top_k and min_p, then top_p of the rest  top_k and min_p commute; see `candidates.py`
    9. one uniform number picks from what is left

Ties always go to the lowest token id. Logits and weights are float32, sums over the vocabulary
float64.

Every sequence has its own PCG64 stream and takes exactly one number from it a token, so what a
seeded sequence draws depends on its logits alone and not on who shares the batch. Rows are never
mixed: only the search for the largest logit of plain greedy rows is batched, and that has no
rounding. The numbers are made from the raw 64-bit output of PCG64, which NumPy keeps stable across
versions, unlike the methods of `Generator`.

Where the backend has kernels for it (`ops/sampling.py`), steps 1 and 6 to 9 and the ranking of step 2 run
there, all rows in one call. What is here is their oracle and the fallback.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.cache.types import TokenArray
from ostinato.engine.candidates import draw, nucleus, ranked, top_indices
from ostinato.engine.grammar.matcher import TokenMatcher
from ostinato.engine.penalties import TokenHistory
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import NonFiniteLogitsError
from ostinato.ops.base import BoolArray, Float32Array, Int64Array
from ostinato.ops.sampling import Draws, SamplingKernels

# Far beyond any model; the largest penalty (× 100) on it still fits a float32.
_LARGEST_LOGIT = np.float32(1e30)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The choice for one row.

    Attributes:
        token_id: the token.
        logprob: its natural-log probability under the unmodified logits; None if not asked for.
        top: ``(token_id, logprob)`` of the `SamplingParams.logprobs` likeliest tokens, likeliest
            first.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class SamplerState:
    """What choosing a token remembers of one sequence. Lives as long as it, through preemptions."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: TokenArray,
        index: int = 0,
        stop_token_ids: Collection[int] = frozenset(),
        matcher: TokenMatcher | None = None,
    ) -> None:
        """Start a sequence.

        Args:
            params: how to choose.
            prompt_token_ids: the prompt, for the repetition penalty.
            index: which of the request's `n` answers; each has its own random stream.
            stop_token_ids: tokens that would end this sequence, besides ``params.stop_token_ids``:
                the model's end-of-sequence tokens, unless they are ignored.
            matcher: of ``params.grammar``, for this answer alone.
        """
        self.params = params
        self.num_output_tokens = 0
        self._random = np.random.PCG64(_seed_sequence(params.seed, index))
        self._uniform: float | None = None
        self._history = TokenHistory(prompt_token_ids) if params.has_penalties else None
        self._matcher = matcher
        self._ending = np.array(sorted({*stop_token_ids, *params.stop_token_ids}), dtype=np.int64)
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.int64)
        self._bias = np.array(list(params.logit_bias.values()), dtype=np.float32)

    def observe(self, token_id: int) -> None:
        """Record a token of the output. Call once a token, after `sample` and in order."""
        self.num_output_tokens += 1
        self._uniform = None
        if self._history is not None:
            self._history.observe(token_id)
        if self._matcher is not None:
            self._matcher.accept(token_id)

    @property
    def is_complete(self) -> bool:
        """Whether the grammar allows nothing more, so that the answer is over without an end token."""
        return self._matcher is not None and self._matcher.is_finished

    @property
    def adjusts(self) -> bool:
        """Whether the next token is chosen from `adjusted` logits, not from the model's own."""
        plain = self._history is None and self._bias_ids.size == 0
        return not plain or self._is_constrained or self._must_not_end()

    @property
    def greedy_on_raw_logits(self) -> bool:
        """Whether the next token is just the largest logit, so that its row can be batched."""
        return self.params.greedy and not self.adjusts

    def adjusted(self, logits: Float32Array) -> Float32Array:
        """Steps 3 to 5 on a copy of ``(vocab,)`` logits.

        Raises:
            GrammarError: see `TokenMatcher.allowed`.
        """
        row = logits.copy()
        if self._must_not_end():
            # A tokenizer may name end tokens that the model has no logits for.
            ending = self._ending[self._ending < row.size]
            # Where every token ends the sequence there is nothing to fall back on: then it may end.
            if ending.size < row.size:
                row[ending] = -np.inf
        if self._bias_ids.size:
            row[self._bias_ids] += self._bias
        if self._history is not None:
            self._history.penalise(row, self.params)
        if self._matcher is not None and self._is_constrained:
            allowed = self._matcher.allowed(row.size)
            row[~allowed] = -np.inf
            if (
                row.max() == -np.inf
            ):  # nothing but the end is left: min_tokens yields to the grammar
                row = np.where(allowed, logits, -np.inf).astype(np.float32)
        return row

    @property
    def _is_constrained(self) -> bool:
        return self._matcher is not None and self._matcher.constrains

    def next_uniform(self) -> float:
        """The number of this sequence's stream for the next token, 53 random bits in [0, 1).

        It stays the same until `observe`, so that a row can be sampled again after a failure.
        """
        if self._uniform is None:
            self._uniform = (int(self._random.random_raw()) >> 11) * 2.0**-53
        return self._uniform

    def _must_not_end(self) -> bool:
        return self.num_output_tokens < self.params.min_tokens and self._ending.size > 0


def sample(
    logits: Float32Array, states: Sequence[SamplerState], kernels: SamplingKernels | None = None
) -> list[SampledToken]:
    """Choose one token a row.

    Args:
        logits: ``(R, vocab)`` float32; not changed.
        states: the R sequences. Each gives one random number if its row is not greedy.
        kernels: the backend's; None does everything here.

    Raises:
        NonFiniteLogitsError: naming the rows.
        ValueError: if the numbers of rows and states differ.
    """
    if logits.ndim != 2 or logits.shape[0] != len(states):
        raise ValueError(f"logits of shape {logits.shape} for {len(states)} sequences")
    if not states:
        return []
    largest, within = _find_largest(logits, kernels)
    if not within.all():
        raise NonFiniteLogitsError(tuple(int(row) for row in np.flatnonzero(~within)))
    greedy = [row for row, state in enumerate(states) if state.greedy_on_raw_logits]
    chosen = {row: int(largest[row]) for row in greedy}
    if kernels is not None:
        chosen |= _drawn_rows(logits, states, kernels)
    for row, state in enumerate(states):
        if row not in chosen:
            chosen[row] = _choose(state.adjusted(logits[row]), state)
    tokens = [chosen[row] for row in range(len(states))]
    if kernels is not None:
        return _with_ranked(tokens, logits, states, kernels)
    return [_with_logprobs(token, logits[row], states[row]) for row, token in enumerate(tokens)]


def _find_largest(
    logits: Float32Array, kernels: SamplingKernels | None
) -> tuple[npt.NDArray[np.integer[Any]], BoolArray]:
    """The first largest of each row, and whether the row holds nothing that step 1 refuses."""
    if kernels is not None:
        return kernels.find_largest(np.ascontiguousarray(logits), float(_LARGEST_LOGIT))
    # A NaN carries through both reductions and fails every comparison.
    within = (logits.max(axis=1) <= _LARGEST_LOGIT) & (logits.min(axis=1) >= -_LARGEST_LOGIT)
    return np.argmax(logits, axis=1), within


def _drawn_rows(
    logits: Float32Array, states: Sequence[SamplerState], kernels: SamplingKernels
) -> dict[int, int]:
    """Steps 3 to 9 of all rows that are not greedy."""
    rows = [row for row, state in enumerate(states) if not state.params.greedy]
    if not rows:
        return {}
    source, wanted = np.ascontiguousarray(logits), rows
    if any(states[row].adjusts for row in rows):
        source = np.stack([states[row].adjusted(logits[row]) for row in rows])
        wanted = list(range(len(rows)))
    params = [states[row].params for row in rows]
    draws = Draws(
        rows=np.array(wanted, dtype=np.int32),
        temperatures=np.array([p.temperature for p in params], dtype=np.float32),
        top_ks=np.array([min(p.top_k, logits.shape[1]) for p in params], dtype=np.int32),
        min_ps=np.array([p.min_p for p in params], dtype=np.float32),
        top_ps=np.array([p.top_p for p in params], dtype=np.float64),
        uniforms=np.array([states[row].next_uniform() for row in rows], dtype=np.float64),
    )
    return dict(zip(rows, kernels.draw(source, draws).tolist(), strict=True))


def _choose(row: Float32Array, state: SamplerState) -> int:
    """Steps 6 to 9."""
    params = state.params
    if params.greedy:
        return int(np.argmax(row))
    candidates: Int64Array | None = None  # None: the whole vocabulary
    if 0 < params.top_k < row.size:
        candidates = top_indices(row, params.top_k)
        row = row[candidates]
    with np.errstate(
        over="ignore"
    ):  # a tiny temperature sends all but the best to −inf, as it should
        row = (row - row.max()) / np.float32(params.temperature)
    weights: Float32Array = np.exp(row)
    if params.min_p > 0.0:  # the likeliest token has weight 1
        kept = np.flatnonzero(weights >= np.float32(params.min_p))
        candidates = kept if candidates is None else candidates[kept]
        row, weights = row[kept], weights[kept]
    if params.top_p < 1.0:
        kept = nucleus(row, weights, params.top_p)
        candidates = kept if candidates is None else candidates[kept]
        weights = weights[kept]
    position = draw(weights, state.next_uniform())
    return position if candidates is None else int(candidates[position])


def _with_ranked(
    tokens: Sequence[int],
    logits: Float32Array,
    states: Sequence[SamplerState],
    kernels: SamplingKernels,
) -> list[SampledToken]:
    """Step 2 for all rows that ask for it."""
    wanted = [state.params.logprobs for state in states]
    sampled = [SampledToken(token) for token in tokens]
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return sampled
    raw = np.ascontiguousarray(logits if len(rows) == len(states) else logits[rows])
    most = min(max(1, *(count or 0 for count in wanted)), raw.shape[1])
    ids, values, log_sums = kernels.ranked(raw, most)
    for at, row in enumerate(rows):
        count = wanted[row]
        rivals = (values[at, :count] - log_sums[at]).tolist()
        top = tuple(zip(ids[at, :count].tolist(), rivals, strict=True))
        sampled[row] = SampledToken(tokens[row], float(raw[at, tokens[row]] - log_sums[at]), top)
    return sampled


def _with_logprobs(token_id: int, raw: Float32Array, state: SamplerState) -> SampledToken:
    wanted = state.params.logprobs
    if wanted is None:
        return SampledToken(token_id)
    top = ranked(raw, wanted) if wanted else np.empty(0, dtype=np.int64)
    largest = raw.max()
    log_total = np.log(np.sum(np.exp(raw - largest), dtype=np.float64))
    chosen = float(raw[token_id] - largest - log_total)
    rivals = (raw[top] - largest - log_total).tolist()
    return SampledToken(token_id, chosen, tuple(zip(top.tolist(), rivals, strict=True)))


def _seed_sequence(seed: int | None, index: int) -> np.random.SeedSequence:
    if seed is None:
        return np.random.SeedSequence()
    return np.random.SeedSequence(int(seed) % 2**64, spawn_key=(index,))
