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
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ..policies import POLICIES
from .pair import ChildFailed
from .progress import Progress
from .table import byte_count, render

if TYPE_CHECKING:
    from .runs import Result

HELP = "seq N | wc over a shared-memory pipe and over the kernel's, context switches counted"
SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_in_bytes(text: str) -> int:
    """``65536``, ``64K`` or ``64KiB``."""
    number = text.lower().removesuffix("ib").removesuffix("b")
    suffix = number[-1:] if number[-1:] in SUFFIXES else ""
    try:
        size = int(number.removesuffix(suffix)) * SUFFIXES[suffix]
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (try 4096, 64K or 1M)") from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"a size is at least 1 byte: {text!r}")
    return size


def positive(text: str) -> int:
    """A number of lines."""
    number = int(text.replace("_", ""))
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 is needed")
    return number


def spin_seconds(text: str) -> float | None:
    """``auto``, or seconds."""
    if text == "auto":
        return None
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError("at least 0 seconds, or auto")
    return seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--count", type=positive, default=50_000_000, metavar="N", help="default: 50000000")
    add(
        "--size",
        type=size_in_bytes,
        default=65536,
        metavar="BYTES",
        help="size of all the pipes (default: 64K)",
    )
    add(
        "--write-size",
        type=size_in_bytes,
        action="append",
        metavar="BYTES",
        help="free space at which a sleeping writer is woken; may be repeated, one run for each"
        " (default: 4096, then 32K)",
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
    add("--json", action="store_true", help="print the results as JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """All runs, then the table; 1 if a run failed or counted wrongly."""
    # The children do no linear algebra: threads for it would only add context switches to theirs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, _terminated)
    try:
        results = _measure(args)
    except (ChildFailed, OSError, ValueError) as error:
        print(f"shmpipe seqwc: {error}", file=sys.stderr)
        return 1
    problems = [problem for result in results for problem in result.problems()]
    if args.json:
        print(json.dumps(_report(args, results, problems), indent=2))
    else:
        _print_table(args, results)
    for problem in problems:
        print(f"shmpipe seqwc: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _terminated(number: int, frame: object) -> NoReturn:
    """Leave through the code that ends the children."""
    sys.exit(128 + number)


def _measure(args: argparse.Namespace) -> list[Result]:
    from . import lines, runs

    def ours(write_size: int) -> Callable[[Callable[[int], None]], Result]:
        return lambda progress: runs.run_shmpipe(
            args.count, args.size, write_size, args.policy, args.spin, progress
        )

    todo: list[tuple[str, Callable[[Callable[[int], None]], Result]]] = [
        ("seq | wc, kernel pipe", lambda shown: runs.run_seq_wc(args.count, args.size, shown)),
        ("ours, kernel pipe", lambda shown: runs.run_kernel(args.count, args.size, shown)),
    ]
    for write_size in args.write_size or (4096, 32768):
        todo.append((f"ours, shmpipe, {byte_count(write_size)}", ours(write_size)))
    progress = Progress(lines.text_size(args.count))
    results = []
    for label, measure in todo:
        progress.start(label)
        try:
            results.append(measure(progress.update))
        except BaseException:
            progress.abort()
            raise
        progress.finish()
    return results


def _print_table(args: argparse.Namespace, results: list[Result]) -> None:
    counted = results[-1]
    spin = "automatic" if args.spin is None else f"{args.spin:g} s" if args.spin else "off"
    print(f"seq {args.count} | wc: {counted.lines} {counted.words} {counted.bytes}")
    print(f"wake policy {args.policy}, spinning {spin}, {os.cpu_count()} CPUs\n")
    print(render(results))


def _report(
    args: argparse.Namespace, results: list[Result], problems: list[str]
) -> dict[str, object]:
    return {
        "count": args.count,
        "problems": problems,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "results": [result.as_dict() for result in results],
    }
