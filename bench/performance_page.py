"""The measured parts of docs/performance.md, and what was aimed at beside what was got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import pages, report
from .interpreted import NAME as INTERPRETED
from .limits import PREFIX, TwoCopies

OURS, PIPE, DUPLEX, RUST = (
    "shmpipe",
    "multiprocessing.Pipe(False)",
    "multiprocessing.Pipe()",
    "cloudtoid-interprocess",
)
MEMCPY = PREFIX + "memcpy"


def fill(page: str, document: dict[str, Any]) -> str:
    """The page with every measured part written anew."""
    parts = {
        "machine": report.about(document),
        "aims": _aims(document),
        "rounds": _rounds(document),
        "tables": report.tables(document),
    }
    return pages.fill(page, parts)


@dataclass(frozen=True)
class Aim:
    """A ratio to another contender, or to the best of them."""

    workload: str
    text: str
    against: str | None  # None: the best peer
    least: float
    figure: str = "rate"
    ours: str = OURS


AIMS = (
    Aim("stream-8B", "8 B one way", RUST, 2.5),
    Aim("stream-8B", "8 B one way", PIPE, 8),
    Aim("stream-1KiB", "1 KiB one way", RUST, 2),
    Aim("stream-64KiB", "64 KiB one way", None, 1.5),
    Aim("stream-64KiB", "64 KiB one way, bytes per CPU second", PIPE, 3, "cpu"),
    Aim("stream-1MiB", "1 MiB one way", None, 1.3),
    Aim("stream-1MiB", "1 MiB one way", PIPE, 6),
    Aim("stream-8B", "8 B one way, engine pure", PIPE, 1.3, ours=INTERPRETED),
    Aim("stream-1MiB", "1 MiB one way, engine pure", PIPE, 3, ours=INTERPRETED),
    Aim("stream-8MiB-into", "8 MiB one way, into a buffer", None, 1.3),
    Aim("stream-8MiB-into", "8 MiB one way, into a buffer", MEMCPY, 0.6),
    Aim("roundtrip-8B", "8 B there and back, p50", DUPLEX, 8, "p50"),
    Aim("roundtrip-8B", "8 B there and back, p50", None, 4, "p50"),
    Aim(
        "roundtrip-8B", "8 B there and back, spin=0, p50", DUPLEX, 1 / 0.6, "p50", "shmpipe spin=0"
    ),
    Aim("array-8MB", "NumPy array of 8 MB", DUPLEX, 5),
    Aim("dict", "small dict", DUPLEX, 1.5),
    Aim("selectors", "selectors loop over 16 connections", DUPLEX, 1.2),
)


def _aims(document: dict[str, Any]) -> list[str]:
    rows = []
    for aim in AIMS:
        found = _reached(document, aim)
        if found is not None:
            times, other = found
            reached = "yes" if times >= aim.least else "**no**"
            rows.append([aim.text, other, f"{aim.least:.3g} ×", f"{times:.3g} ×", reached])
    return pages.table(["workload", "against", "aim", "got", "reached"], rows, left=2)


# What differs from round to round more than between two who are compared.
BY_ROUNDS = (
    ("stream-8B", "8 B, M/s", 1e6, (OURS, RUST)),
    ("stream-64KiB", "64 KiB, GB/s", 1e9, (OURS, RUST, TwoCopies.name)),
    ("stream-1MiB", "1 MiB, GB/s", 1e9, (OURS, "iceoryx2", TwoCopies.name)),
    (
        "stream-8MiB-into",
        "8 MiB into a buffer, GB/s",
        1e9,
        (OURS, "iceoryx2", TwoCopies.name, MEMCPY),
    ),
)


def _rounds(document: dict[str, Any]) -> list[str]:
    """Rates in the order in which they were measured, the contenders of a round in turns."""
    rows = []
    for name, text, unit, wanted in BY_ROUNDS:
        measured = _measured(document, name)
        for each in wanted:
            if each in measured:
                amount = 1 if unit == 1e6 else _entry(document, name)["size"]
                rates = [
                    f"{sample['count'] * amount / sample['seconds'] / unit:.1f}" if sample else ""
                    for sample in measured[each]["rounds"]
                ]
                rows.append([text, each, *rates])
                text = ""
    count = max((len(row) for row in rows), default=2) - 2
    rows = [[*row, *[""] * (count + 2 - len(row))] for row in rows]
    return pages.table(["", "", *map(str, range(1, count + 1))], rows, left=2)


def _entry(document: dict[str, Any], workload: str) -> dict[str, Any]:
    return next((each for each in document["workloads"] if each["name"] == workload), {})


def _measured(document: dict[str, Any], workload: str) -> dict[str, Any]:
    """The contenders of a workload that have figures, by name."""
    contenders = _entry(document, workload).get("contenders", ())
    return {each["name"]: each for each in contenders if "median" in each}


def _reached(document: dict[str, Any], aim: Aim) -> tuple[float, str] | None:
    """How many times as good ours is, and as whose; None: that was not measured."""
    measured = _measured(document, aim.workload)
    ours = measured.get(aim.ours)
    if ours is None:
        return None
    others = [aim.against] if aim.against else [name for name in measured if _is_peer(name)]
    found = [
        (_ratio(ours, measured[name], aim.figure), name) for name in others if name in measured
    ]
    return min(found) if found else None


def _is_peer(name: str) -> bool:
    return not name.startswith((OURS, PREFIX))


def _ratio(ours: dict[str, Any], other: dict[str, Any], figure: str) -> float:
    if figure == "p50":
        return float(other["latency"]["p50"] / ours["latency"]["p50"])
    value = _cpu_seconds if figure == "cpu" else report.seconds
    return report.ratio_by_rounds(ours, other, value)


def _cpu_seconds(sample: dict[str, Any]) -> float:
    return float(sample["cpu_seconds"] / sample["count"])
