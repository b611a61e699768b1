"""The results of several runs as a table: one column for each run, one row for each figure."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runs import Result

UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))


def byte_count(number: int) -> str:
    """``65536`` as ``64 KiB``: binary units where they come out even."""
    for unit, name in UNITS:
        if number >= unit and number % unit == 0:
            return f"{number // unit} {name}"
    return f"{number} bytes"


def replace_unprintable() -> None:
    """Show a question mark on stdout for what its encoding does not have, and do not fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def ratio(value: float, base: float) -> str:
    """How many times `base` the value is."""
    return f"{value / base:.2f} ×" if base else "-"


def stat(name: str) -> Callable[[Result], str]:
    """A row for one counter of the pipe."""
    return lambda result: f"{result.stats[name]:,}" if result.stats else "-"


def rows(results: Sequence[Result]) -> list[tuple[str, Callable[[Result], str]]]:
    """The rows of the table: a title, and what to show of each result."""
    kernel = next((result for result in results if result.programs == "seq, wc"), None)
    ours = next((result for result in results if result.pipe == "shmpipe"), None)
    shown: list[tuple[str, Callable[[Result], str]]] = [
        ("pipe", lambda result: result.pipe),
        ("writer and reader", lambda result: result.programs),
        ("pipe size", lambda result: byte_count(result.size)),
        ("write size", lambda result: byte_count(result.write_size) if result.write_size else "-"),
        ("time", lambda result: f"{result.seconds:.2f} s"),
        ("CPU time, both", lambda result: f"{result.cpu_seconds:.2f} s"),
        ("context switches, both", lambda result: f"{result.switches:,}"),
        ("  writer, voluntary", lambda result: f"{result.writer.voluntary:,}"),
        ("  writer, involuntary", lambda result: f"{result.writer.involuntary:,}"),
        ("  reader, voluntary", lambda result: f"{result.reader.voluntary:,}"),
        ("  reader, involuntary", lambda result: f"{result.reader.involuntary:,}"),
        ("sleeps of the writer", stat("writer_sleeps")),
        ("  wakes given", stat("writer_wakes")),
        ("  wakes withheld", stat("writer_wakes_withheld")),
        ("sleeps of the reader", stat("reader_sleeps")),
        ("  wakes given", stat("reader_wakes")),
        ("  wakes withheld", stat("reader_wakes_withheld")),
    ]
    if ours:
        first = ours
        name = f"against shmpipe, {byte_count(first.write_size or 0)}"
        shown.append((name, lambda result: ""))
        shown.append(("  switches", lambda result: ratio(result.switches, first.switches)))
        shown.append(("  time", lambda result: ratio(result.seconds, first.seconds)))
    if kernel:
        base = kernel
        shown.append(("against seq | wc", lambda result: ""))
        shown.append(("  switches", lambda result: ratio(result.switches, base.switches)))
        shown.append(("  time", lambda result: ratio(result.seconds, base.seconds)))
    return shown


def render(results: Sequence[Result]) -> str:
    """The whole table as text."""
    cells = [[title, *map(show, results)] for title, show in rows(results)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for title, *values in cells:
        fields = [title.ljust(widths[0])]
        fields += [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
        lines.append("   ".join(fields).rstrip())
    rule = "-" * max(map(len, lines))
    lines.insert(4, rule)
    return "\n".join(lines)
