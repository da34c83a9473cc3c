"""Fair share between tenants: whoever has had the least service is served next.

Virtual token counters, as in Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). Every
tenant has a counter of the tokens it was served, divided by its weight; the waiting request of the tenant
with the smallest counter is admitted first. Three rules make that fair over time:

- a prompt is charged when it is admitted, an answer token when it is sampled; what was reused costs nothing,
  so caching well earns a tenant service and costs nobody else any;
- who has nothing waiting saves nothing up: when a tenant comes back, its counter is lifted to the smallest of
  those who wait;
- nothing is ever refused or held back while there is room: the counters only say who is first.

While two tenants both have requests waiting, their counters differ by at most what one admission and the
running answers cost, however many requests each of them sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ostinato.cache.types import TenantId

OUTPUT_WEIGHT = 2.0
"""Prompt tokens that one answer token is charged as: it takes a pass through the model of its own."""


class TenantService:
    """The counters. Written by the scheduler, read by the order of waiting.

    Args:
        weights: of tenants that are to get more (or less) than others.
        default_weight: of all others.
    """

    def __init__(
        self, weights: Mapping[TenantId, float] | None = None, default_weight: float = 1.0
    ) -> None:
        self._weights = dict(weights or {})
        self._default_weight = default_weight
        self._counters: dict[TenantId, float] = {}
        self._last_admitted = 0.0

    def virtual_tokens(self, tenant: TenantId) -> float:
        """Service that the tenant has had, in tokens of weight 1."""
        return self._counters.get(tenant, 0.0)

    def price(self, tenant: TenantId, prompt_tokens: int) -> float:
        """What computing that much of a prompt adds to the tenant's counter."""
        return prompt_tokens / self._weights.get(tenant, self._default_weight)

    def enter(self, tenant: TenantId, waiting: Set[TenantId]) -> None:
        """`tenant`, which had nothing waiting, has now.

        Args:
            tenant: who comes back.
            waiting: all others that have requests waiting.
        """
        others = [self.virtual_tokens(other) for other in waiting]
        floor = min(others) if others else self._last_admitted
        self._counters[tenant] = max(self.virtual_tokens(tenant), floor)

    def charge_prompt(self, tenant: TenantId, computed_tokens: int) -> None:
        """A request is admitted; so much of its prompt is not cached."""
        self._charge(tenant, computed_tokens)
        self._last_admitted = self._counters[tenant]

    def charge_output(self, tenant: TenantId) -> None:
        """One token of an answer was sampled."""
        self._charge(tenant, OUTPUT_WEIGHT)

    def _charge(self, tenant: TenantId, tokens: float) -> None:
        weight = self._weights.get(tenant, self._default_weight)
        self._counters[tenant] = self.virtual_tokens(tenant) + tokens / weight


def is_below_share(tenant: TenantId, waiting: Sequence[TenantId], places: int) -> bool:
    """Whether a tenant has fewer requests waiting than its equal share of the queue's places.

    A full queue still takes requests of such a tenant, so that no other can shut it out.

    Args:
        tenant: who wants to queue one more.
        waiting: the tenant of each request that waits.
        places: that the queue is to have.
    """
    return waiting.count(tenant) < max(places // len({*waiting, tenant}), 1)
