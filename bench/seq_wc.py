"""``seq N | wc`` for every wake policy, pipe size and write size: ``python -m bench.seq_wc``.

Two processes: one writes the numbers 1 to N, one per line, 4096 bytes at a time; the other reads up
to 16 KiB at a time and counts lines, words and bytes. For each pipe size there are the programs seq
and wc over a pipe of the kernel, our own writer and reader over a pipe of the kernel, and the same
two over a shared-memory pipe: once under each wake policy, and under the policy write-size once for
each write size from one page to the whole pipe. What is shown of several runs is the one with the
median number of context switches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shmpipe.commands import lines, runs
from shmpipe.commands.options import positive, size_in_bytes, spin_seconds
from shmpipe.commands.pair import two_cpus
from shmpipe.commands.progress import Progress
from shmpipe.commands.runs import Result
from shmpipe.commands.table import byte_count, replace_unprintable
from shmpipe.policies import POLICIES

PAGE = 4096
SIZES = tuple(1 << shift for shift in range(14, 25, 2))  # 16 KiB to 16 MiB
OTHER_POLICIES = tuple(policy for policy in POLICIES if policy != "write-size")


@dataclass(frozen=True)
class Row:
    """One row of the grid; ``measure(progress)`` runs it once."""

    size: int
    name: str
    measure: Callable[[Callable[[int], None]], Result]


def write_sizes(size: int) -> list[int]:
    """From one page to the whole pipe, in bytes."""
    pages = size // PAGE
    steps = {1, pages // 64, pages // 8, pages // 4, pages // 2, pages * 3 // 4, pages}
    return [step * PAGE for step in sorted(steps) if step]


def rows(
    count: int,
    sizes: Iterable[int] = SIZES,
    policies: Iterable[str] = tuple(POLICIES),
    spin: float | None = 0.0,
    cpus: tuple[int, int] | None = None,
    only: Sequence[int] = (),
) -> list[Row]:
    """The grid; ``only`` are the write sizes to take, if not all."""
    found = []
    for size in sizes:
        found.append(Row(size, "seq | wc, kernel", partial(runs.run_seq_wc, count, size, cpus)))
        found.append(Row(size, "ours, kernel", partial(runs.run_kernel, count, size, cpus)))
        for policy in policies:
            run = partial(runs.run_shmpipe, count, size, policy=policy, spin=spin, cpus=cpus)
            if policy != "write-size":
                found.append(Row(size, policy, partial(_run, run, PAGE)))
                continue
            for write_size in only or write_sizes(size):
                if write_size <= size:
                    name = f"{policy} {byte_count(write_size)}"
                    found.append(Row(size, name, partial(_run, run, write_size)))
    return found


def _run(run: Callable[..., Result], write_size: int, progress: Callable[[int], None]) -> Result:
    return run(write_size=write_size, progress=progress)


def measure(grid: Sequence[Row], count: int, repeat: int) -> list[dict[str, Any]]:
    """One record for each row: the run with the median number of context switches.

    ``fastest`` is the least time of all its runs in seconds, which other load disturbs least.
    Round after round, so that whatever else the machine does for a while hits all rows alike. A
    row that the kernel refuses (a pipe larger than it allows) is left out, and that is said.
    """
    progress = Progress(lines.text_size(count))
    results: list[list[Result]] = [[] for _ in grid]
    refused: set[Row] = set()
    for turn in range(repeat):
        for row, found in zip(grid, results, strict=True):
            if row in refused:
                continue
            progress.start(f"{byte_count(row.size)}, {row.name}, {turn + 1} of {repeat}")
            try:
                found.append(row.measure(progress.update))
            except PermissionError as error:
                progress.abort()
                refused.add(row)
                print(f"left out: {byte_count(row.size)}, {row.name}: {error}", file=sys.stderr)
                continue
            except BaseException:
                progress.abort()
                raise
            progress.finish()
    problems = [text for found in results for result in found for text in result.problems()]
    if problems:
        raise RuntimeError("\n".join(problems))
    return [
        {
            "row": row.name,
            "repeat": len(found),
            "fastest": min(result.seconds for result in found),
            **_median(found).as_dict(),
        }
        for row, found in zip(grid, results, strict=True)
        if found
    ]


def _median(results: Sequence[Result]) -> Result:
    return sorted(results, key=lambda result: result.switches)[(len(results) - 1) // 2]


HEADS = (
    "pipe",
    "row",
    "switches",
    "w vol",
    "w inv",
    "r vol",
    "r inv",
    "wakes",
    "withheld",
    "time",
    "fastest",
    "CPU",
    "× page",
)


def cells(records: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table: one list of texts per record. × page: switches against `page` at that size."""
    pages = {record["size"]: record["switches"] for record in records if record["row"] == "page"}
    found = []
    for record in records:
        stats, base = record["stats"], pages.get(record["size"])
        writer, reader = record["writer"], record["reader"]
        found.append(
            [
                byte_count(record["size"]),
                record["row"],
                f"{record['switches']:,}",
                f"{writer['voluntary']:,}",
                f"{writer['involuntary']:,}",
                f"{reader['voluntary']:,}",
                f"{reader['involuntary']:,}",
                f"{stats['writer_wakes']:,}" if stats else "-",
                f"{stats['writer_wakes_withheld']:,}" if stats else "-",
                f"{record['seconds']:.2f} s",
                f"{record['fastest']:.2f} s",
                f"{record['cpu_seconds']:.2f} s",
                f"{record['switches'] / base:.2f}" if base else "-",
            ]
        )
    return found


def render(records: Sequence[dict[str, Any]]) -> str:
    """The table as text."""
    table = [list(HEADS), *cells(records)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    shown = []
    for line in table:
        left = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
        shown.append("  ".join(left + right).rstrip())
    return "\n".join(shown)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.seq_wc",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--count", type=positive, default=50_000_000, metavar="N", help="default: 50000000")
    add(
        "--size",
        type=size_in_bytes,
        action="append",
        metavar="BYTES",
        help="a pipe size; may be repeated (default: 16K, 64K, 256K, 1M, 4M, 16M)",
    )
    add(
        "--policy",
        choices=tuple(POLICIES),
        action="append",
        help="a wake policy; may be repeated (default: all)",
    )
    add(
        "--write-size",
        type=size_in_bytes,
        action="append",
        default=[],
        metavar="BYTES",
        help="for the policy write-size; may be repeated (default: from a page to the whole pipe)",
    )
    add(
        "--spin",
        type=spin_seconds,
        default=0.0,
        metavar="SECONDS",
        help="how long to spin before a sleep, or auto (default: 0: sleeps are what is counted)",
    )
    add("--repeat", type=positive, default=3, metavar="N", help="runs of each row (default: 3)")
    add("--json", type=Path, metavar="FILE", help="write the results")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    replace_unprintable()
    options = _parser().parse_args(arguments)
    grid = rows(
        options.count,
        options.size or SIZES,
        options.policy or tuple(POLICIES),
        options.spin,
        two_cpus(),
        options.write_size,
    )
    records = measure(grid, options.count, options.repeat)
    print(render(records))
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
