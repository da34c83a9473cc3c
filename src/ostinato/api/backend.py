"""Backend: what the API needs from whatever generates tokens (the local engine, an upstream, a cluster)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ostinato.api.prompt import Breakpoint, Prompt, Segment
from ostinato.cache.types import DEFAULT_TENANT, TenantId, TokenArray
from ostinato.engine.outputs import OutputDelta, RequestMeter
from ostinato.engine.sampling_params import SamplingParams
from ostinato.engine.stats import EngineStats
from ostinato.models.reasoning.syntax import Reasoning
from ostinato.models.tools.syntax import ToolCallStyle

PromptInput: TypeAlias = Prompt | str | tuple[int, ...]
"""A conversation, raw text, or token ids."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as the model reads it.

    Attributes:
        source: what it was made from.
        token_ids: ``(num_tokens,)`` int32.
        segments: of a conversation, tools first; empty for text and token ids.
        boundaries: for each segment its end in tokens, None where the model's template does not show it.
        reasoning: how its answers think; None if they do not.
    """

    source: PromptInput
    token_ids: TokenArray
    segments: tuple[Segment, ...] = ()
    boundaries: tuple[int | None, ...] = ()
    reasoning: Reasoning | None = None

    @property
    def implicit_breakpoint(self) -> Breakpoint | None:
        """See `Prompt.implicit_breakpoint`."""
        return self.source.implicit_breakpoint if isinstance(self.source, Prompt) else None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model under the name that clients use.

    Attributes:
        id: the name.
        created: Unix seconds; for a local model when its file or folder was last changed.
        owned_by: who serves it.
        max_model_len: longest prompt + output, in tokens.
        fingerprint: changes whenever the same seed may give another answer: weights, K/V format, kernels.
        tool_call_style: how it writes tool calls; None if they cannot be read.
        end_token_ids: each of these ends an answer.
    """

    id: str
    created: int
    owned_by: str
    max_model_len: int
    fingerprint: str
    tool_call_style: ToolCallStyle | None = None
    end_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """What /health says.

    Attributes:
        alive: whether requests are taken.
        backend: kernels or upstream that do the work.
        max_model_len: longest prompt + output, in tokens.
        pool_tokens: tokens that the K/V pool holds.
        num_blocks: blocks in the pool.
        block_size: tokens a block.
        min_cacheable_tokens: shortest prefix that can be reused; None without prefix caching.
        kv_bytes_per_token: K/V memory of one token.
        max_num_seqs: most answers that are generated at once.
        max_waiting: most requests that wait beyond those.
    """

    alive: bool
    backend: str
    max_model_len: int
    pool_tokens: int
    num_blocks: int
    block_size: int
    min_cacheable_tokens: int | None
    kv_bytes_per_token: int
    max_num_seqs: int
    max_waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt and how to continue it.

    Attributes:
        request_id: unique among the live requests of this process.
        model: a `ServedModel.id`.
        prompt: made by the backend's own `encode`.
        params: how tokens are chosen; `params.n` answers are generated. `SamplingParams.prewarm` computes the
            prompt and generates nothing.
        tenant: whose cache is read and written.
        cache_salt: narrows reuse within the tenant.
        retain: ``(num_tokens, seconds)``: the K/V of so many leading tokens is to be kept for so long after
            each use.
        priority: lower runs earlier.
        clips_max_tokens: `params.max_tokens` is the dialect's default: it shrinks to the room that the
            prompt leaves, where what a client asked for would be refused.
        meter: told when the request begins to be computed, and what it came to.
    """

    request_id: str
    model: str
    prompt: EncodedPrompt
    params: SamplingParams
    tenant: TenantId = DEFAULT_TENANT
    cache_salt: str | None = None
    retain: tuple[tuple[int, float], ...] = ()
    priority: int = 0
    clips_max_tokens: bool = False
    meter: RequestMeter | None = None


class Backend(Protocol):
    """Generates. All methods are safe to call from the event loop; none blocks it for long."""

    def models(self) -> Sequence[ServedModel]:
        """What is served; never empty, the default first."""
        ...

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        """Check a request, then return the deltas of all its answers.

        Nothing is computed before the first delta is asked for: then the request's meter begins, and it ends
        whatever happens, maybe after the generator. Closing the generator cancels the
        request; its K/V is free after the step that runs. A generator that was never started needs no
        closing.

        Raises:
            RequestError: the request can never be served; raised here, not by the generator.
            EngineStoppedError: nothing is taken any more; raised here or by the generator.
        """
        ...

    async def count(self, prompt: PromptInput) -> int:
        """Tokens that the prompt renders to, special tokens included.

        Raises:
            RequestError: it cannot be rendered.
        """
        ...

    async def encode(self, prompt: PromptInput) -> EncodedPrompt:
        """Render and tokenise a prompt, special tokens included, and find the ends of its segments.

        Raises:
            RequestError: it cannot be rendered, or cannot possibly fit the context.
        """
        ...

    def stats(self) -> EngineStats: ...

    def health(self) -> BackendHealth: ...
