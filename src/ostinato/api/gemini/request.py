"""What a generateContent body asks of the engine: sampling, the form of the answer, use of functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ostinato.api.gemini.schema import to_json_schema
from ostinato.api.gemini.wire import GenerateContentBody, GenerationConfig, ToolConfig
from ostinato.api.prompt import ToolDefinition
from ostinato.api.structured import schema_format
from ostinato.api.tool_calling import ToolChoice, ToolMode, ToolUse, plan_tools
from ostinato.api.unsupported import unsupported
from ostinato.engine.grammar.spec import Grammar, choice, json_schema
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.models.tools.syntax import ToolCallStyle

_CONFIG = "generationConfig"
_FUNCTIONS = "toolConfig.functionCallingConfig"
_JSON = "application/json"
_ENUM = "text/x.enum"
_ANY_JSON: Mapping[str, Any] = {"type": ["object", "array"]}

_MODES = {
    "AUTO": ToolMode.AUTO,
    "VALIDATED": ToolMode.AUTO,
    "MODE_UNSPECIFIED": ToolMode.AUTO,
    "ANY": ToolMode.REQUIRED,
    "NONE": ToolMode.NONE,
}
"""A call is always sound here, so AUTO is as good as VALIDATED."""

_NAMES = {
    "n": "candidateCount",
    "max_tokens": "maxOutputTokens",
    "top_p": "topP",
    "top_k": "topK",
    "stop": "stopSequences",
    "logprobs": "logprobs",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "temperature": "temperature",
    "seed": "seed",
}


def template_variables(config: GenerationConfig) -> dict[str, Any]:
    """What the chat template is told besides."""
    thinking = config.thinking_config
    if thinking is not None and thinking.thinking_budget == 0:
        return {"enable_thinking": False}
    return {}


def to_params(
    body: GenerateContentBody,
    tool_config: ToolConfig | None,
    tools: Sequence[ToolDefinition],
    style: ToolCallStyle | None,
) -> tuple[SamplingParams, ToolUse | None]:
    """The engine's view of a request, and how its answers call functions.

    Args:
        body: of the request.
        tool_config: its own, or its cache object's.
        tools: the same.
        style: in which the model writes calls; None if its calls cannot be read.

    Raises:
        InvalidRequestError: a value is out of range or not supported, under the name that the client used.
    """
    config = body.generation_config
    _refuse_unsupported(config)
    use = plan_tools(tools, _tool_choice(tool_config), style)
    try:
        params = replace(_sampling(config), grammar=_form(config))
        return (params if use is None else use.constrain(params)), use
    except RequestError as error:
        raise in_client_terms(error) from error


def in_client_terms(error: RequestError) -> RequestError:
    """The engine's complaint, under Gemini's names."""
    if error.param in ("prompt", "messages"):
        return type(error)(str(error), param="contents", code=error.code)
    name = _NAMES.get(error.param or "")
    if name is None:
        return error
    message = re.sub(rf"\b{error.param}\b", name, str(error))
    return type(error)(message, param=f"{_CONFIG}.{name}", code=error.code)


def _sampling(config: GenerationConfig) -> SamplingParams:
    stops = config.stop_sequences
    given: dict[str, Any] = {
        "n": config.candidate_count,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": None if config.top_k is None else _whole(config.top_k),
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "seed": config.seed,
        "stop": None if stops is None else tuple(stops),
        "max_tokens": config.max_output_tokens,
        "logprobs": (config.logprobs or 0) if config.response_logprobs else None,
    }
    if config.logprobs is not None and not config.response_logprobs:
        raise InvalidRequestError(
            f"{_CONFIG}.logprobs is allowed only together with responseLogprobs: true",
            param=f"{_CONFIG}.logprobs",
        )
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def _whole(top_k: float) -> int:
    if not top_k.is_integer():
        raise InvalidRequestError(f"top_k must be a whole number, not {top_k}", param="top_k")
    return int(top_k)


def _form(config: GenerationConfig) -> Grammar | None:
    """The form that answers must have; None: any text."""
    kind = config.response_mime_type or "text/plain"
    schema, json_text = config.response_schema, config.response_json_schema
    if schema is not None and json_text is not None:
        raise InvalidRequestError(
            f"{_CONFIG} must have one of responseSchema and responseJsonSchema, not both",
            param=f"{_CONFIG}.responseSchema",
        )
    where = f"{_CONFIG}.{'responseSchema' if schema is not None else 'responseJsonSchema'}"
    wanted = json_text if schema is None else to_json_schema(schema, where)
    if kind == "text/plain":
        if wanted is not None:
            raise InvalidRequestError(
                f"{where} needs {_CONFIG}.responseMimeType '{_JSON}'", param=where
            )
        return None
    if kind == _ENUM:
        return _one_of(wanted, where)
    if kind != _JSON:
        raise InvalidRequestError(
            f"{_CONFIG}.responseMimeType must be 'text/plain', '{_JSON}' or '{_ENUM}', "
            f"not {kind[:40]!r}",
            param=f"{_CONFIG}.responseMimeType",
        )
    if wanted is None:
        return json_schema(_ANY_JSON, f"{_CONFIG}.responseMimeType", lenient=False)
    return schema_format(wanted, where, is_strict=False)


def _one_of(schema: Mapping[str, Any] | None, where: str) -> Grammar:
    options = (schema or {}).get("enum")
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise InvalidRequestError(
            f"{_CONFIG}.responseMimeType '{_ENUM}' needs a schema with an enum of texts",
            param=where,
        )
    return choice(options, where)


def _tool_choice(config: ToolConfig | None) -> ToolChoice:
    calling = None if config is None else config.function_calling_config
    if calling is None:
        return ToolChoice(param=_FUNCTIONS)
    mode = _MODES.get((calling.mode or "AUTO").upper())
    if mode is None:
        raise InvalidRequestError(
            f"{_FUNCTIONS}.mode must be AUTO, ANY, NONE or VALIDATED, not {str(calling.mode)[:40]!r}",
            param=f"{_FUNCTIONS}.mode",
        )
    names = tuple(calling.allowed_function_names or ()) or None
    if names is not None and (calling.mode or "AUTO").upper() not in ("ANY", "VALIDATED"):
        raise InvalidRequestError(
            f"{_FUNCTIONS}.allowedFunctionNames goes with mode ANY or VALIDATED",
            param=f"{_FUNCTIONS}.allowedFunctionNames",
        )
    return ToolChoice(mode, names, param=_FUNCTIONS)


def _refuse_unsupported(config: GenerationConfig) -> None:
    """What would change the answer and cannot be done."""
    others = [kind for kind in config.response_modalities or () if kind.upper() != "TEXT"]
    if others:
        raise unsupported(
            f"{_CONFIG}.responseModalities", "the served model writes text only: leave it out"
        )
    for name, value in (
        ("speechConfig", config.speech_config),
        ("imageConfig", config.image_config),
        ("continuationToken", config.continuation_token),
    ):
        if value is not None:
            raise unsupported(f"{_CONFIG}.{name}")
