"""A peer that overwrites everything, against all calls; see docs/security.md.

tools/fuzz                          a minute: half of it with the peer at work between the calls,
                                    half with a peer that is a process of its own
tools/fuzz --seconds N              so long
tools/fuzz --sequences N --seed S   so many of each, the first with seed S
tools/fuzz --seed S --replay        one sequence with the peer at work between the calls, told
tools/fuzz --asan                   on a build of the compiled engine with AddressSanitizer
tools/fuzz --json FILE              the figures

SHMPIPE_ENGINE=pure or native chooses the engine.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import shmpipe
from tests.figures import stamp

from . import runner, victim
from .victim import Figures
from .watching import Page


def told(figures: Figures, seconds: float) -> dict[str, Any]:
    """Figures for JSON."""
    return {
        "sequences": figures.sequences,
        "seconds": round(seconds),
        "calls": sum(figures.calls.values()),
        "acts_of_the_peer": sum(figures.done.values()),
        "failures": len(figures.failures),
        "calls_over_a_second_late": figures.late,
        "latest_seconds": round(figures.latest[0], 3),
        "latest_call": figures.latest[1],
        "peak_memory_bytes": figures.peak,
        "outcomes": dict(figures.outcomes.most_common()),
        "calls_by_name": dict(figures.calls.most_common()),
        "acts_by_name": dict(figures.done.most_common()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, metavar="N")
    parser.add_argument("--sequences", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=int(time.time()), metavar="S")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--asan", action="store_true", help=argparse.SUPPRESS)  # for tools/fuzz
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    limited = not options.asan  # its shadow alone is terabytes
    if options.replay:
        return replay(options.seed, limited)
    seconds = options.seconds
    if options.sequences is None and seconds is None:
        seconds = 60.0
    print(f"engine {shmpipe.engine}, seeds from {options.seed} on", flush=True)
    report: dict[str, Any] = {
        "engine": shmpipe.engine,
        "python": platform.python_version(),
        "asan": options.asan,
        "first_seed": options.seed,
        "made": stamp(),
    }
    bad = False
    for together in (False, True):
        started = time.monotonic()
        half = None if seconds is None else seconds / 2
        figures = runner.run(options.seed, options.sequences, half, together, limited)
        name = "peer_in_another_process" if together else "peer_between_calls"
        report[name] = told(figures, time.monotonic() - started)
        bad = bad or bool(figures.failures) or figures.late > 0  # docs/security.md: within a second
        short = {key: report[name][key] for key in list(report[name])[:9]}
        print(f"{name}: {short}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(bad)


def replay(seed: int, limited: bool) -> int:
    victim.prepare(limited)
    figures = Figures()
    page = Page()
    page.seed = seed
    victim.run(seed, False, page, figures, lambda line: print(line, flush=True))
    print("\n".join(figures.failures))
    return int(bool(figures.failures))


if __name__ == "__main__":
    sys.exit(main())
