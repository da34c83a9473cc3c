"""What a benchmark run leaves behind: the machine, its load, the figures as JSON and as a Markdown table."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import ostinato

RESULTS = Path(__file__).parent / "results"


@dataclass(slots=True)
class Table:
    """One comparison, side by side.

    Attributes:
        title: what is compared.
        columns: names, with units.
        rows: cells, already formatted.
        note: how it was measured.
    """

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + " --- |" * len(self.columns))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"


def machine() -> dict[str, Any]:
    """Facts without which a figure means nothing."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load_average_1m": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ostinato": ostinato.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def save(name: str, before: Mapping[str, Any], tables: Sequence[Table], raw: Any) -> Path:
    """Write ``results/<name>.json`` and ``.md``; returns the latter.

    Args:
        name: of the benchmark.
        before: `machine()` as it was before the run.
        tables: for people.
        raw: every single measurement, for programs.
    """
    RESULTS.mkdir(exist_ok=True)
    after = machine()
    data = {"machine": dict(before), "load_average_after": after["load_average_1m"], "raw": raw}
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    facts = ", ".join(f"{key} {value}" for key, value in before.items())
    text = f"Machine: {facts}; load average after the run {after['load_average_1m']}.\n\n"
    text += "\n".join(table.markdown() for table in tables)
    path = RESULTS / f"{name}.md"
    path.write_text(text)
    return path


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
