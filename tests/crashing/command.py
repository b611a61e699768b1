"""Starts walkers for one engine, and puts together what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from . import copies


def walk(engine: str, *jobs: dict[str, Any]) -> dict[str, Any]:
    """What walkers find out, one for each job, all at once: they mostly wait.

    RuntimeError: a walker has failed itself.
    """
    environment = copies.environment_for(engine)
    directory = copies.copy_for(engine)  # also the current one: Python 3.10 puts it in front
    walkers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.crashing.walker", json.dumps(job)],
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for job in jobs
    ]
    found = []
    for walker in walkers:
        output = walker.communicate()[0]
        if walker.returncode:
            raise RuntimeError(f"a walker ended with {walker.returncode}:\n{output}")
        found.append(json.loads(output.splitlines()[-1]))
    return together(found)


def at_random(engine: str, seed: str, kills: int, jitter: float, at_once: int) -> dict[str, Any]:
    """So many deaths anywhere; then one at each step that chance has left out.

    If one of those is not come to any more, all steps are gone through.
    """
    job = {"kind": "chance", "kills": -(-kills // at_once), "jitter": jitter, "parts": at_once}
    jobs = [{**job, "part": part, "seed": f"{seed}.{part}"} for part in range(at_once)]
    found = _completed(engine, seed, jobs)
    if found["steps_not_died_at"]:
        found = together([found, every_step(engine, f"{seed}.all", False, at_once)])
    return found


def every_step(engine: str, seed: str, full: bool, at_once: int) -> dict[str, Any]:
    """One pass over all steps."""
    job = {"kind": "every step", "seed": seed, "full": full, "parts": at_once}
    return _completed(engine, seed, [{**job, "part": part} for part in range(at_once)])


def _completed(engine: str, seed: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The jobs, and then more tries for the steps that they have left out."""
    found = walk(engine, *jobs)
    steps, places = found["steps_not_died_at"], found.pop("places")
    if steps:
        job = {"kind": "missing", "seed": f"{seed}.missing", "steps": steps}
        rest = walk(engine, {**job, "places": {step: places.get(step, []) for step in steps}})
        found = together([found, rest])
    return {**found, "seed": seed}


def together(found: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several walkers as one: sums, the largest of what is a maximum."""
    first, *others = found
    total = dict(first)
    for other in others:
        for key, value in other.items():
            if key == "places":
                total[key] = {**value, **total[key]}
            elif key in ("latest", "longest", "seconds"):
                total[key] = max(total[key], value)
            elif key == "steps_not_died_at":
                total[key] = sorted(set(total[key]) & set(value))
            elif isinstance(value, dict):
                mine = total[key]
                total[key] = {
                    name: mine.get(name, 0) + value.get(name, 0)
                    for name in sorted(mine.keys() | value.keys())
                }
            elif isinstance(value, list):
                total[key] = total[key] + value
            elif isinstance(value, int) and key != "steps":
                total[key] += value
    return total
