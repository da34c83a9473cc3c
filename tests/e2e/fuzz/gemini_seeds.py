"""The sound requests of Gemini's dialect; see `seeds`."""

from __future__ import annotations

from typing import Any

from tests.e2e.fuzz.seed import PERSON, Seed

GEMINI_PERSON: dict[str, Any] = {
    "type": "OBJECT",
    "properties": {
        "name": {"type": "STRING", "maxLength": "4", "nullable": True},
        "age": {"type": "INTEGER", "format": "int32", "minimum": 0},
        "tags": {"type": "ARRAY", "items": {"anyOf": [{"type": "STRING"}]}, "maxItems": "2"},
    },
    "required": ["name"],
    "propertyOrdering": ["age", "name"],
}


def gemini_seeds(model: str) -> list[Seed]:
    base = f"/v1beta/models/{model}"
    text = [{"role": "user", "parts": [{"text": "hello"}]}]
    declared = [{"functionDeclarations": [_gemini_function("add"), _gemini_json_function("stop")]}]
    calling = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}}
    contents = [
        *text,
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True, "thoughtSignature": "eA=="},
                {"functionCall": {"id": "f1", "name": "add", "args": {"age": 3}}},
            ],
        },
        {
            "role": "function",
            "parts": [
                {"functionResponse": {"id": "f1", "name": "add", "response": {"result": "4"}}}
            ],
        },
        {"role": "user", "parts": [{"text": "and now?"}]},
    ]
    config = {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 20.0,
        "maxOutputTokens": 2,
        "stopSequences": ["zz"],
        "candidateCount": 2,
        "seed": 7,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.1,
        "responseMimeType": "text/plain",
        "responseLogprobs": True,
        "logprobs": 2,
        "thinkingConfig": {"includeThoughts": False, "thinkingBudget": 0},
        "responseModalities": ["TEXT"],
    }
    full = {
        "model": f"models/{model}",
        "contents": contents,
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "tools": declared,
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generationConfig": config,
        "safetySettings": [],
        "labels": {"a": "b"},
    }
    formed = {"maxOutputTokens": 2, "responseMimeType": "application/json"}
    kept = {
        "model": f"models/{model}",
        "contents": text,
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "tools": declared,
        "displayName": "a name",
        "ttl": "60s",
    }
    short = {"maxOutputTokens": 2}
    return [
        Seed(f"{base}:generateContent", full),
        Seed(
            f"{base}:streamGenerateContent?alt=sse",
            {"contents": text, "tools": declared, "toolConfig": calling, "generationConfig": short},
        ),
        Seed(f"{base}:streamGenerateContent", {"contents": text, "generationConfig": short}),
        Seed(
            f"{base}:generateContent",
            {"contents": text, "generationConfig": {**formed, "responseSchema": GEMINI_PERSON}},
        ),
        Seed(
            f"{base}:generateContent",
            {"contents": text, "generationConfig": {**formed, "responseJsonSchema": PERSON}},
        ),
        Seed(f"{base}:countTokens", {"generateContentRequest": full}),
        Seed("/v1beta/cachedContents", kept),
    ]


def _gemini_function(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"To {name}", "parameters": GEMINI_PERSON}


def _gemini_json_function(name: str) -> dict[str, Any]:
    return {"name": name, "parametersJsonSchema": PERSON}
