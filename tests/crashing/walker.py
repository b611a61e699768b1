"""Runs on the instrumented copy: ``python -m tests.crashing.walker JOB``, started by ``command``.

What comes out is printed as JSON, on a line of its own.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

import shmpipe

from . import walking
from .walking import Case, Figures


def sample(figures: Figures, seed: str, count: int) -> None:
    """A few deaths in the walks that take no time."""
    walking.survey(figures, seed, walking.QUICK)
    for number in range(count):
        figures.perform(walking.by_chance(figures, f"{seed}.{number}"))


def every_step(figures: Figures, seed: str, full: bool, part: int, parts: int) -> None:
    walking.survey(figures, f"{seed}.{part}", times=3 if full else 1)
    for case in walking.every_step(figures, seed, full)[part::parts]:
        figures.perform(case)


def by_chance(
    figures: Figures, seed: str, kills: int, jitter: float, part: int, parts: int
) -> None:
    walking.survey(figures, seed, [repr(walk) for walk in walking.WALKS[part::parts]])
    number, told = 0, time.monotonic()
    while figures.kills < kills and len(figures.failures) < 20:
        figures.perform(walking.by_chance(figures, f"{seed}.{number}"), jitter)
        number += 1
        if time.monotonic() > told + 30:
            told = time.monotonic()
            print(
                f"{shmpipe.engine}: {figures.kills} kills in {figures.runs} runs, "
                f"{len(figures.failures)} failures",
                file=sys.stderr,
                flush=True,
            )


def missing(figures: Figures, seed: str, steps: list[str], places: dict[str, Any]) -> None:
    for step, found in places.items():
        for walk, victim in found:
            figures.seen.setdefault((walk, victim), {})[step] = 1
    walking.remaining(figures, seed, steps)


def main(job: dict[str, Any]) -> dict[str, Any]:
    figures = Figures()
    begin = time.monotonic()
    seed = job["seed"]
    match job["kind"]:
        case "sample":
            sample(figures, seed, job["count"])
        case "every step":
            every_step(figures, seed, job["full"], job["part"], job["parts"])
        case "chance":
            by_chance(figures, seed, job["kills"], job["jitter"], job["part"], job["parts"])
        case "missing":
            missing(figures, seed, job["steps"], job.get("places", {}))
        case "replay":
            for _ in range(job["times"]):
                figures.perform(Case.parse(job["case"]), job["jitter"])
    found = figures.as_json()
    if job["kind"] in ("missing", "replay"):
        del found["places"]  # nobody goes on from here
    return {
        "engine": shmpipe.engine,
        "python": sys.version.split()[0],
        "seed": seed,
        "seconds": round(time.monotonic() - begin, 1),
        **found,
    }


if __name__ == "__main__":
    # Of somebody who hangs one wants to see where.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # For the sockets through which ends are handed over: those who are killed leave theirs there.
    directory = tempfile.mkdtemp(prefix="shmpipe-crash-")
    multiprocessing.current_process()._config["tempdir"] = directory  # type: ignore[attr-defined]
    try:
        print(json.dumps(main(json.loads(sys.argv[1]))), flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)
