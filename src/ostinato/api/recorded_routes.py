"""The routes that generate or store, and so leave a record in the ledger, and the dialect that each speaks."""

from __future__ import annotations

import re

from starlette.types import Scope

_POST = ("POST",)
_DIALECTS = (
    (_POST, r"/v1/chat/completions", "openai_chat"),
    (_POST, r"/v1/completions", "openai_completions"),
    (_POST, r"/v1/responses", "openai_responses"),
    (_POST, r"/v1/messages", "anthropic"),
    (_POST, r"/v1(?:alpha|beta)?/models/.+:(?:streamG|g)enerateContent", "gemini"),
    (_POST, r"/v1(?:alpha|beta)?/cachedContents", "gemini_cache"),
    (("PATCH", "DELETE"), r"/v1(?:alpha|beta)?/cachedContents/[^/]+", "gemini_cache"),
)
_PATTERNS = tuple((methods, re.compile(path), dialect) for methods, path, dialect in _DIALECTS)


def dialect_of(scope: Scope) -> str | None:
    """The dialect of a request that is recorded; None for all others."""
    if scope["type"] != "http":
        return None
    path, method = scope["path"], scope["method"]
    return next(
        (
            dialect
            for methods, pattern, dialect in _PATTERNS
            if method in methods and pattern.fullmatch(path)
        ),
        None,
    )
