"""The table as a picture: for each figure, every engine relative to the best peer. Longer is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.peers.table import Row

_COLOURS = ("#c2410c", "#1d4ed8", "#0f766e", "#7c3aed", "#64748b", "#a16207")
_LABEL, _WIDTH, _BAR, _GAP, _TOP = 330, 460, 13, 16, 64


def relative(row: Row) -> dict[str, float]:
    """Each engine's figure as a multiple of the best peer's, more being better; empty without a peer."""
    if row.best_peer is None:
        return {}
    best = row.medians[row.best_peer]
    higher = row.figure.higher_is_better
    return {name: v / best if higher else best / v for name, v in row.medians.items()}


def save_chart(rows: Sequence[Row], titles: Mapping[str, str], path: Path) -> list[Path]:
    """Write ``path`` with ``.svg``, and ``.png`` where matplotlib is installed; returns what was written."""
    try:
        return _with_matplotlib(rows, titles, path)
    except ImportError:
        svg = path.with_suffix(".svg")
        svg.write_text(svg_chart(rows, titles))
        return [svg]


def svg_chart(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Grouped bars, without any library."""
    shown = [(row, relative(row)) for row in rows if relative(row)]
    most = max((max(bars.values()) for _, bars in shown), default=1.0)
    parts: list[str] = []
    y = float(_TOP)
    for row, bars in shown:
        height = len(bars) * _BAR
        parts.append(_text(_LABEL - 10, y + height / 2 + 4, row.figure.title, anchor="end"))
        for name, value in bars.items():
            width = max(_WIDTH * value / most, 1.0)
            colour = _COLOURS[list(titles).index(name) % len(_COLOURS)]
            parts.append(
                f'<rect x="{_LABEL}" y="{y:.1f}" width="{width:.1f}" height="{_BAR - 2}"'
                f' fill="{colour}"/>'
            )
            parts.append(_text(_LABEL + width + 5, y + _BAR - 3, f"{value:.2f}", size=10))
            y += _BAR
        y += _GAP
    parts += _legend(titles)
    unit = _LABEL + _WIDTH / most
    parts.append(
        f'<line x1="{unit:.1f}" x2="{unit:.1f}" y1="{_TOP - 6}" y2="{y:.1f}" stroke="#111"'
        ' stroke-dasharray="3 3"/>'
    )
    width = _LABEL + _WIDTH + 60
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y:.0f}"'
        f' viewBox="0 0 {width} {y:.0f}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _legend(titles: Mapping[str, str]) -> list[str]:
    parts = [_text(12, 20, "Relative to the best peer (dashed); longer is better", size=13)]
    x = 12.0
    for index, title in enumerate(titles.values()):
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<rect x="{x:.0f}" y="32" width="11" height="11" fill="{colour}"/>')
        parts.append(_text(x + 16, 42, title))
        x += 34 + 6.6 * len(title)
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _with_matplotlib(rows: Sequence[Row], titles: Mapping[str, str], path: Path) -> list[Path]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [(row, relative(row)) for row in rows if relative(row)]
    figure, axes = pyplot.subplots(figsize=(10, 1.2 + 0.22 * sum(len(b) + 1 for _, b in shown)))
    y, ticks = 0.0, []
    labelled: set[str] = set()
    for row, bars in shown:
        ticks.append((y + (len(bars) - 1) / 2, row.figure.title))
        for name, value in bars.items():
            options: dict[str, Any] = {"color": _COLOURS[list(titles).index(name) % len(_COLOURS)]}
            if name not in labelled:
                options["label"] = titles[name]
                labelled.add(name)
            axes.barh(y, value, **options)
            axes.text(value, y, f" {value:.2f}", va="center", fontsize=7)
            y += 1
        y += 1
    axes.set_yticks([place for place, _ in ticks], [title for _, title in ticks], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1.0, color="#111", linestyle=":", linewidth=1)
    axes.set_xlabel("relative to the best peer; longer is better")
    axes.legend(fontsize=8)
    figure.tight_layout()
    written = [path.with_suffix(suffix) for suffix in (".svg", ".png")]
    for file in written:
        figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return written
