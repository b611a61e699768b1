"""The full set: each scenario as far as its limits and a number of schedules allow; the record.

A scenario is searched with no pre-emption first, then with one, and so on, up to its own limit.
Each search contains the ones before, so the last one that came to its end says what is known.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.figures import made_lines, stamp

from . import hunting
from .base import PipeScenario
from .mutants import mutants
from .search import Result

FULL_MOST = 5_000  # schedules of a scenario, all its searches together
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"

Told = Callable[[str, int | None, Result, float], None]


def bounds(scenario: PipeScenario) -> list[int | None]:
    """The pre-emptions that are tried one after the other; None: any number."""
    last = scenario.limits.preemptions
    return [0, 1, None] if last is None else list(range(last + 1))


def in_full(scenario: PipeScenario, most: int, tell: Told) -> dict[str, Any]:
    """What the searches of one scenario have found, to be stored."""
    limits, searches, left = scenario.limits, [], most
    found: dict[str, Any] = {
        "may end late": limits.late,
        "may be killed": limits.deaths,
        "schedules at most": most,
        "searches": searches,
    }
    for bound in bounds(scenario):
        start = time.monotonic()
        result = hunting.search(scenario, bound, left)
        tell(scenario.name, bound, result, time.monotonic() - start)
        left -= result.schedules
        searches.append(
            {
                "pre-emptions": "any" if bound is None else bound,
                "schedules": result.schedules,
                "states": result.states,
                "to the end": result.complete,
            }
        )
        if result.failure is not None:
            found["failure"] = result.failure
            found["schedule"] = result.schedule
        if not result.complete or left <= 0:
            break
    return found


class Record:
    """What is known of all scenarios, stored with every one that is added."""

    def __init__(self, path: Path | None, only: str | None) -> None:
        """``only``: the one scenario that is to be replaced in a file that is there."""
        known = [how for _, how in hunting.known(mutants())]
        self.path = path
        self.failed = False
        self.scenarios: dict[str, Any] = {}
        if path and only and path.exists():
            self.scenarios = json.loads(path.read_text())["scenarios"]
        made = [stamp()]
        self.commit = made[0]["commit"]
        if self.scenarios:
            made = json.loads(path.read_text())["made"] + made  # type: ignore[union-attr]
        self.content: dict[str, Any] = {
            "made": made,
            "mutants": len(known),
            "caught": sum(how is not None for how in known),
        }

    def add(self, name: str, found: dict[str, Any]) -> None:
        self.failed |= "failure" in found
        self.scenarios[name] = {"commit": self.commit, **found}
        self.content["scenarios"] = {
            known: self.scenarios[known] for known in hunting.SCENARIOS if known in self.scenarios
        }
        if self.path:
            self.path.write_text(json.dumps(self.content, indent=1) + "\n")


def table(record: dict[str, Any]) -> str:
    """The record in Markdown."""
    rows = [
        "| scenario | commit | searched to the end | schedules | tried beyond | schedules |",
        "|---|---|---|---:|---|---:|",
    ]
    for name, found in record["scenarios"].items():
        whole = [one for one in found["searches"] if one["to the end"]]
        rest = [one for one in found["searches"] if not one["to the end"]]
        cells = []
        for searches in (whole[-1:], rest):
            for one in searches:
                cells += [_bound(one["pre-emptions"]), f"{one['schedules']:,}"]
            cells += [] if searches else ["", ""]
        rows.append(f"| {name} | {found['commit']} | " + " | ".join(cells) + " |")
    total = sum(one["schedules"] for f in record["scenarios"].values() for one in f["searches"])
    whole = sum(f["searches"][-1]["to the end"] for f in record["scenarios"].values())
    rows += [
        "",
        f"{len(record['scenarios'])} scenarios, {total:,} schedules; {whole} of the scenarios were "
        f"searched to the end of their limits. {record['caught']} of {record['mutants']} mutants "
        "are caught.",
        "",
        made_lines(record["made"]),
    ]
    return "\n".join(rows) + "\n"


def _bound(preemptions: int | str) -> str:
    return "all" if preemptions == "any" else f"{preemptions} pre-emptions"


def with_table(text: str, stored: str) -> str:
    """A page of the documentation with the table of what was stored as JSON."""
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:before] + table(json.loads(stored)) + text[after:]


def put_table(stored: Path, page: Path) -> None:
    page.write_text(with_table(page.read_text(), stored.read_text()))
