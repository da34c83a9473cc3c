"""Eviction policies: which cached item is given up next. `base` holds the contract."""

from __future__ import annotations

from typing import Any, Final

from ostinato.cache.eviction.arc import ARC
from ostinato.cache.eviction.base import Evictable, EvictionPolicy
from ostinato.cache.eviction.lfu import LFU
from ostinato.cache.eviction.lru import LRU
from ostinato.cache.eviction.retaining import Retaining
from ostinato.cache.eviction.reuse_rate import ReuseRate
from ostinato.errors import ConfigError

POLICIES: dict[str, type[EvictionPolicy[Any]]] = {
    "lru": LRU,
    "lfu": LFU,
    "arc": ARC,
    "reuse_rate": ReuseRate,
}
"""By the name that settings and commands use."""

DEFAULT_POLICY: Final = "reuse_rate"
"""Finds the most prompt tokens in most of the traffic that it was tried on: see docs/eviction.md."""


def make_policy(name: str) -> EvictionPolicy[Any]:
    """A new policy of that name.

    Raises:
        ConfigError: if there is none.
    """
    if name not in POLICIES:
        raise ConfigError(f"no eviction policy is called {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]()


__all__ = [
    "ARC",
    "DEFAULT_POLICY",
    "LFU",
    "LRU",
    "POLICIES",
    "Evictable",
    "EvictionPolicy",
    "Retaining",
    "ReuseRate",
    "make_policy",
]
