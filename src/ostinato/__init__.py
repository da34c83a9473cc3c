"""Ostinato: an LLM server in which caching is the product.

    from ostinato import LLM, SamplingParams

The names below are imported when they are first used, so that ``import ostinato`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from ostinato.cache.report import CacheReport
    from ostinato.engine.llm import LLM
    from ostinato.engine.sampling_params import SamplingParams

__all__ = ["LLM", "CacheReport", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "ostinato.engine.llm",
    "SamplingParams": "ostinato.engine.sampling_params",
    "CacheReport": "ostinato.cache.report",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("ostinato")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
