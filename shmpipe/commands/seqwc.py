"""Counts ``seq N`` as ``wc`` does, through a pipe: how many context switches does it take?

One process writes the numbers 1 to N, one per line, in writes of 4096 bytes. Another reads up to
16 KiB at a time and counts lines, words and bytes. This is done with the programs seq and wc over
a pipe of the kernel, with a writer and reader of our own over a pipe of the kernel, and with the
same two over a pipe in shared memory, once for each write size: the free space that there must be
before a sleeping writer is woken.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..policies import POLICIES
from .options import add_json, add_size, positive, size_in_bytes, spin_seconds, terminated
from .pair import ChildFailed, two_cpus
from .pouring import Subject, can_be_had
from .progress import Progress
from .table import byte_count, render

if TYPE_CHECKING:
    from .runs import Result

    Measure = Callable[[Callable[[int], None]], Result]

HELP = "seq N | wc over a shared-memory pipe and over the kernel's, context switches counted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--count", type=positive, default=50_000_000, metavar="N", help="default: 50000000")
    add_size(parser)
    add(
        "--write-size",
        type=size_in_bytes,
        action="append",
        metavar="BYTES",
        help="free space at which a sleeping writer is woken; may be repeated, one run for each"
        " (default: 4096, then 32K or the whole pipe if that is less)",
    )
    add(
        "--policy",
        choices=tuple(POLICIES),
        default="write-size",
        help="when a reader wakes a sleeping writer; only write-size looks at the write size"
        " (default: write-size)",
    )
    add(
        "--spin",
        type=spin_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to spin before a sleep, or auto (default: 0, because this experiment"
        " counts sleeps, and a spin that pays is a sleep that does not happen)",
    )
    add(
        "--repeat",
        type=positive,
        default=3,
        metavar="N",
        help="runs of each kind, of which the median is shown (default: 3)",
    )
    add(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="give writer and reader a CPU each, in all runs, so that what is counted is how often"
        " they wait for each other and not where the scheduler puts them (default: yes)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """All runs, then the table; 1 if a run failed or counted wrongly."""
    # The children do no linear algebra: threads for it would only add context switches to theirs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, terminated)
    try:
        series = _measure(args)
    except (ChildFailed, OSError, ValueError) as error:
        print(f"shmpipe seqwc: {error}", file=sys.stderr)
        return 1
    problems = [problem for runs in series for result in runs for problem in result.problems()]
    if args.json:
        print(json.dumps(_report(args, series, problems), indent=2))
    else:
        _print_table(args, series)
    for problem in problems:
        print(f"shmpipe seqwc: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _measure(args: argparse.Namespace) -> list[list[Result]]:
    """For each row of the experiment, the results of all its runs.

    Nothing runs if our pipe refuses one of the sizes; the kernel's is left out if it cannot be so
    large.
    """
    from . import lines, runs

    count, size = args.count, args.size
    write_sizes = args.write_size or sorted({4096, min(32768, max(size, 4096))})
    for write_size in write_sizes:
        can_be_had(Subject("shmpipe", args.policy, write_size), size, args.spin)
    cpus = two_cpus() if args.pin else None

    def ours(write_size: int) -> Measure:
        return lambda progress: runs.run_shmpipe(
            count, size, write_size, args.policy, args.spin, cpus, progress
        )

    todo: list[tuple[str, Measure]] = []
    if can_be_had(Subject("kernel pipe"), size):
        todo += [
            ("seq | wc, kernel pipe", lambda shown: runs.run_seq_wc(count, size, cpus, shown)),
            ("ours, kernel pipe", lambda shown: runs.run_kernel(count, size, cpus, shown)),
        ]
    for write_size in write_sizes:
        todo.append((f"ours, shmpipe, {byte_count(write_size)}", ours(write_size)))
    progress = Progress(lines.text_size(count))
    series: list[list[Result]] = [[] for _ in todo]
    # Round after round, so that whatever else the machine does for a while hits all rows alike.
    for turn in range(args.repeat):
        for (label, measure), results in zip(todo, series, strict=True):
            progress.start(f"{label}, {turn + 1} of {args.repeat}" if args.repeat > 1 else label)
            try:
                results.append(measure(progress.update))
            except BaseException:
                progress.abort()
                raise
            progress.finish()
    return series


def _median(results: Sequence[Result]) -> Result:
    """The run with the median number of context switches."""
    return sorted(results, key=lambda result: result.switches)[(len(results) - 1) // 2]


def _print_table(args: argparse.Namespace, series: list[list[Result]]) -> None:
    counted = series[-1][-1]
    spin = "automatic" if args.spin is None else f"{args.spin:g} s" if args.spin else "off"
    print(f"seq {args.count} | wc: {counted.lines} {counted.words} {counted.bytes}")
    cpus = two_cpus() if args.pin else None
    placed = f"writer on CPU {cpus[0]}, reader on CPU {cpus[1]}" if cpus else "on any CPU"
    print(f"wake policy {args.policy}, spinning {spin}, {placed}")
    if args.repeat > 1:
        print(f"of {args.repeat} runs each, the one with the median number of context switches")
    print()
    print(render([_median(results) for results in series]))


def _report(
    args: argparse.Namespace, series: list[list[Result]], problems: list[str]
) -> dict[str, object]:
    return {
        "count": args.count,
        "problems": problems,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "results": [_median(results).as_dict() for results in series],
        "runs": [result.as_dict() for results in series for result in results],
    }
