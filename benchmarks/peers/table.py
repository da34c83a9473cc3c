"""From measurements to a comparison: medians, ratios to the best peer, shares of the machine's limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.counts import Work, as_json, share_of_limit
from benchmarks.peers.figures import Figure
from benchmarks.peers.limits import Limits
from benchmarks.peers.runner import Plan, Results
from benchmarks.report import Table

OWN = "ostinato"
_REASON = 200
"""Characters of an error that the table shows."""
_UNITS = {"ms": 1e-3, "s": 1.0}
"""Of the figures that are times, by the last word of their titles."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, all engines.

    Attributes:
        figure: which.
        medians: by engine name; engines without the figure are not in it.
        shares: of the machine's limit, by engine name.
        versus_best: how many times better Ostinato is than the best peer; None without a peer or without us.
        best_peer: its name.
    """

    figure: Figure
    medians: Mapping[str, float]
    shares: Mapping[str, float]
    versus_best: float | None
    best_peer: str | None


def make_row(
    figure: Figure,
    names: Sequence[str],
    results: Results,
    work: Work,
    tokens: float,
    limits: Limits,
) -> Row:
    """Judge one figure."""
    medians = {}
    for name in names:
        value = results.median(figure.key, name)
        if value is not None:
            medians[name] = value
    unit = _UNITS.get(figure.title.rsplit(" ", 1)[-1], 1.0)
    shares = {
        name: share_of_limit(value, work, tokens, limits, unit) for name, value in medians.items()
    }
    best = best_peer(figure, medians)
    ratio = None
    if best is not None and OWN in medians:
        own, other = medians[OWN], medians[best]
        ratio = own / other if figure.higher_is_better else other / own
    return Row(figure, medians, shares, ratio, best)


def best_peer(figure: Figure, medians: Mapping[str, float]) -> str | None:
    """The best engine that is not Ostinato; None if there is none."""
    peers = {name: value for name, value in medians.items() if name != OWN}
    if not peers:
        return None
    choose = max if figure.higher_is_better else min
    return choose(peers, key=lambda name: peers[name])


def comparison_table(rows: Sequence[Row], titles: Mapping[str, str], note: str) -> Table:
    """Figures down, engines across.

    Args:
        rows: judged figures.
        titles: engine names to what people call them, in the order of the columns.
        note: how it was measured.
    """
    table = Table(
        "Ostinato beside other engines",
        ("figure", *titles.values(), "× best peer", "goal", "share of limit"),
        note=note,
    )
    for row in rows:
        cells = [_cell(row.figure, row.medians.get(name)) for name in titles]
        goal = None if row.figure.goal is None else _goal(row.figure)
        share = row.shares.get(OWN)
        table.rows.append(
            (
                row.figure.title,
                *cells,
                "–" if row.versus_best is None else f"{row.versus_best:.2f}",
                "–" if goal is None else f"{goal:g}",
                "–" if share is None else f"{share:.0%}",
            )
        )
    return table


def note(plan: Plan, results: Results) -> str:
    """How it was measured, and what is missing."""
    loads = results.loads.values()
    lines = [f"Medians of {plan.rounds}, engines in turns; load average {min(loads)}–{max(loads)}."]
    slow = [f"{place} ({s:.0f} s)" for place, s in results.slowest.items() if s > plan.patience]
    if slow and plan.rounds > 1:
        lines.append(
            f"Measured once, since a turn takes more than {plan.patience:g} s: {', '.join(slow)}."
        )
    for name, reason in results.left_out.items():
        lines.append(f"Left out: {name} ({_short(reason)}).")
    for place, reason in results.failures.items():
        lines.append(f"Failed: {place} ({_short(reason)}).")
    return "\n".join(lines)


def _short(reason: str) -> str:
    return " ".join(reason.split())[:_REASON].rstrip(".:")


def _goal(figure: Figure) -> float:
    """As a ratio of which more is better, for rates and times alike."""
    assert figure.goal is not None
    return figure.goal if figure.higher_is_better else 1 / figure.goal


def _cell(figure: Figure, value: float | None) -> str:
    return "–" if value is None else f"{value:,.{figure.digits}f}"


def row_json(row: Row, results: Results, work: Work, limits: Limits) -> dict[str, Any]:
    """Every measurement of a figure, with the counts it is judged by."""
    return {
        "title": row.figure.title,
        "values": {name: list(v) for name, v in results.values.get(row.figure.key, {}).items()},
        "medians": dict(row.medians),
        "share_of_limit": dict(row.shares),
        "best_peer": row.best_peer,
        "versus_best_peer": row.versus_best,
        "goal": row.figure.goal,
        "counts": as_json(work, limits),
    }
