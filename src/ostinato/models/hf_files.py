"""Small pieces of reading a Hugging Face model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.errors import ModelFormatError


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file.

    Raises:
        ModelFormatError: the file is there but is not a JSON object.
    """
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ModelFormatError(f"{file} is not JSON: {error}. Fetch the model again") from error
    if not isinstance(content, dict):
        raise ModelFormatError(f"{file} is not a JSON object. Fetch the model again")
    return content


def token_content(value: Any) -> str | None:
    """A token in ``tokenizer_config.json``: text, or an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
