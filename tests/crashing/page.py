"""The figures as files: all of them as JSON, the main ones as a table in the page beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.figures import BEGIN, END, made_lines, shown

_ROWS = (
    ("runs", lambda one: f"{one['runs']:,}"),
    ("killed with SIGKILL", lambda one: f"{one['kills']:,}"),
    ("stopped on their way", lambda one: f"{one['stops']:,}"),
    (
        "steps died at, of all",
        lambda one: f"{one['steps'] - len(one['steps_not_died_at'])} of {one['steps']}",
    ),
    ("promises checked", lambda one: f"{sum(one['promises_checked'].values()):,}"),
    ("not kept", lambda one: f"{len(one['failures'])}"),
    ("latest", lambda one: f"{one['latest'][0]:.2f} s"),
    ("longest", lambda one: f"{one['longest'][0]:.1f} s"),
)


def table(figures: dict[str, Any]) -> str:
    engines = figures["engines"]
    lines = ["| | " + " | ".join(one["engine"] for one in engines) + " |"]
    lines.append("|---|" + "---|" * len(engines))
    lines += [f"| {name} | " + " | ".join(map(tell, engines)) + " |" for name, tell in _ROWS]
    return "\n".join([*lines, "", made_lines([figures["made"]])])


def table_in(page: str) -> str:
    """The table that a page shows."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def write(figures: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(figures, indent=2) + "\n")
    page = path.with_suffix(".md")
    if page.exists():
        page.write_text(shown(page.read_text(), table(figures)))
