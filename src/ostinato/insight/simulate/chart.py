"""Hit rate over capacity as a picture: one panel a trace, one line a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from ostinato.errors import ConfigError
from ostinato.insight.simulate.replay import ReplayResult

_COLOURS = ("#c2410c", "#1d4ed8", "#0f766e", "#7c3aed", "#a16207", "#64748b")
_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP = 60, 70, 520, 260, 70

Curves = Mapping[str, Sequence[ReplayResult]]
"""Results by policy, each in order of capacity."""


def svg_chart(panels: Mapping[str, Curves]) -> str:
    """The picture as SVG text.

    Args:
        panels: by the title of the trace.
    """
    policies = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(policies)}
    parts = [_text(_LEFT, 22, "Prompt tokens found in the cache, by its size", size=15)]
    parts += _legend(colours)
    for at, (title, curves) in enumerate(panels.items()):
        parts += _panel(title, curves, colours, _TOP + at * (_HEIGHT + _GAP))
    width, height = _LEFT + _WIDTH + 30, _TOP + len(panels) * (_HEIGHT + _GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Helvetica, sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def save_chart(panels: Mapping[str, Curves], path: Path) -> list[Path]:
    """Write `path` with ``.svg`` and with ``.png``; returns what was written.

    Raises:
        ConfigError: a file cannot be written, or what turns SVG into PNG is not installed. The SVG is
            written even so.
    """
    svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
    picture = svg_chart(panels)
    try:
        svg.write_text(picture, encoding="utf-8")
        png.write_bytes(_rasterise(picture, instead=svg))
    except OSError as error:
        raise ConfigError(f"the picture {error.filename} cannot be written: {error}") from error
    return [svg, png]


def _rasterise(picture: str, instead: Path) -> bytes:
    try:
        import resvg_py
    except ImportError as error:
        raise ConfigError(
            f"{instead} is written; for a PNG beside it, install the extra: pip install 'ostinato[plots]'"
        ) from error
    return bytes(resvg_py.svg_to_bytes(svg_string=picture, zoom=2))


def _panel(title: str, curves: Curves, colours: Mapping[str, str], top: int) -> list[str]:
    results = [result for curve in curves.values() for result in curve]
    capacities = sorted({result.num_blocks for result in results})
    highest = max((result.hit_rate for result in results), default=0.0) or 1.0
    bottom = top + _HEIGHT
    # Capacities are chosen in steps that grow, so each gets the same room.
    step = _WIDTH / max(len(capacities) - 1, 1)
    x_of = {capacity: _LEFT + at * step for at, capacity in enumerate(capacities)}
    parts = [_text(_LEFT, top - 8, title, size=13)]
    for tick in range(5):
        y = bottom - _HEIGHT * tick / 4
        parts.append(_line(_LEFT, y, _LEFT + _WIDTH, y, "#ddd"))
        parts.append(_text(_LEFT - 6, y + 4, f"{100 * highest * tick / 4:.1f} %", anchor="end"))
    for capacity, x in x_of.items():
        parts.append(_text(x, bottom + 18, f"{capacity:,}", anchor="middle"))
    parts.append(_text(_LEFT + _WIDTH / 2, bottom + 36, "blocks", anchor="middle"))
    for name, curve in curves.items():
        points = [(x_of[r.num_blocks], bottom - _HEIGHT * r.hit_rate / highest) for r in curve]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if name == "belady" else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"{dashes}/>'
        )
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[name]}"/>' for x, y in points
        ]
    return parts


def _legend(colours: Mapping[str, str]) -> list[str]:
    parts, x = [], float(_LEFT)
    for name, colour in colours.items():
        parts.append(f'<rect x="{x:.0f}" y="32" width="11" height="11" fill="{colour}"/>')
        parts.append(_text(x + 16, 42, name))
        x += 38 + 7 * len(name)
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
