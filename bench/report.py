"""A document in words: lines for the terminal, and Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

PREFIXES = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, " "), (1e-3, " m"), (1e-6, " µ"))


def quantity(value: float) -> str:
    """Three digits and a metric prefix: ``1.23 M``."""
    if not value:
        return "0 "
    # What would be rounded up to 1000 belongs to the next prefix.
    fitting = (each for each in PREFIXES if abs(value) >= each[0] * 0.9995)
    factor, prefix = next(fitting, PREFIXES[-1])
    scaled = value / factor
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f}{prefix}"


def ratio(times: float) -> str:
    """At least two digits that say something."""
    if times >= 100:
        return f"{times:.0f}"
    return f"{times:.2f}" if times >= 0.1 else f"{times:.2g}"


def _columns(workload: dict[str, Any]) -> list[str]:
    unit = workload["unit"]
    per = {"GB": "GB", "million": f"million {unit}s", "one": unit}[workload["per"]]
    found = [f"time per {unit}"]
    if "latency" in _first(workload):
        found = ["mean", "p50", "p99", "p99.9"]
    elif workload["size"]:
        found = ["rate", "throughput"]
    return [*found, f"CPU s per {per}", f"switches per {per}", f"{workload['subject']} ×"]


def _first(workload: dict[str, Any]) -> dict[str, Any]:
    for contender in workload["contenders"]:
        if "median" in contender:
            return contender
    return {}


def _cells(workload: dict[str, Any], contender: dict[str, Any]) -> list[str]:
    median = contender["median"]
    if "latency" in contender:
        latency = contender["latency"]
        found = [quantity(latency[name]) + "s" for name in ("mean", "p50", "p99", "p99.9")]
    elif workload["size"]:
        found = [quantity(median["rate"]) + "/s"]
        throughput = median["bytes_per_second"]
        found.append(quantity(throughput) + "B/s" if throughput else "")
    else:
        found = [quantity(median["seconds_each"]) + "s"]
    times = contender.get("subject_is_times_faster")
    return [
        *found,
        f"{median['cpu_seconds_per']:.3g}",
        quantity(median["switches_per"]).strip(),
        "" if times is None else ratio(times),
    ]


def _failure(contender: dict[str, Any]) -> str:
    return contender.get("failure", "not measured").strip().splitlines()[-1]


def lines(workload: dict[str, Any]) -> list[str]:
    """For the terminal."""
    rows = [["", *_columns(workload)]]
    for contender in workload["contenders"]:
        if "median" in contender:
            rows.append([contender["name"], *_cells(workload, contender)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    found = [f"{workload['title']}  [{workload['name']}]"]
    for row in rows:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        found.append("  ".join(["  " + row[0].ljust(widths[0]), *rest]))
    found += [
        f"  {contender['name']}: {_failure(contender)}"
        for contender in workload["contenders"]
        if "failure" in contender
    ]
    return [*found, *creation_ratios(workload)]


def seconds(sample: dict[str, Any]) -> float:
    """For one message, round trip or pipe."""
    return float(sample["seconds"] / sample["count"])


def ratio_by_rounds(
    ours: dict[str, Any], other: dict[str, Any], value: Callable[[dict[str, Any]], float]
) -> float:
    """How many times less of ``value`` ours takes: the median of pairs, which share their noise."""
    both = zip(ours["rounds"], other["rounds"], strict=False)
    return statistics.median(
        value(theirs) / value(mine) for mine, theirs in both if mine and theirs
    )


def creation_ratios(workload: dict[str, Any]) -> list[str]:
    """The figure that has a limit of its own, said in so many words."""
    if workload["group"] != "creation":
        return []
    found = []
    pairs = {
        "multiprocessing.Pipe()": workload["subject"],
        "multiprocessing.Pipe(False)": "shmpipe.Pipe(False)",
    }
    by_name = {entry["name"]: entry for entry in workload["contenders"] if "median" in entry}
    for theirs, ours in pairs.items():
        if theirs in by_name and ours in by_name:
            cost = 1 / ratio_by_rounds(by_name[ours], by_name[theirs], seconds)
            found.append(f"  {ours} costs {cost:.1f} × {theirs}")
    return found


def markdown(document: dict[str, Any]) -> str:
    """All tables, with the machine and the date."""
    return "\n".join([*about(document), "", *tables(document)]) + "\n"


def about(document: dict[str, Any]) -> list[str]:
    """The machine, the date, and who took part."""
    machine = document["machine"]
    words = [machine.get("cpu_model_name"), f"{machine.get('cpu_count', '?')} cores"]
    words += [machine.get("platform"), f"Python {machine.get('python_version', '?')}"]
    versions = ", ".join(
        f"{name} {version}"
        for name, version in document["versions"].items()
        if name not in ("python", "shmpipe")
    )
    plan = document["plan"]
    out = [
        f"Measured {document['date'][:10]}: {', '.join(filter(None, words))}.",
        f"shmpipe {document['versions']['shmpipe']}, engine {document['engine']}; {versions}.",
        f"Medians of {plan['rounds']} rounds, in each of which all took their turn. The last",
        "column: how many times as fast ours is, as the median of the ratios round by round.",
    ]
    for name, reason in document["skipped"].items():
        out.append(f"Skipped: {name} ({reason}).")
    return out


def tables(document: dict[str, Any]) -> list[str]:
    """A Markdown table for each workload."""
    out: list[str] = []
    for workload in document["workloads"]:
        out += [*([""] if out else []), f"### {workload['title']}", ""]
        columns = _columns(workload)
        out.append("| | " + " | ".join(columns) + " |")
        out.append("|---|" + "---:|" * len(columns))
        for contender in workload["contenders"]:
            if "median" in contender:
                cells = _cells(workload, contender)
                name = contender["name"]
                if name.startswith("shmpipe"):
                    name = f"**{name}**"
                out.append(f"| {name} | " + " | ".join(cells) + " |")
        failed = [entry for entry in workload["contenders"] if "failure" in entry]
        if failed:
            out.append("")
            out += [f"{entry['name']} failed: {_failure(entry)}" for entry in failed]
        if ratios := creation_ratios(workload):
            out += ["", ". ".join(ratio.strip() for ratio in ratios) + "."]
    return out
