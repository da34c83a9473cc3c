"""The bodies that Gemini's clients send, as they are on the wire.

Names are in camel case or in snake case, as in any JSON of protocol buffers. Fields that change no answer
(`safetySettings`, `labels`, `store`, …) are accepted and ignored, like names that nobody knows.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from ostinato.api.fields import ApiModel, Text
from ostinato.engine.sampling_params import MAX_N


class WireModel(ApiModel):
    """Base of all of Gemini's request models."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class FunctionCall(WireModel):
    """A call that the model made."""

    id: Text | None = None
    name: Text
    args: dict[str, Any] | None = None


class FunctionResponse(WireModel):
    """What a function returned."""

    id: Text | None = None
    name: Text
    response: dict[str, Any]
    parts: list[Any] | None = None


class Part(WireModel):
    """One part of a content: a text, a call or its result. All else needs another kind of model."""

    text: Text | None = None
    thought: bool | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    inline_data: Any = None
    file_data: Any = None
    executable_code: Any = None
    code_execution_result: Any = None
    tool_call: Any = None
    tool_response: Any = None


class Content(WireModel):
    """What one side said."""

    role: Text | None = Field(default=None, description="user (default), model or function.")
    parts: list[Part] = Field(default_factory=list)


class FunctionDeclaration(WireModel):
    """A function that the model may call."""

    name: Text
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A Gemini Schema.")
    parameters_json_schema: dict[str, Any] | None = Field(default=None, description="JSON Schema.")


class Tool(WireModel):
    """A group of functions; Google's own tools (search, maps, code execution, …) are not served here."""

    function_declarations: list[FunctionDeclaration] | None = None


class FunctionCallingConfig(WireModel):
    """Whether functions are called, and which."""

    mode: Text | None = Field(default=None, description="AUTO (default), ANY, NONE or VALIDATED.")
    allowed_function_names: list[Text] | None = None


class ToolConfig(WireModel):
    """How tools are used."""

    function_calling_config: FunctionCallingConfig | None = None


class ThinkingConfig(WireModel):
    """Only a budget of 0 has a meaning here: templates that know `enable_thinking` are told not to."""

    include_thoughts: bool | None = None
    thinking_budget: int | None = None


class GenerationConfig(WireModel):
    """How to generate."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = Field(default=None, description="A whole number; clients send 40.0.")
    max_output_tokens: int | None = None
    stop_sequences: list[Text] | None = None
    candidate_count: int | None = Field(default=None, description=f"1 to {MAX_N}.")
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_mime_type: Text | None = None
    response_schema: dict[str, Any] | None = Field(default=None, description="A Gemini Schema.")
    response_json_schema: dict[str, Any] | None = Field(default=None, description="JSON Schema.")
    response_logprobs: bool | None = None
    logprobs: int | None = None
    thinking_config: ThinkingConfig | None = None
    response_modalities: list[Text] | None = None
    speech_config: Any = None
    image_config: Any = None
    continuation_token: Any = None


class PrefixFields(WireModel):
    """What a cache object may hold, and a request without one."""

    contents: list[Content] = Field(default_factory=list)
    system_instruction: Content | None = None
    tools: list[Tool] | None = None
    tool_config: ToolConfig | None = None


class GenerateContentBody(PrefixFields):
    """Body of generateContent and streamGenerateContent."""

    model: Text | None = None
    generation_config: GenerationConfig = Field(default_factory=GenerationConfig)
    cached_content: Text | None = Field(default=None, description="cachedContents/NAME")
    safety_settings: list[Any] | None = None


class CountTokensBody(WireModel):
    """Body of countTokens: contents alone, or a whole request."""

    contents: list[Content] | None = None
    generate_content_request: GenerateContentBody | None = None


class ExpiryFields(WireModel):
    """How long a cache object is kept; one of the two."""

    ttl: Text | None = Field(default=None, description="Seconds, e.g. 300s.")
    expire_time: Text | None = Field(default=None, description="RFC 3339.")


class CreateCachedContentBody(PrefixFields, ExpiryFields):
    """Body of POST cachedContents."""

    model: Text
    display_name: Text | None = Field(default=None, max_length=128)
