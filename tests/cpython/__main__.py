"""Run them by hand: ``python -m tests.cpython [options] [PATTERN ...]``."""

from __future__ import annotations

import argparse
import sys
import time

from . import runner, selection


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cpython", description="Runs CPython's own tests with another Pipe."
    )
    parser.add_argument("--method", default="fork", choices=["fork", "spawn", "forkserver"])
    parser.add_argument("--pipe", default="shmpipe", help="stdlib, shmpipe, or a stand-in's name")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one test")
    parser.add_argument("--list", action="store_true", help="only print the names")
    parser.add_argument(
        "--exceptions", action="store_true", help="run only those that are left out"
    )
    parser.add_argument("--group", action="append", choices=list(selection.GROUPS))
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="print the N slowest")
    parser.add_argument("--output", action="store_true", help="print what the tests printed")
    parser.add_argument(
        "patterns",
        nargs="*",
        help="Class.method, with wildcards (default: all that are chosen in selection.py)",
    )
    args = parser.parse_args()

    names = runner.available(args.method)
    if args.patterns:
        names = runner.select(names, args.patterns)
    elif args.exceptions:
        names = list(selection.EXCEPTIONS)
    else:
        names = selection.chosen(names, args.method, args.group or selection.GROUPS)
    if args.list:
        print("\n".join(names))
        return 0
    start = time.monotonic()
    report = runner.run_tests(args.method, args.pipe, names, limit=args.limit, jobs=args.jobs)
    for outcome in report.outcomes.values():
        if outcome.outcome in ("failed", "hung", "crashed"):
            print(outcome, end="\n\n")
    for text in report.outside:
        print(f"outside of tests: {text}")
    for text in report.left:
        print(f"left behind: {text}")
    if report.altered:
        print("left threads or processes at the end of a class (see --output)")
    if args.output:
        print(report.output)
    by_time = sorted(report.outcomes.values(), key=lambda outcome: -outcome.seconds)
    for outcome in by_time[: args.slowest]:
        print(f"{outcome.seconds:8.2f} s {outcome.pipes:5} pipes  {outcome.name}")
    counts = {kind: len(report.named(kind)) for kind in ("passed", "skipped", "failed")}
    counts["hung or crashed"] = len(report.named("hung", "crashed"))
    print(
        f"Python {sys.version.split()[0]}, {args.method}, {args.pipe}: "
        + ", ".join(f"{count} {kind}" for kind, count in counts.items())
        + f"; {report.pipes} pipes made; {time.monotonic() - start:.0f} s"
    )
    return int(bool(report.named("failed", "hung", "crashed") or report.outside or report.left))


if __name__ == "__main__":
    sys.exit(main())
