"""Penalties on tokens that a sequence has already seen.

`TokenHistory` is the sparse record of one sequence: which tokens occurred, and how often the model
itself produced each. Its arrays grow by doubling and are updated by one token a step, so a step
costs time in the number of *distinct* tokens seen, not in the size of the vocabulary or the length
of the text.

Formulas (x is a logit, c the token's count in the output):

    repetition (Keskar et al. 2019, CTRL)   x / r if x > 0 else x × r   tokens of prompt or output
    frequency  (OpenAI)                     x − f × c                   tokens of the output
    presence   (OpenAI)                     x − p if c > 0              tokens of the output

applied in this order, as vLLM does.
"""

from __future__ import annotations

import numpy as np

from ostinato.cache.types import TokenArray
from ostinato.engine.sampling_params import SamplingParams
from ostinato.ops.base import Float32Array

_INITIAL_CAPACITY = 64


class TokenHistory:
    """Distinct tokens of one sequence with their output counts."""

    def __init__(self, prompt_token_ids: TokenArray) -> None:
        """Start with the prompt: every token seen, none of them generated."""
        seen = np.unique(prompt_token_ids)
        self._size = int(seen.size)
        capacity = max(_INITIAL_CAPACITY, 2 * self._size)
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._ids[: self._size] = seen
        self._counts = np.zeros(capacity, dtype=np.float32)
        self._slot_of: dict[int, int] = {int(token): slot for slot, token in enumerate(seen)}

    def observe(self, token_id: int) -> None:
        """Count one generated token."""
        slot = self._slot_of.get(token_id)
        if slot is None:
            slot = self._append(token_id)
        self._counts[slot] += 1.0

    def penalise(self, logits: Float32Array, params: SamplingParams) -> None:
        """Apply the three penalties to one sequence's ``(vocab,)`` logits, in place."""
        ids = self._ids[: self._size]
        counts = self._counts[: self._size]
        seen = logits[ids]
        if params.repetition_penalty != 1.0:
            penalty = np.float32(params.repetition_penalty)
            seen = np.where(seen > 0, seen / penalty, seen * penalty)
        if params.frequency_penalty != 0.0:
            seen = seen - np.float32(params.frequency_penalty) * counts
        if params.presence_penalty != 0.0:
            seen = seen - np.float32(params.presence_penalty) * (counts > 0).astype(np.float32)
        logits[ids] = seen

    def _append(self, token_id: int) -> int:
        if self._size == self._ids.size:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        slot = self._size
        self._ids[slot] = token_id
        self._slot_of[token_id] = slot
        self._size += 1
        return slot
