"""What long runs have found, as JSON files and as tables in the pages beside them.

``./tools/reliability`` makes all of them.  Every file says when, on what machine, and of which
state of the code its figures are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
_ENGINES = {"native": "compiled", "pure": "interpreted", "asan": "compiled, AddressSanitizer"}
_ACTS = {"peer_between_calls": "between the calls", "peer_in_another_process": "all the time"}

Stamp = dict[str, str]


def stamp() -> Stamp:
    """When, where and with what figures are made."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "version": _version(),
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} CPUs",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    }


def _version() -> str:
    """The checkout's (the tools that run on copies of it do not import the package)."""
    source = (CHECKOUT / "shmpipe" / "_version.py").read_text()
    found = re.search(r'^__version__ = "(.+)"', source, re.MULTILINE)
    assert found is not None
    return found[1]


def _commit() -> str:
    """The commit that is checked out, with a + if it is changed; "unknown": there is none."""

    def git(*args: str) -> str:
        command = ["git", "-C", str(CHECKOUT), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # What a run writes itself is no change of the code.
        changed = git("status", "--porcelain", "--", "shmpipe", "tests", "setup.py")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def told(made: Stamp) -> str:
    """A stamp in one line."""
    names = ("version", "commit", "machine", "system")
    state = (made[name] if name != "commit" else f"commit {made[name]}" for name in names)
    return f"{made['date']}: " + ", ".join(state)


def made_lines(stamps: Iterable[Stamp]) -> str:
    """Of the runs that figures are of."""
    return "\n".join(["Made:", "", *dict.fromkeys(f"* {told(made)}" for made in stamps)])


def shown(page: str, table: str) -> str:
    """A page with its figures replaced."""
    before, behind = page.partition(BEGIN)[0], page.partition(END)[2]
    return f"{before}{BEGIN}{table}\n{END}{behind}"


# --- the hostile peer ----------------------------------------------------------------------------


def hostile_table(reports: dict[str, Any]) -> str:
    lines = [
        "| engine | the peer acts | sequences | calls | acts of the peer | failures "
        "| over 1 s late | the latest |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for engine, report in reports.items():
        for how, name in _ACTS.items():
            one = report[how]
            cells = [_ENGINES[engine], name]
            for key in ("sequences", "calls", "acts_of_the_peer", "failures"):
                cells.append(f"{one[key]:,}")
            cells += [f"{one['calls_over_a_second_late']}", f"{one['latest_seconds']:.2f} s"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", made_lines(report["made"] for report in reports.values())])


# --- soak ----------------------------------------------------------------------------------------


def added(stored: dict[str, Any], engine: str, figures: Counter[str], made: Stamp) -> None:
    """Add the figures of a run to those of earlier ones on this engine and this state."""
    states = stored.setdefault(engine, [])
    if not states or states[-1]["made"] != made:
        states.append({"made": made})
    known = states.pop()
    del known["made"]
    total = Counter(known) + figures
    total["runs"] += 1
    states.append({"made": made, **dict(sorted(total.items()))})


def soak_table(stored: dict[str, Any]) -> str:
    names = ("rounds", "operations", "messages", "kills", "signals", "resizes", "hand-overs")
    lines = [
        "| engine | commit | minutes | rounds | operations | messages | SIGKILLs | signals "
        "| resizes | hand-overs |",
        "|---|---|" + "---:|" * 8,
    ]
    for engine, states in stored.items():
        total: Counter[str] = Counter()
        for state in states:
            figures = {key: count for key, count in state.items() if key != "made"}
            total.update(figures)
            lines.append(_soak_row(engine, state["made"]["commit"], figures, names))
        if len(states) > 1:
            lines.append(_soak_row(engine, "together", total, names))
    stamps = [state["made"] for states in stored.values() for state in states]
    return "\n".join([*lines, "", made_lines(stamps)])


def _soak_row(engine: str, state: str, figures: Any, names: tuple[str, ...]) -> str:
    cells = [_ENGINES[engine], state, f"{figures['seconds'] / 60:.0f}"]
    return f"| {' | '.join(cells + [f'{figures.get(name, 0):,}' for name in names])} |"


# --- the pages -----------------------------------------------------------------------------------

TABLES = {"hostile": hostile_table, "soak": soak_table}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=__doc__)
    parser.add_argument("name", choices=sorted(TABLES))
    parser.add_argument("into", type=Path, help="the directory of the page")
    parser.add_argument("parts", nargs="*", metavar="NAME=FILE", help="put together from these")
    options = parser.parse_args()
    stored = options.into / f"{options.name}.json"
    if options.parts:
        parts = (part.partition("=") for part in options.parts)
        whole = {name: json.loads(Path(path).read_text()) for name, _, path in parts}
        stored.write_text(json.dumps(whole, indent=1) + "\n")
    page = stored.with_suffix(".md")
    table = TABLES[options.name](json.loads(stored.read_text()))
    page.write_text(shown(page.read_text(), table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
