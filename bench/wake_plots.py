"""The plots of docs/wakeups.md, from the document that bench.wake_curves has measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .model import size_name

MARKERS = "osv^D<>pP*X"


def write(document: dict[str, Any], directory: Path) -> list[Path]:
    """All plots; returns the files.  ImportError: there is no matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    # The same document gives the same files; letters as text keep them small.
    matplotlib.rcParams["svg.hashsalt"] = "shmpipe"
    matplotlib.rcParams["svg.fonttype"] = "none"
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw in (
        ("switches", _switches),
        ("cost", _cost),
        ("unequal", _unequal),
        ("connection", _connection),
    ):
        path = directory / f"{name}.svg"
        draw(document).savefig(path, metadata={"Date": None})
        written.append(path)
    return written


def _figure(width: float, height: float, panels: int) -> tuple[Any, Sequence[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.grid(True, which="major", alpha=0.3)
        one.set_xscale("log", base=2)
        one.set_xlabel("write size")
    return figure, axes


def _ticks(axes: Any, sizes: Iterable[int]) -> None:
    shown = sorted({size for size in sizes if size & (size - 1) == 0})
    if len(shown) > 7:
        shown = shown[::2]
    axes.set_xticks(shown, [size_name(size, " ") for size in shown])
    axes.minorticks_off()


def _curve(
    axes: Any, records: Iterable[dict[str, Any]], figure: str, label: str, number: int
) -> None:
    """One figure against the write size; what the kernel's pipe did as a dashed line."""
    ours = sorted((record["write_size"], record[figure]) for record in records if _sized(record))
    style = {"color": f"C{number}", "marker": MARKERS[number], "label": label}
    axes.plot(*zip(*ours, strict=True), markersize=4, linewidth=1.5, **style)
    for record in records:
        if record["write_size"] is None:
            axes.axhline(record[figure], color=f"C{number}", linestyle="--", linewidth=1)


def _sized(record: dict[str, Any]) -> bool:
    return record["write_size"] is not None


def _switches(document: dict[str, Any]) -> Any:
    figure, [axes] = _figure(8, 4.6, 1)
    records = [
        record
        for record in document["seq_wc"]
        if record["programs"] == "ours" and record["policy"] in (None, "write-size")
    ]
    sizes = sorted({record["size"] for record in records})
    for number, size in enumerate(sizes):
        same = [record for record in records if record["size"] == size]
        _curve(axes, same, "switches", f"pipe of {size_name(size, ' ')}", number)
    _ticks(axes, (record["write_size"] for record in records if _sized(record)))
    axes.set_yscale("log")
    axes.set_ylabel("context switches of both processes")
    count = document["plan"]["count"]
    axes.set_title(f"seq {count} | wc (dashed: the kernel's pipe of that size)", fontsize=10)
    axes.legend(fontsize="small")
    return figure


def _panels(
    document: dict[str, Any],
    key: str,
    figures: Sequence[tuple[str, str, float]],
    groups: Sequence[tuple[str, dict[str, Any]]],
    title: str,
) -> Any:
    """A panel for each of `figures` (name, title, factor), a curve for each group."""
    figure, axes = _figure(3 + 2.8 * len(figures), 3.6, len(figures))
    for panel, (name, text, factor) in zip(axes, figures, strict=True):
        shown = [{**record, name: record[name] * factor} for record in document["flows"][key]]
        for number, (label, wanted) in enumerate(groups):
            same = [r for r in shown if all(r[field] == value for field, value in wanted.items())]
            if any(map(_sized, same)):
                _curve(panel, same, name, label, number)
        _ticks(panel, (record["write_size"] for record in shown if _sized(record)))
        panel.tick_params(labelsize=7)
        panel.set_title(text, fontsize=9)
        panel.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    return figure


RATE = ("rate", "throughput, MB/s", 1e-6)
P50 = ("p50", "delivery latency, median, ms", 1e3)
P99 = ("p99", "delivery latency, p99, ms", 1e3)
SWITCHES = ("switches", "context switches per message", 1.0)


def _cost(document: dict[str, Any]) -> Any:
    sizes = sorted({record["size"] for record in document["flows"]["stream"]})
    groups = [(f"pipe of {size_name(size, ' ')}", {"size": size}) for size in sizes]
    title = "messages of 4 KiB, both sides as fast as they can (dashed: the kernel's pipe)"
    return _panels(document, "stream", (RATE, P99), groups, title)


def _unequal(document: dict[str, Any]) -> Any:
    works = sorted({(r["write_work"], r["read_work"]) for r in document["flows"]["unequal"]})
    groups = [
        (
            f"writer {write * 1e6:g} µs, reader {read * 1e6:g} µs",
            {"write_work": write, "read_work": read},
        )
        for write, read in works
    ]
    size = size_name(document["flows"]["unequal"][0]["size"], " ")
    title = f"work for each message of 4 KiB, pipe of {size} (dashed: the kernel's pipe)"
    return _panels(document, "unequal", (SWITCHES, RATE, P50, P99), groups, title)


def _connection(document: dict[str, Any]) -> Any:
    messages = sorted({record["message"] for record in document["flows"]["connection"]})
    groups = [(f"messages of {size_name(size, ' ')}", {"message": size}) for size in messages]
    size = size_name(document["flows"]["connection"][0]["size"], " ")
    title = f"Pipe(size={size}), the reader works 20 µs on each message"
    return _panels(document, "connection", (SWITCHES, RATE, P99), groups, title)
