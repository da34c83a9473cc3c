"""Sound requests of every dialect, which between them use every documented field; mutations begin with them.

All of them ask for two tokens at most, so that a mutation that is still sound is answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.e2e.fuzz.gemini_seeds import gemini_seeds
from tests.e2e.fuzz.seed import JSON, PERSON, Seed

SAMPLING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.01,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"65": 1.5},
    "seed": 7,
    "stop": ["zz", "yy"],
    "stop_token_ids": [3],
    "ignore_eos": False,
    "min_tokens": 1,
    "skip_special_tokens": True,
    "cache_salt": "salt",
    "cache_ttl": "5m",
    "priority": 1,
}


def seeds_of(dialect: str, model: str) -> Sequence[Seed]:
    """The sound requests of one dialect to a server that serves `model`."""
    makers = {
        "chat": _chat,
        "completions": _completions,
        "responses": _responses,
        "anthropic": _anthropic,
        "gemini": gemini_seeds,
    }
    return makers[dialect](model)


DIALECTS = ("chat", "completions", "responses", "anthropic", "gemini")


def _function(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"To {name}", "parameters": PERSON, **more}


def _chat(model: str) -> list[Seed]:
    path = "/v1/chat/completions"
    hello = [{"role": "user", "content": "hello"}]
    head = {"model": model, "max_tokens": 2}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    conversation = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "briefer"}]},
        {
            "role": "user",
            "name": "ann",
            "content": [
                {
                    "type": "text",
                    "text": "what is it?",
                    "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"},
                }
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "and now?"},
    ]
    options = {"mode": "implicit", "ttl": "12h", "prewarm": False, "comparison_response_id": None}
    tools = [
        {"type": "function", "function": _function("add", strict=True)},
        {"type": "function", "function": _function("stop")},
    ]
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]}
    schema = {"name": "person", "schema": PERSON, "strict": True}
    bodies: list[dict[str, Any]] = [
        {
            **head,
            **SAMPLING,
            "messages": conversation,
            "n": 2,
            "logprobs": True,
            "top_logprobs": 2,
            "prompt_cache_key": "k",
            "prompt_cache_options": options,
            "prompt_cache_retention": "24h",
            "chat_template_kwargs": {"enable_thinking": False},
            "add_generation_prompt": True,
            "user": "u",
            "metadata": {"a": "b"},
            "store": False,
            "reasoning_effort": "none",
            "verbosity": "medium",
            "modalities": ["text"],
        },
        {
            **head,
            "messages": hello,
            "stream": True,
            "stream_options": {"include_usage": True},
            "tools": tools,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
            "parallel_tool_calls": False,
        },
        {
            "model": model,
            "max_completion_tokens": 2,
            "messages": hello,
            "tools": tools,
            "tool_choice": {"type": "function", "function": {"name": "add"}},
        },
        {
            **head,
            "messages": hello,
            "response_format": {"type": "json_schema", "json_schema": schema},
        },
        {**head, "messages": hello, "structured_outputs": {"json": PERSON}},
        {**head, "messages": hello, "guided_json": PERSON},
        {**head, "messages": hello, "guided_regex": "[ab]{2}"},
        {**head, "messages": hello, "guided_choice": ["a", "b"]},
        {**head, "messages": hello, "guided_grammar": 'start: "a" | "b"'},
    ]
    return [Seed(path, body) for body in bodies]


def _completions(model: str) -> list[Seed]:
    head = {"model": model, "max_tokens": 2}
    bodies: list[dict[str, Any]] = [
        {**head, **SAMPLING, "prompt": "hello", "logprobs": 2, "n": 2, "best_of": 2, "echo": False},
        {**head, "prompt": ["one", "two"], "stream": True, "stream_options": {}, "suffix": ""},
        {**head, "prompt": [1, 2, 3], "response_format": {"type": "json_object"}, "user": "u"},
        {**head, "prompt": [[1, 2], [3]], "structured_outputs": {"regex": "[ab]{2}"}},
    ]
    return [Seed("/v1/completions", body) for body in bodies]


def _responses(model: str) -> list[Seed]:
    path = "/v1/responses"
    head = {"model": model, "max_output_tokens": 2}
    tools = [{"type": "function", "strict": True, **_function("add")}]
    text = {"type": "input_text", "text": "hello"}
    items = [
        {"role": "developer", "content": "be brief"},
        {
            "type": "message",
            "role": "user",
            "content": [{**text, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [text]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "4", "annotations": []}],
        },
        {"role": "user", "content": "and now?"},
    ]
    sampling = {name: value for name, value in SAMPLING.items() if not name.startswith("stop")}
    full = {
        **head,
        **sampling,
        "input": items,
        "instructions": "be sound",
        "store": False,
        "background": False,
        "metadata": {"a": "b"},
        "tools": tools,
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "add"}]},
        "parallel_tool_calls": True,
        "max_tool_calls": 3,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "truncation": "auto",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "service_tier": "auto",
        "safety_identifier": "s",
        "user": "u",
        "prompt_cache_key": "k",
        "prompt_cache_options": {"mode": "explicit", "ttl": "30m", "prewarm": False},
        "prompt_cache_retention": "in_memory",
        "chat_template_kwargs": {},
    }
    form = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
    bodies: list[dict[str, Any]] = [
        full,
        {**head, "input": "hello", "stream": True, "tools": tools, "tool_choice": "required"},
        {**head, "input": "hello", "text": {"format": form}, "store": True},
        {**head, "input": "hello", "prompt_cache_options": {"prewarm": True}},
    ]
    count = {"model": model, "input": items, "tools": tools}
    return [*(Seed(path, body) for body in bodies), Seed(f"{path}/input_tokens", count)]


def _anthropic(model: str) -> list[Seed]:
    path = "/v1/messages"
    headers = {**JSON, "anthropic-version": "2023-06-01", "anthropic-beta": "a-2026-01-01,b"}
    head = {"model": model, "max_tokens": 2}
    short, long = {"type": "ephemeral", "ttl": "5m"}, {"type": "ephemeral", "ttl": "1h"}
    tools = [
        {"name": "add", "description": "+", "input_schema": PERSON, "cache_control": long},
        {"type": "tool_search_tool_bm25_20251119", "name": "search"},
        {"type": "custom", "name": "late", "input_schema": PERSON, "defer_loading": True},
        {"name": "stop", "input_schema": {"type": "object"}, "strict": False},
    ]
    found = {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "late"}],
    }
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi", "citations": []}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "server_tool_use", "id": "s1", "name": "search", "input": {"query": "l"}},
                {"type": "tool_search_tool_result", "tool_use_id": "s1", "content": found},
                {"type": "tool_use", "id": "t1", "name": "late", "input": {"age": 3}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "4"}],
                    "is_error": False,
                    "cache_control": short,
                },
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    hello = [{"role": "user", "content": "hello"}]
    context = {
        "messages": messages,
        "system": [{"type": "text", "text": "be brief", "cache_control": long}],
        "tools": tools,
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "cache_control": short,
    }
    full = {
        **head,
        **context,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "stop_sequences": ["zz"],
        "stream": False,
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "high"},
        "diagnostics": {"previous_message_id": None},
        "speed": "standard",
        "thread": None,
        "mcp_servers": [],
        "container": None,
        "context_management": {},
    }
    form = {"type": "json_schema", "schema": PERSON}
    called = {"type": "tool", "name": "add"}
    bodies: list[dict[str, Any]] = [
        full,
        {**head, "messages": hello, "stream": True, "tools": tools[:1], "tool_choice": called},
        {**head, "messages": hello, "output_config": {"format": form}, "system": "be brief"},
        {**head, "messages": hello, "output_format": form},
        {"model": model, "messages": hello, "max_tokens": 0, "cache_control": long},
    ]
    count = Seed(f"{path}/count_tokens", {"model": model, **context}, headers=headers)
    return [*(Seed(path, body, headers=headers) for body in bodies), count]
