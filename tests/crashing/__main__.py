"""Kills processes in the middle of what they do with a pipe, over and over, and prints figures.

tools/crash                         2,000 kills on each engine, at random, and every step once more
tools/crash --kills N --seed SEED   so many; the seed decides what chance does
tools/crash --every-step            one pass over all steps, as the tests do (--full: more of each)
tools/crash --replay CASE           one case again, as a failure names it (--times N)
tools/crash --list                  the names of all steps
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from pathlib import Path
from typing import Any

from tests.figures import stamp

from . import copies, page
from .command import at_random, every_step, walk


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/crash",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", action="append", choices=copies.ENGINES, help="default: both")
    parser.add_argument("--kills", type=int, default=2000, metavar="N", help="on each engine")
    parser.add_argument("--seed", default="", help="default: a new one, which is printed")
    parser.add_argument(
        "--jitter", type=float, default=0.02, help="seconds of a random wait, at most"
    )
    parser.add_argument("--at-once", type=int, default=4, help="runs at a time: they mostly wait")
    parser.add_argument("--every-step", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--replay", metavar="CASE")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", metavar="FILE", help="there, too; and into a page beside it")
    options = parser.parse_args()
    if options.list:
        print("\n".join(copies.step_names()))
        return 0
    options.seed = options.seed or secrets.token_hex(4)
    print(f"seed {options.seed}", file=sys.stderr)
    found = [figures_of(engine, options) for engine in options.engine or copies.ENGINES]
    figures = {"made": stamp(), "engines": found}
    print(json.dumps(figures, indent=2))
    if options.write:
        page.write(figures, Path(options.write))
    missed = any(one["steps_not_died_at"] for one in found) and not options.replay
    return int(missed or any(one["failures"] for one in found))


def figures_of(engine: str, options: argparse.Namespace) -> dict[str, Any]:
    seed = options.seed
    if options.replay:
        case = {"case": options.replay, "times": options.times, "jitter": 0.0}
        return walk(engine, {"kind": "replay", "seed": seed, **case})
    if options.every_step:
        return every_step(engine, seed, options.full, options.at_once)
    return at_random(engine, seed, options.kills, options.jitter, options.at_once)


if __name__ == "__main__":
    sys.exit(main())
