"""The measured parts of docs/wakeups.md: tables between marks that say which."""

from __future__ import annotations

from typing import Any

from shmpipe.commands import bench as pipe_bench
from shmpipe.commands.table import byte_count

from . import pages, seq_wc

SMALL, LARGE = 1 << 16, 1 << 20  # the two pipe sizes that the page shows in full


def fill(page: str, document: dict[str, Any]) -> str:
    """The page with every measured part written anew.

    KeyError: the page asks for a part that there is not.
    """
    parts = {
        "machine": _machine,
        "seq-wc": _seq_wc,
        "claims": _claims,
        "pipe-bench": _pipe_bench,
        "connection": _connection,
    }

    return pages.fill(page, {name: lines(document) for name, lines in parts.items()})


def _text(cell: str) -> str:
    return cell.replace("|", "\\|")


def _machine(document: dict[str, Any]) -> list[str]:
    plan = document["plan"]
    return [
        f"Measured on {document['date'][:10]} with shmpipe's {document['engine']} engine, Python"
        f" {document['python']},",
        f"{document['kernel']}, {document['cpus']} CPUs; load when it began: {document['load']:g}.",
        f"seq counts to N = {plan['count']:,}, {plan['repeat']} runs for each row; pipe-bench takes"
        f" {plan['samples']} samples of {plan['sample_seconds']:g} s;",
        f"{plan['messages']:,} messages, {plan['flow_repeat']} runs for each point; medians of the"
        " runs.",
        "Spinning off; writer and reader on a CPU each.",
    ]


def _seq_wc(document: dict[str, Any]) -> list[str]:
    lines = []
    for size in (SMALL, LARGE):
        wanted = {"seq | wc, kernel", "ours, kernel", *seq_wc.OTHER_POLICIES}
        wanted |= {f"write-size {byte_count(part)}" for part in (4096, size // 4, size // 2, size)}
        records = [r for r in document["seq_wc"] if r["size"] == size and r["row"] in wanted]
        if records:
            shown = [[_text(cell) for cell in row[1:]] for row in seq_wc.cells(records)]
            lines += [f"Pipe of {byte_count(size)}:", ""]
            lines += [*pages.table(seq_wc.HEADS[1:], shown), ""]
    return lines[:-1]


def claims(document: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """What was claimed; what was found, and in how much time; whether that bears it out.

    Switches are those of the median run. Times are those of the fastest, and count as the same up
    to 5 % more. What was published of pipe-bench is compared with pipe-bench, per CPU-second.
    """
    found = []

    def compare(size: int, row: str, base: str, claimed: str, most: float) -> None:
        compared = _compared(document, size, row, base)
        if compared:
            switches, seconds, measured = compared
            name = f"{byte_count(size)}, `{row}` against `{base}`"
            found.append((name, claimed, measured, switches <= most and seconds <= 1.05))

    for row in ("write-size 32 KiB", "half"):
        compare(SMALL, row, "page", "published: 0.50 × (26 to 13 thousand), same time", 0.5)
    rates = {
        run["name"]: run["switches_per_cpu_second"] for run in document["pipe_bench"]["results"]
    }
    rate, base = (rates.get(f"shmpipe {policy}") for policy in ("edge-half", "page"))
    if rate and base:
        name = "pipe-bench, `edge-half` against `page`"
        measured = f"{rate / base:.2f} × for each CPU-second"
        found.append((name, "published: 0.80 × (22,187 to 17,728)", measured, rate / base <= 0.8))
    for row in ("write-size 512 KiB", "half"):
        compare(LARGE, row, "page", "ours: at most 0.05 ×", 0.05)
    return found


def _compared(
    document: dict[str, Any], size: int, row: str, base: str
) -> tuple[float, float, str] | None:
    """One row of seq | wc against another: switches, seconds, both in words; None: no such row."""
    rows = {(record["size"], record["row"]): record for record in document["seq_wc"]}
    one, other = rows.get((size, row)), rows.get((size, base))
    if not one or not other:
        return None
    switches = one["switches"] / max(other["switches"], 1)
    waits = _waits(one) / max(_waits(other), 1)
    seconds = one["fastest"] / other["fastest"]
    measured = f"{switches:.2f} × (waits alone {waits:.2f} ×), time {seconds:.2f} ×"
    return switches, seconds, measured


def _waits(record: dict[str, Any]) -> int:
    """Voluntary switches: those that other load on the machine does not cause."""
    return int(record["writer"]["voluntary"] + record["reader"]["voluntary"])


def _claims(document: dict[str, Any]) -> list[str]:
    rows = [
        (name, published, measured, "yes" if holds else "**no**")
        for name, published, measured, holds in claims(document)
    ]
    lines = pages.table(("", "claimed", "measured here", "borne out"), rows, 4)
    compared = _compared(document, SMALL, "edge-half", "page")
    if compared:
        lines += ["", "Nothing was published of `edge-half` in seq | wc; measured here, 64 KiB:"]
        lines += [f"{compared[2]}."]
    return lines


def _pipe_bench(document: dict[str, Any]) -> list[str]:
    rows = [
        (
            run["name"],
            f"{run['best']:,.0f}",
            f"{run['total']:,}",
            f"{run['average']:,.0f}",
            f"{run['deviation']:,.0f}",
            f"{run['switches_per_cpu_second']:,.1f}",
            f"{run['switches'] / (run['total'] / 1e9):,.0f}",
        )
        for run in document["pipe_bench"]["results"]
    ]
    for name, published in document["pipe_bench"]["published"].items():
        rows.append((name, "-", "-", "-", "-", f"{published['switches_per_cpu_second']:.1f}", "-"))
    heads = [head.lower().replace("cpu-s", "CPU-s") for head in pipe_bench.HEADS]
    return pages.table([*heads, "switches/GB"], rows)


def _connection(document: dict[str, Any]) -> list[str]:
    records = document["flows"]["connection"]
    messages = sorted({record["message"] for record in records})
    heads = ["write size"]
    for message in messages:
        name = byte_count(message)
        heads += [f"{name}: switches per message", "MB/s", "p99, ms"]
    rows = []
    for write_size in sorted({record["write_size"] for record in records}):
        row = [byte_count(write_size)]
        for message in messages:
            for record in records:
                if (record["write_size"], record["message"]) == (write_size, message):
                    row.append(f"{record['switches']:.4f}")
                    row += [f"{record['rate'] / 1e6:,.0f}", f"{record['p99'] * 1e3:.2f}"]
        rows.append(row)
    return pages.table(heads, rows)
