"""Messages from a writer to a reader who both have work to do: rate, delivery latency, switches.

A message is *offered* when the writer has made it, before it calls write, and *delivered* when the
reader has all of it. So the latency holds the time that the writer slept because the pipe was
full, which is what a wake that comes later makes longer, and the time in the pipe.
"""

from __future__ import annotations

import dataclasses
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import shmpipe
from shmpipe.commands import pair
from shmpipe.commands.pair import Channel
from shmpipe.commands.pouring import Subject
from shmpipe.commands.progress import Progress
from shmpipe.commands.table import byte_count

STAMP = 8  # bytes at the start of a message: when it was offered, in nanoseconds

Call = Callable[[], Any]


@dataclass(frozen=True)
class Flow:
    """What is sent, and how busy both sides are."""

    message: int = 4096
    """Bytes."""
    write_work: float = 0.0
    """Seconds the writer computes for each message."""
    read_work: float = 0.0
    """Seconds the reader computes for each message."""
    connection: bool = False
    """Over ``Pipe()`` instead of ``pipe()``."""


@dataclass(frozen=True)
class Point:
    """One pipe that a flow goes through."""

    flow: Flow
    size: int
    write_size: int | None
    """None: a pipe of the kernel."""

    def label(self) -> str:
        kind = "kernel" if self.write_size is None else f"write size {byte_count(self.write_size)}"
        work = f"work {self.flow.write_work * 1e6:g}/{self.flow.read_work * 1e6:g} µs"
        return f"{byte_count(self.flow.message)} through {byte_count(self.size)}, {kind}, {work}"

    def ends(self, spin: float | None) -> tuple[Any, Any]:
        if self.flow.connection:
            return shmpipe.Pipe(False, size=self.size, write_size=self.write_size, spin=spin)
        policy = None if self.write_size is None else "write-size"
        return Subject("", policy, self.write_size or 0).open(self.size, spin)


def _compute(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _sender(writer: Any, message: bytearray, connection: bool) -> Call:
    if connection:
        return lambda: writer.send_bytes(message)
    view = memoryview(message)

    def send() -> None:
        done = writer.write(view)
        while done < len(view):
            done += writer.write(view[done:])

    return send


def _receiver(reader: Any, message: bytearray, connection: bool) -> Call:
    if connection:
        return lambda: reader.recv_bytes_into(message)
    view = memoryview(message)

    def receive() -> None:
        done = reader.readinto(view)
        while done < len(view):
            part = reader.readinto(view[done:])
            if not part:
                raise EOFError("the writer has gone")
            done += part

    return receive


def run(
    point: Point,
    count: int,
    spin: float | None,
    cpus: tuple[int, int] | None,
    progress: Callable[[int], None] = lambda amount: None,
) -> dict[str, Any]:
    """Send `count` messages; the figures of the run."""
    flow = point.flow
    reader, writer = point.ends(spin)

    def write(channel: Channel) -> None:
        reader.close()
        message = bytearray(flow.message)
        send, work, now = (
            _sender(writer, message, flow.connection),
            flow.write_work,
            time.monotonic_ns,
        )
        for _ in range(count):
            if work:
                _compute(work)
            message[:STAMP] = now().to_bytes(STAMP, "little")
            send()
        writer.close()

    def read(channel: Channel) -> dict[str, Any]:
        writer.close()
        message = bytearray(flow.message)
        receive, work, now = (
            _receiver(reader, message, flow.connection),
            flow.read_work,
            time.monotonic_ns,
        )
        taken = array("q", bytes(8 * count))
        begin = 0
        for number in range(count):
            receive()
            end = now()
            taken[number] = end - int.from_bytes(message[:STAMP], "little")
            begin = begin or end
            if work:
                _compute(work)
            channel.progress(number)
        stats = dataclasses.asdict(reader.stats()) if hasattr(reader, "stats") else None
        reader.close()
        return {**_latencies(taken), "seconds": (end - begin) / 1e9, "stats": stats}

    outcome = pair.run_pair(write, read, ends=[reader, writer], cpus=cpus, progress=progress)
    figures = outcome.answer
    return {
        **figures,
        "rate": flow.message * count / max(figures["seconds"], 1e-9),
        "switches": (outcome.writer.switches + outcome.reader.switches) / count,
        "cpu_seconds": outcome.writer.cpu_seconds + outcome.reader.cpu_seconds,
    }


def _latencies(taken: array[int]) -> dict[str, float]:
    """Seconds."""
    ordered = sorted(taken)
    return {
        name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e9
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }


def measure(
    points: Sequence[Point],
    count: int,
    repeat: int,
    spin: float | None,
    cpus: tuple[int, int] | None,
) -> list[dict[str, Any]]:
    """One record for each point, with the medians of its runs, each figure by itself.

    Round after round; a point that the kernel refuses is left out.
    """
    progress = Progress(count)
    results: list[list[dict[str, Any]]] = [[] for _ in points]
    for turn in range(repeat):
        for point, found in zip(points, results, strict=True):
            progress.start(f"{point.label()}, {turn + 1} of {repeat}")
            try:
                found.append(run(point, count, spin, cpus, progress.update))
            except PermissionError:
                progress.abort()
                continue
            except BaseException:
                progress.abort()
                raise
            progress.finish()
    return [
        {
            **dataclasses.asdict(point.flow),
            "size": point.size,
            "write_size": point.write_size,
            **_medians(found),
        }
        for point, found in zip(points, results, strict=True)
        if found
    ]


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = ("rate", "p50", "p99", "switches", "seconds", "cpu_seconds")
    return {name: sorted(run[name] for run in runs)[(len(runs) - 1) // 2] for name in names}
