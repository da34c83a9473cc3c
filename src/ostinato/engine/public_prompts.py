"""Computing the system prompts of `tenants.shared` before the first request is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import TenantId, TokenArray
from ostinato.config_sections import SharedPrompt
from ostinato.engine.core import EngineCore
from ostinato.engine.request import EngineRequest
from ostinato.engine.sampling_params import SamplingParams
from ostinato.engine.shared_prefix import SERVER
from ostinato.errors import ConfigError, RequestError, RequestFailedError
from ostinato.models.chat_encoding import encode_chat

if TYPE_CHECKING:
    from ostinato.models.loader import LoadedModel


def share_prompts(core: EngineCore, prompts: tuple[SharedPrompt, ...]) -> None:
    """Compute each prompt and let its tenants read it.

    Raises:
        ConfigError: a file cannot be read, a prompt does not fit template, context or pool, or prefix caching
            is off.
    """
    if prompts and core.limits.min_cacheable_tokens is None:
        raise ConfigError(
            "tenants.shared needs prefix caching, which --prefix-index none switches off"
        )
    for prompt in prompts:
        try:
            token_ids = _public_tokens(core.model, _text(prompt), core.limits.max_model_len)
            request = compute_prompt(core, token_ids)
        except (RequestError, RequestFailedError) as error:
            raise ConfigError(
                f"the shared prompt {prompt.name!r} cannot be used: {error}"
            ) from error
        core.share(request, frozenset(map(TenantId, prompt.tenants)))


def compute_prompt(core: EngineCore, token_ids: TokenArray) -> EngineRequest:
    """Let an engine that is otherwise idle compute a prompt, in the server's own namespace.

    Raises:
        RequestError: it fits neither context nor pool.
        RequestFailedError: computing it failed.
    """
    request = EngineRequest(
        request_id="shared prompt",
        prompt_token_ids=token_ids,
        params=SamplingParams(max_tokens=1, temperature=0.0),
        tenant=SERVER,
    )
    core.add_request(request)
    while core.has_work:
        core.step()
    for failure in core.take_failures():
        raise failure.error
    return request


def _text(prompt: SharedPrompt) -> str:
    if prompt.file is None:
        assert prompt.system_prompt is not None  # its validator says that one of them is there
        return prompt.system_prompt
    try:
        return prompt.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the file of the shared prompt {prompt.name!r} cannot be read: {error}"
        ) from error


def _public_tokens(model: LoadedModel, system_prompt: str, max_model_len: int) -> TokenArray:
    """What all conversations with this system prompt begin with: where two that differ in the user's
    first letter part."""
    first, second = (
        np.array(
            encode_chat(
                model,
                [
                    {"role": "system", "content": system_prompt},
                    {"role": "user", "content": user},
                ],
                max_model_len=max_model_len,
            ),
            dtype=np.int32,
        )
        for user in ("a", "B")
    )
    return first[: common_prefix(first, second)]
