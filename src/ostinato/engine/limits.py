"""What one request may ask for. Immutable, so any thread may check before it queues."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostinato.engine.request import MAX_PRIORITY, EngineRequest
from ostinato.errors import CapacityError, ContextLengthError, InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Fixed when the engine is built.

    Attributes:
        max_model_len: most tokens of prompt and output together.
        num_blocks: capacity of the K/V pool.
        block_size: tokens a block.
        kv_bytes_per_token: K/V memory one token takes.
        kv_pool_bytes: memory of the whole pool.
        kv_open_bytes: part of it that is for the open blocks of a quantised format.
        min_cacheable_tokens: shortest common prefix that can be reused; None without prefix caching.
        max_num_seqs: most sequences at once, so also the largest n.
        vocab_size: token ids are below this.
    """

    max_model_len: int
    num_blocks: int
    block_size: int
    kv_bytes_per_token: int
    kv_pool_bytes: int
    kv_open_bytes: int
    min_cacheable_tokens: int | None
    max_num_seqs: int
    vocab_size: int

    @property
    def pool_tokens(self) -> int:
        """Tokens that fit the whole pool."""
        return self.num_blocks * self.block_size

    def max_tokens_for(self, request: EngineRequest) -> int:
        """Most tokens to generate: what was asked for, else what context and pool allow."""
        if request.params.max_tokens is not None:
            return request.params.max_tokens
        return min(self.max_model_len, self.pool_tokens) - len(request.prompt_token_ids)

    def clip_max_tokens(self, request: EngineRequest) -> EngineRequest:
        """`request` with `max_tokens` lowered to what context and pool leave, if they leave any room.

        Raises:
            InvalidRequestError: `min_tokens` is above that.
        """
        unlimited = replace(request, params=replace(request.params, max_tokens=None))
        room = self.max_tokens_for(unlimited)
        wanted = request.params.max_tokens
        if wanted is None or not 1 <= room < wanted:
            return request
        return replace(request, params=replace(request.params, max_tokens=room))

    def validate(self, request: EngineRequest) -> None:
        """Refuse what could never be served, so that whatever is queued can finish when it is alone.

        Raises:
            InvalidRequestError: empty prompt, token ids outside the vocabulary, n above `max_num_seqs`,
                priority beyond `MAX_PRIORITY`.
            ContextLengthError: prompt and output exceed the context.
            CapacityError: prompt and output exceed the pool.
        """
        self._check_tokens(request)
        if request.params.n > self.max_num_seqs:
            raise InvalidRequestError(
                f"n must be at most {self.max_num_seqs} (max_num_seqs), not {request.params.n}",
                param="n",
            )
        if abs(request.priority) > MAX_PRIORITY:
            raise InvalidRequestError(
                f"priority must be -{MAX_PRIORITY} to {MAX_PRIORITY}, not {request.priority}",
                param="priority",
            )
        prompt = len(request.prompt_token_ids)
        # Without max_tokens there must be room for one token at least.
        output = 1 if request.params.max_tokens is None else request.params.max_tokens
        asked = f"{prompt} prompt tokens + {output} output tokens = {prompt + output}"
        too_long = "prompt" if prompt + 1 > self.max_model_len else "max_tokens"
        if prompt + output > self.max_model_len:
            raise ContextLengthError(
                f"the context is {self.max_model_len} tokens, the request needs {asked}",
                param=too_long,
            )
        if prompt + output > self.pool_tokens:
            raise CapacityError(
                f"the request needs {asked}, which can never fit the K/V pool: the largest "
                f"prompt + max_tokens that would is {self.pool_tokens} "
                f"({self.num_blocks} blocks of {self.block_size} tokens)",
                param="prompt" if prompt + 1 > self.pool_tokens else "max_tokens",
            )

    def _check_tokens(self, request: EngineRequest) -> None:
        prompt = request.prompt_token_ids
        if len(prompt) == 0:
            raise InvalidRequestError("the prompt must have at least one token", param="prompt")
        for token_id in (int(prompt.min()), int(prompt.max())):
            self._check_token("prompt", token_id)
        for token_id in request.params.stop_token_ids:
            self._check_token("stop_token_ids", token_id)
        for token_id in request.params.logit_bias:
            self._check_token("logit_bias", token_id)

    def _check_token(self, param: str, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequestError(
                f"{param} has token id {token_id}; token ids are 0 to {self.vocab_size - 1}",
                param=param,
            )
