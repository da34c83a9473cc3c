"""A chat template that writes tools and calls in Hermes' way, and tiny models that have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tiny import write_tiny_model

HERMES_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n<tools>' }}{% for t in tools %}"
    "{{ '\n' }}{{ t | tojson }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}"
    "{% if m.content %}{{ '\n' + m.content }}{% endif %}"
    '{% for c in m.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + c.function.name }}'
    "{{ '\", \"arguments\": ' }}{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tool_model(folder: Path, **arguments: Any) -> Path:
    """`write_tiny_model` with `HERMES_TEMPLATE`."""
    model = write_tiny_model(folder, **arguments)
    file = model / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**settings, "chat_template": HERMES_TEMPLATE}), encoding="utf-8")
    return model
