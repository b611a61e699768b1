"""What the threshold for waking writers does: ``python -m bench.wake_curves``.

Measures seq | wc over every wake policy, pipe size and write size, the table of pipe-bench, and
messages between sides of equal and of unequal speed; draws the plots. With ``--docs docs`` it
writes all that docs/wakeups.md shows: the tables in it, and the plots and the figures beside it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import shmpipe
from shmpipe.commands import bench as pipe_bench
from shmpipe.commands.pair import two_cpus
from shmpipe.commands.table import replace_unprintable

from . import flows, pages, seq_wc, wake_page, wake_plots
from .flows import Flow, Point

STREAM_SIZES = (1 << 14, 1 << 16, 1 << 20)
UNEQUAL_SIZE = 1 << 16
WORKS = ((2e-6, 20e-6), (10e-6, 10e-6), (20e-6, 2e-6))  # seconds for each message
CONNECTION_SIZE = 2 << 20
CONNECTION_MESSAGES = (1 << 12, 1 << 16)
CONNECTION_WORK = 20e-6


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    count: int = 50_000_000  # numbers of seq
    sizes: tuple[int, ...] = seq_wc.SIZES
    repeat: int = 3
    samples: int = 20  # of pipe-bench, one second each
    sample_seconds: float = 1.0
    messages: int = 50_000
    flow_repeat: int = 5

    @staticmethod
    def fast() -> Plan:
        return Plan(count=10_000_000, samples=4, messages=20_000, flow_repeat=3)

    @staticmethod
    def smoke() -> Plan:
        return Plan(
            count=20_000,
            sizes=(1 << 16, 1 << 20),
            repeat=1,
            samples=1,
            sample_seconds=0.05,
            messages=60,
            flow_repeat=1,
        )


def points() -> dict[str, list[Point]]:
    """The messages to measure, by plot."""
    stream = [
        Point(Flow(), size, write_size)
        for size in STREAM_SIZES
        for write_size in (None, *seq_wc.write_sizes(size))
    ]
    unequal = [
        Point(Flow(write_work=write, read_work=read), UNEQUAL_SIZE, write_size)
        for write, read in WORKS
        for write_size in (None, *seq_wc.write_sizes(UNEQUAL_SIZE))
    ]
    connection = [
        Point(Flow(message, read_work=CONNECTION_WORK, connection=True), CONNECTION_SIZE, size)
        for message in CONNECTION_MESSAGES
        for size in (1 << 16, *seq_wc.write_sizes(CONNECTION_SIZE))
    ]
    return {"stream": stream, "unequal": unequal, "connection": connection}


def measure(plan: Plan) -> dict[str, Any]:
    """All of it; what comes out is what the plots and the page are made from."""
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "engine": getattr(shmpipe, "engine", "pure"),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "plan": asdict(plan),
    }
    cpus = two_cpus()
    grid = seq_wc.rows(plan.count, plan.sizes, cpus=cpus)
    document["seq_wc"] = [_short(r) for r in seq_wc.measure(grid, plan.count, plan.repeat)]
    document["pipe_bench"] = _pipe_bench(plan)
    document["flows"] = {
        name: flows.measure(wanted, plan.messages, plan.flow_repeat, 0.0, cpus)
        for name, wanted in points().items()
    }
    return document


KEPT = (
    *("row", "repeat", "pipe", "programs", "policy", "size", "write_size"),
    *("seconds", "fastest", "cpu_seconds", "switches", "writer", "reader"),
)
KEPT_STATS = ("writer_sleeps", "writer_wakes", "writer_wakes_withheld", "reader_sleeps")


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """What the page and the plots need, so that the file stays small enough to be committed."""
    stats = record["stats"]
    return {
        **{name: record[name] for name in KEPT},
        "stats": stats and {name: stats[name] for name in KEPT_STATS},
    }


def _pipe_bench(plan: Plan) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    pipe_bench.add_arguments(parser)
    amount = ["--samples", str(plan.samples), "--sample-seconds", str(plan.sample_seconds)]
    options = parser.parse_args(amount)
    return pipe_bench.report(options, pipe_bench.measure(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.wake_curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--fast", action="store_true", help="shorter runs")
    amount.add_argument("--smoke", action="store_true", help="only see that everything works")
    parser.add_argument("--load", type=Path, metavar="FILE", help="take the figures from there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write its measured parts anew")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the plots (matplotlib)")
    parser.add_argument(
        "--docs", type=Path, metavar="DIR", help="all three: DIR/wakeups.md and DIR/wakeups/"
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; returns the exit status: 1 if a claim is not borne out."""
    replace_unprintable()
    options = _parser().parse_args(arguments)
    beside = options.docs / "wakeups" if options.docs else None
    results = options.json or (beside and beside / "measured.json")
    page = options.page or (options.docs and options.docs / "wakeups.md")
    plots = options.plots or beside
    # What is missing is told before a quarter of an hour of measuring, not after it.
    text = page.read_text(encoding="utf-8") if page else ""
    if plots:
        importlib.import_module("matplotlib")
    if options.load:
        document = json.loads(options.load.read_text(encoding="utf-8"))
    else:
        plan = Plan.smoke() if options.smoke else Plan.fast() if options.fast else Plan()
        document = measure(plan)
    print(seq_wc.render(document["seq_wc"]))
    if results:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(pages.compact(document), encoding="utf-8")
    if page:
        page.write_text(wake_page.fill(text, document), encoding="utf-8")
    if plots:
        wake_plots.write(document, plots)
    if document["plan"]["count"] <= Plan.smoke().count:
        return 0  # so few bytes bear out nothing
    claims = wake_page.claims(document)
    for name, published, measured, holds in claims:
        print(f"{'borne out' if holds else 'NOT borne out'}: {name}: {measured} ({published})")
    return 0 if all(holds for *_, holds in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
