"""What the routes share, and how a call becomes requests to the backend."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.api.backend import Backend, GenerationRequest, PromptInput, ServedModel
from ostinato.api.fields import SamplingFields
from ostinato.clock import Clock
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import RequestError
from ostinato.insight.metrics import ServerMetrics

CLIENT_CLOSED_REQUEST = 499
"""Nginx's word for it; nobody is left to read the status."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Handed to every router.

    Attributes:
        backend: generates.
        metrics: of this server.
        clock: for timestamps in answers.
        started: monotonic seconds at which the server was made.
    """

    backend: Backend
    metrics: ServerMetrics
    clock: Clock
    started: float

    def served_model(self, name: str) -> ServedModel:
        """The model of that name.

        Raises:
            RequestError: ``model_not_found``, listing what is served.
        """
        models = self.backend.models()
        for model in models:
            if model.id == name:
                return model
        served = ", ".join(repr(model.id) for model in models)
        raise RequestError(
            f"the model {name[:200]!r} is not served here; served: {served}",
            param="model",
            code="model_not_found",
        )


def new_answer_id(prefix: str) -> str:
    """Id of an answer. Never part of a prompt."""
    return f"{prefix}-{secrets.token_hex(12)}"


def to_requests(
    answer_id: str,
    fields: SamplingFields,
    prompts: Sequence[PromptInput],
    params: SamplingParams,
    *,
    clips_max_tokens: bool,
) -> list[GenerationRequest]:
    """One request a prompt, with ids that are unique in this process."""
    return [
        GenerationRequest(
            request_id=answer_id if len(prompts) == 1 else f"{answer_id}-{index}",
            model=fields.model,
            prompt=prompt,
            params=params,
            cache_salt=fields.cache_salt,
            priority=fields.priority or 0,
            clips_max_tokens=clips_max_tokens,
        )
        for index, prompt in enumerate(prompts)
    ]
