"""Plots of a document: rate against size of the message, distribution of the latency."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .limits import PREFIX
from .model import size_name

MARKERS = "osv^D<>pP*X"


def write(document: dict[str, Any], directory: Path) -> list[Path]:
    """Everything the document has the figures for; returns the files."""
    import matplotlib

    matplotlib.use("svg")
    # The same document gives the same files.
    matplotlib.rcParams["svg.hashsalt"] = "shmpipe"
    directory.mkdir(parents=True, exist_ok=True)
    by_name = {workload["name"]: workload for workload in document["workloads"]}
    written = []
    for suffix, verb in (("", "recv_bytes"), ("-into", "recv_bytes_into")):
        streams = [
            workload
            for name, workload in by_name.items()
            if workload["group"] == "streaming" and name.endswith("-into") == bool(suffix)
        ]
        if streams:
            path = directory / f"rate{suffix}.svg"
            _rates(document, streams, verb, path)
            written.append(path)
    for name, workload in by_name.items():
        if workload["group"] == "roundtrip":
            path = directory / f"{name}.svg"
            _latencies(document, workload, path)
            written.append(path)
    return written


def _figure(document: dict[str, Any], title: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(f"{title}\nshmpipe with engine {document['engine']}, {document['date'][:10]}")
    axes.grid(True, which="major", alpha=0.3)
    return figure, axes


def _style(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The same colour and marker for a peer in all plots of a run."""
    names = list(
        dict.fromkeys(
            contender["name"]
            for workload in document["workloads"]
            if workload["group"] in ("streaming", "roundtrip")
            for contender in workload["contenders"]
            if not contender["name"].startswith(PREFIX)
        )
    )
    if name.startswith(PREFIX):
        styles = {"memcpy": ":", "compiled method": "-.", "two copies": (0, (6, 3, 1, 3, 1, 3))}
        style = styles.get(name.removeprefix(PREFIX), "--")
        return {"color": "black", "linewidth": 1, "linestyle": style, "label": name}
    number = names.index(name)
    return {
        "color": f"C{number % 10}",
        "marker": MARKERS[number % len(MARKERS)],
        "linewidth": 2.5 if name.startswith("shmpipe") else 1.2,
        "linestyle": "--" if number >= 10 else "-",
        "label": name,
        "zorder": 3 if name.startswith("shmpipe") else 2,
    }


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})


def _rates(document: dict[str, Any], streams: list[dict[str, Any]], verb: str, path: Path) -> None:
    figure, axes = _figure(document, f"One way, send_bytes to {verb}")
    curves: dict[str, list[tuple[int, float]]] = {}
    for workload in streams:
        for contender in workload["contenders"]:
            if "median" in contender:
                point = (workload["size"], contender["median"]["rate"])
                curves.setdefault(contender["name"], []).append(point)
    for name, points in curves.items():
        points.sort()
        axes.plot(*zip(*points, strict=True), **_style(document, name))
    sizes = sorted({workload["size"] for workload in streams})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [size_name(size, " ") for size in sizes])
    axes.set_xlabel("size of the message")
    axes.set_ylabel("messages per second")
    axes.legend(fontsize="small", loc="lower left")
    _save(figure, path)


def _nines(percent: float) -> float:
    """90 % is at 1, 99 % at 2, and so on: the slow ones are what is to be seen."""
    return -math.log10(1 - percent / 100)


def _latencies(document: dict[str, Any], workload: dict[str, Any], path: Path) -> None:
    figure, axes = _figure(document, workload["title"])
    for contender in workload["contenders"]:
        if "latency" in contender:
            percents, seconds = zip(*contender["latency"]["curve"], strict=True)
            style = {**_style(document, contender["name"]), "markevery": 15}
            axes.plot([_nines(p) for p in percents], [s * 1e6 for s in seconds], **style)
    ticks = [0.0, 50.0, 90.0, 99.0, 99.9]
    axes.set_xticks([_nines(percent) for percent in ticks], [f"{p:g} %" for p in ticks])
    axes.set_yscale("log")
    axes.set_xlabel("share of the round trips")
    axes.set_ylabel("took at most, µs")
    axes.legend(fontsize="small")
    _save(figure, path)
