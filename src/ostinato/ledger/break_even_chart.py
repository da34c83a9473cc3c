"""The cost curves of a break-even as a picture: dollars over the number of requests. SVG, without a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from ostinato.ledger.break_even import CostLine, Strategy, break_evens

_COLOURS = {
    Strategy.NONE: "#64748b",
    Strategy.AUTOMATIC: "#0f766e",
    Strategy.SHORT: "#c2410c",
    Strategy.LONG: "#1d4ed8",
    Strategy.STORED: "#7c3aed",
}
_LEFT, _TOP, _WIDTH, _HEIGHT, _TICKS = 90, 60, 620, 340, 5


def break_even_chart(title: str, lines: Mapping[Strategy, CostLine], requests: int) -> str:
    """An SVG of all lines from 1 to `requests`, each break-even within marked by a dot.

    Args:
        title: what is priced, for whom and when.
        requests: at least 2.

    Raises:
        ValueError: if there are fewer than 2 requests or no lines.
    """
    if requests < 2 or not lines:
        raise ValueError("a chart needs at least 2 requests and one line")
    most = max(float(line.at(n)) for line in lines.values() for n in (1, requests)) or 1.0

    def x(n: int) -> float:
        return _LEFT + _WIDTH * (n - 1) / (requests - 1)

    def y(dollars: float) -> float:
        return _TOP + _HEIGHT * (1 - dollars / most)

    parts = [_text(12, 22, title, size=14), *_axes(most, requests, x, y)]
    met = break_evens(lines)
    for index, (strategy, line) in enumerate(lines.items()):
        colour = _COLOURS[strategy]
        parts.append(
            f'<line x1="{x(1):.1f}" y1="{y(float(line.at(1))):.1f}" x2="{x(requests):.1f}"'
            f' y2="{y(float(line.at(requests))):.1f}" stroke="{colour}" stroke-width="2"/>'
        )
        first = met.get(strategy)
        if first is not None and first <= requests:
            parts.append(
                f'<circle cx="{x(first):.1f}" cy="{y(float(line.at(first))):.1f}" r="4"'
                f' fill="{colour}"/>'
            )
        parts += _legend(index, strategy, colour, first)
    return _svg(parts, _LEFT + _WIDTH + 40, _TOP + _HEIGHT + 70 + 20 * len(lines))


def _axes(
    most: float, requests: int, x: Callable[[int], float], y: Callable[[float], float]
) -> list[str]:
    parts: list[str] = []
    for step in range(_TICKS + 1):
        dollars = most * step / _TICKS
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(dollars):.1f}" y2="{y(dollars):.1f}"'
            ' stroke="#e2e8f0"/>'
        )
        parts.append(_text(_LEFT - 8, y(dollars) + 4, f"${dollars:.4g}", anchor="end"))
    for n in sorted({1 + round((requests - 1) * step / _TICKS) for step in range(_TICKS + 1)}):
        parts.append(_text(x(n), _TOP + _HEIGHT + 18, f"{n:,}", anchor="middle"))
    parts.append(
        _text(
            _LEFT + _WIDTH / 2,
            _TOP + _HEIGHT + 38,
            "requests with the same prefix",
            anchor="middle",
        )
    )
    return parts


def _legend(index: int, strategy: Strategy, colour: str, first: int | None) -> list[str]:
    row = _TOP + _HEIGHT + 62 + 20 * index
    label = strategy.value
    if strategy is not Strategy.NONE:
        label += ": never pays" if first is None else f": pays from request {first:,}"
    return [
        f'<rect x="{_LEFT}" y="{row - 10}" width="12" height="12" fill="{colour}"/>',
        _text(_LEFT + 20, row, label),
    ]


def _svg(parts: list[str], width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
