"""LedgerRecord: what is kept of one request. Names, numbers and times; never a word of prompt or answer."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from ostinato.cache.types import Tier

MAX_LABEL_CHARACTERS = 200


def new_record_id() -> str:
    """Names a record for ever, so that writing it twice stores it once."""
    return secrets.token_hex(16)


def label(text: str | None) -> str | None:
    """A name that a client chose, as any database can hold it: well-formed, without NUL, and bounded.

    What is longer than `MAX_LABEL_CHARACTERS` is replaced by its digest, so that different names stay
    different and nobody stores a text under the pretext of a name.
    """
    if text is None:
        return None
    clean = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    if len(clean) <= MAX_LABEL_CHARACTERS:
        return clean
    return f"sha256:{hashlib.sha256(clean.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The tokens of one request, as the engine counted them.

    Attributes:
        input: of the prompts that were admitted, each once, however many answers were generated from it.
        cached_by_tier: how many of them were not computed, by the tier they were found in.
        read: billed as read from the cache: under the house rules, at most what was reused.
        write_short: billed as written under a short-lived breakpoint.
        write_long: billed as written under a long-lived breakpoint.
        output: sampled, of all answers together; those that nobody waited for included.
        reasoning: how many of them were reasoning, or None if that is not known.
    """

    input: int = 0
    cached_by_tier: Mapping[Tier, int] = field(default_factory=dict)
    read: int = 0
    write_short: int = 0
    write_long: int = 0
    output: int = 0
    reasoning: int | None = None

    @property
    def cached(self) -> int:
        """Input tokens that were not computed, over all tiers."""
        return sum(self.cached_by_tier.values())

    @property
    def total(self) -> int:
        return self.input + self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """One request, from its arrival to its end.

    Attributes:
        record_id: see `new_record_id`.
        time: Unix seconds of its arrival.
        request_id: as in the header ``x-request-id``; a client may have chosen it, and twice the same.
        response_id: of the answer; None if there was none.
        tenant: whose request it was.
        model: that was asked for; None where the body could not be read.
        dialect: the API that was spoken.
        template_id: the client's name for the prompt template it used.
        template_version: of that template.
        prompt_cache_key: as the client sent it.
        retention: for how long the client asked the prompt to be kept, in its own words.
        house_rules: under which reads and writes were counted.
        answer_cache: where a whole answer came from: ``none``, ``exact`` or ``semantic``.
        answers: how many were asked for.
        tokens: None where whoever generated did not say: unknown, not zero.
        storage_token_seconds: tokens of cache objects times the seconds for which this record pays for them.
        ttft: seconds from arrival to the first token; None if there was none.
        e2e: seconds from arrival to the end of the answer.
        status: of HTTP; None if the client had gone before there was one.
        finish_reason: ``stop``, ``length``, ``abort`` or ``error``; of several answers the last of these that
            occurs. None if nothing was generated.
        error: a word for what went wrong, such as ``context_length_exceeded``; None if nothing did.
    """

    record_id: str = field(default_factory=new_record_id)
    time: float
    request_id: str
    response_id: str | None = None
    tenant: str
    model: str | None = None
    dialect: str
    template_id: str | None = None
    template_version: str | None = None
    prompt_cache_key: str | None = None
    retention: str | None = None
    house_rules: str
    answer_cache: str = "none"
    answers: int = 1
    tokens: TokenRecord | None
    storage_token_seconds: int = 0
    ttft: float | None = None
    e2e: float
    status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
