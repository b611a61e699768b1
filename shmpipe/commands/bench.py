"""Pours bytes through pipes: how fast, how evenly, and at how many context switches?

For each pipe, one process writes chunks as fast as it can and another one reads them. How many
bytes come out is counted in samples of one second. The table is the one of the program pipe-bench,
with which the wake-up on passing half of the pipe was measured when it was proposed for Linux
in 2019, in samples of one second, 120 of them; what was published of that is shown below it.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import statistics
import sys
from collections.abc import Sequence

import shmpipe

from ..policies import POLICIES
from .options import add_json, add_size, positive, size_in_bytes, spin_seconds, terminated
from .pair import ChildFailed, two_cpus
from .pouring import Pour, Subject, can_be_had, pour
from .progress import Progress
from .table import byte_count

HELP = "pour bytes through the kernel's pipe and ours: rate, spread, context switches"

CPU_SECONDS = 240  # of both processes together, in each of the published runs
PUBLISHED = {"published: before": 22_187, "published: on passing half": 17_728}
"""Context switches in all; no other figure of the two runs is at hand."""

HEADS = ("BENCHMARK", "BEST", "TOTAL BYTES", "AVG BYTES/S", "STDDEV", "SWITCHES/CPU-S")


def seconds_of(text: str) -> float:
    """A time above 0 and up to an hour."""
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError("above 0 and at most 3600 seconds")
    return value


def chunk_size(text: str) -> int:
    """1 byte to 1 MiB."""
    size = size_in_bytes(text)
    if size > 1 << 20:
        raise argparse.ArgumentTypeError("at most 1 MiB")
    return size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--samples", type=positive, default=10, metavar="N", help="samples per pipe (default: 10)")
    add(
        "--sample-seconds",
        type=seconds_of,
        default=1.0,
        metavar="SECONDS",
        help="length of a sample (default: 1)",
    )
    add_size(parser)
    add(
        "--write-chunk",
        type=chunk_size,
        default=4096,
        metavar="BYTES",
        help="bytes of one write, 1 to 1M (default: 4096)",
    )
    add(
        "--read-chunk",
        type=chunk_size,
        default=4096,
        metavar="BYTES",
        help="bytes of one read, 1 to 1M (default: 4096)",
    )
    add(
        "--write-size",
        type=size_in_bytes,
        metavar="BYTES",
        help="for the policy write-size (default: half of the pipe)",
    )
    add(
        "--policy",
        choices=tuple(POLICIES),
        action="append",
        help="only this wake policy beside the kernel's pipe; may be repeated (default: all)",
    )
    add(
        "--spin",
        type=spin_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to spin before a sleep, or auto (default: 0, as the kernel's pipe does not)",
    )
    add(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="give writer and reader a CPU each (default: yes)",
    )
    add_json(parser)


def subjects(args: argparse.Namespace) -> list[Subject]:
    """The rows of the table."""
    half = max(4096, args.size // 2)
    found = [Subject("kernel pipe")]
    for policy in args.policy or POLICIES:
        if policy == "write-size":
            write_size = args.write_size or half
            name = f"shmpipe write-size {byte_count(write_size)}"
            found.append(Subject(name, policy, write_size))
        else:
            found.append(Subject(f"shmpipe {policy}", policy))
    return found


def measure(args: argparse.Namespace) -> list[Pour]:
    """One run of each subject, one after the other; nothing runs if one of them is refused.

    The kernel's pipe is left out if it cannot be so large.
    """
    wanted = [one for one in subjects(args) if can_be_had(one, args.size, args.spin)]
    cpus = two_cpus() if args.pin else None
    progress = Progress(args.samples)
    pours = []
    for subject in wanted:
        progress.start(subject.name)
        try:
            pours.append(
                pour(
                    subject,
                    args.size,
                    args.write_chunk,
                    args.read_chunk,
                    args.samples,
                    args.sample_seconds,
                    args.spin,
                    cpus,
                    progress.update,
                )
            )
        except BaseException:
            progress.abort()
            raise
        progress.finish()
    return pours


def table(pours: Sequence[Pour]) -> list[list[str]]:
    """The rows of the table, the published ones last."""
    rows = [
        [
            run.name,
            f"{max(run.samples):,.0f}",
            f"{run.total:,}",
            f"{statistics.fmean(run.samples):,.0f}",
            f"{statistics.pstdev(run.samples):,.0f}",
            f"{run.switch_rate:,.1f}",
        ]
        for run in pours
    ]
    for name, switches in PUBLISHED.items():
        rows.append([name, "-", "-", "-", "-", f"{switches / CPU_SECONDS:,.1f}"])
    return rows


def render(rows: Sequence[Sequence[str]]) -> str:
    """The table as text."""
    cells = [HEADS, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *values in [HEADS, ["=" * width for width in widths], *rows]:
        fields = [name.ljust(widths[0])]
        fields += [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
        lines.append("  ".join(fields).rstrip())
    return "\n".join(lines)


def report(args: argparse.Namespace, pours: Sequence[Pour]) -> dict[str, object]:
    """The results for JSON."""
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "engine": shmpipe.engine,
        "samples": args.samples,
        "sample_seconds": args.sample_seconds,
        "published": {
            name: {
                "switches": switches,
                "cpu_seconds": CPU_SECONDS,
                "switches_per_cpu_second": switches / CPU_SECONDS,
            }
            for name, switches in PUBLISHED.items()
        },
        "results": [run.as_dict() for run in pours],
    }


def run(args: argparse.Namespace) -> int:
    """All pipes, then the table; 1 if one of them could not be measured."""
    signal.signal(signal.SIGTERM, terminated)
    try:
        pours = measure(args)
    except (ChildFailed, OSError, ValueError) as error:
        print(f"shmpipe bench: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(report(args, pours), indent=2))
        return 0
    print(
        f"pipes of {byte_count(args.size)}, writes of {byte_count(args.write_chunk)}, reads of"
        f" {byte_count(args.read_chunk)}, {args.samples} samples of {args.sample_seconds:g} s,"
        f" engine {shmpipe.engine}\n"
    )
    print(render(table(pours)))
    return 0
