"""Bytes as people write and read them: ``2GiB`` in, ``512 MiB`` out."""

from __future__ import annotations

import re

from ostinato.errors import ConfigError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS = {unit.lower(): 1024**power for power, unit in enumerate(_BINARY)}
_UNITS |= {unit: 1000**power for power, unit in enumerate(("b", "kb", "mb", "gb", "tb"))}
_MOST = 2**63
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes from ``1073741824``, ``2GiB``, ``1.5 GB``.

    Units with an i are powers of 1,024, those without are powers of 1,000.

    Raises:
        ConfigError: if `text` is no size, not even one byte, or 2**63 bytes and more.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower() or "b") if match else None
    if match is None or unit is None:
        raise ConfigError(f"{text!r} is not a size; write for example 512MiB, 2GiB or 1.5GB")
    exact = float(match[1]) * unit
    if exact >= _MOST:
        raise ConfigError(f"a size must be below {format_size(_MOST)}, not {text[:40]!r}")
    size = int(exact)
    if size < 1:
        raise ConfigError(f"a size must be at least one byte, not {text!r}")
    return size


def format_size(num_bytes: float) -> str:
    """``512 MiB``; at most one decimal, and none where it would be a zero."""
    value, unit = float(num_bytes), _BINARY[0]
    for larger in _BINARY[1:]:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.1f}".removesuffix(".0") + f" {unit}"
