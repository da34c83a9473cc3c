"""Billing: one call's prompts on their way through the prompt cache, from plan to finished answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ostinato.api.recording import Meter
from ostinato.cache.report import CacheReport
from ostinato.product.prompt_cache import CachedRequest, PromptCache
from ostinato.product.settle import Split


class Billing:
    """Settles each prompt of a call once, at the first piece of its answers.

    Args:
        cache: of the server.
        planned: the call's prompts, in their order.
        meters: of the same prompts; they take the bill to the ledger.
    """

    def __init__(
        self, cache: PromptCache, planned: Sequence[CachedRequest], meters: Sequence[Meter]
    ) -> None:
        self._cache = cache
        self._planned = planned
        self._meters = meters
        self._splits: dict[int, Split] = {}
        for meter, request in zip(meters, planned, strict=True):
            meter.bill_by(partial(cache.split, request))

    def settle(self, prompt_index: int, report: CacheReport) -> Split:
        """How the prompt's tokens are billed; the first call also lets others find its entries."""
        if prompt_index not in self._splits:
            split = self._cache.settle(self._planned[prompt_index], report)
            self._splits[prompt_index] = split
            self._meters[prompt_index].bill(split)
        return self._splits[prompt_index]

    def finish(self, prompt_index: int, output_token_ids: Sequence[int]) -> None:
        """One answer to the prompt has ended."""
        token_ids = np.asarray(output_token_ids, dtype=np.int32)
        self._cache.finish(self._planned[prompt_index], token_ids)

    def count_reasoning(self, prompt_index: int, tokens: int) -> None:
        """How many of the tokens generated so far were thoughts; the last call counts."""
        self._meters[prompt_index].count_reasoning(tokens)
