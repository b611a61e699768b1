"""One process pours into a pipe, another drains it: how many bytes come out in each sample?

The writer knows no clock: it writes until the reader, who has taken all samples, closes its end.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import pair
from .pair import BothSides, Channel, Report, Usage
from .table import byte_count

if TYPE_CHECKING:
    from ..policies import WakePolicy


@dataclass(frozen=True)
class Subject:
    """A pipe to be measured: the kernel's, or ours under a wake policy."""

    name: str
    policy: WakePolicy | None = None
    """None: a pipe of the kernel."""
    write_size: int = 4096
    """Bytes; only the policy ``write-size`` looks at it."""

    def open(self, size: int, spin: float | None = 0.0) -> tuple[Any, Any]:
        """The reading and the writing end of a new pipe of `size` bytes, both unbuffered.

        OSError or ValueError: the kernel or the package refuses these sizes.
        """
        if self.policy is not None:
            import shmpipe

            return shmpipe.pipe(size, write_size=self.write_size, wake=self.policy, spin=spin)
        read_fd, write_fd = os.pipe()
        reader = open(read_fd, "rb", buffering=0)  # noqa: SIM115  # the caller closes them
        writer = open(write_fd, "wb", buffering=0)  # noqa: SIM115
        try:
            fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, size)
        except OSError:
            reader.close()
            writer.close()
            raise
        return reader, writer


def can_be_had(subject: Subject, size: int, spin: float | None = 0.0) -> bool:
    """Whether there is such a pipe here; False, and said on stderr, if it is the kernel's and it
    gives none so large to us.

    OSError or ValueError: as ``Subject.open``, for anything else that is refused.
    """
    try:
        ends = subject.open(size, spin)
    except PermissionError:
        if subject.policy is not None:
            raise
        reason = "larger than /proc/sys/fs/pipe-max-size"
        print(f"left out: {subject.name}: {byte_count(size)} is {reason}", file=sys.stderr)
        return False
    for end in ends:
        end.close()
    return True


@dataclass(frozen=True)
class Pour(BothSides):
    """What came out of one pipe, and what that cost."""

    name: str
    size: int
    write_bytes: int
    read_bytes: int
    samples: list[float]
    """Bytes per second, one for each sample."""
    total: int
    """Bytes in all samples together."""
    writer: Usage
    reader: Usage
    stats: dict[str, int] | None
    """The counters of the pipe at the end; None for the kernel's."""

    @property
    def switch_rate(self) -> float:
        """Context switches for each second of CPU time."""
        return self.switches / self.cpu_seconds if self.cpu_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON: all fields, and the figures of the table."""
        figures = {
            "best": max(self.samples),
            "average": statistics.fmean(self.samples),
            "deviation": statistics.pstdev(self.samples),
            "switches": self.switches,
            "cpu_seconds": self.cpu_seconds,
            "switches_per_cpu_second": self.switch_rate,
        }
        return {**dataclasses.asdict(self), **figures}


def pour(
    subject: Subject,
    size: int,
    write_bytes: int,
    read_bytes: int,
    samples: int,
    seconds: float = 1.0,
    spin: float | None = 0.0,
    cpus: tuple[int, int] | None = None,
    progress: Report = lambda amount: None,
) -> Pour:
    """Pour for `samples` times `seconds`; `progress` is called with the samples taken so far.

    OSError or ValueError: as ``Subject.open``.  ChildFailed: as ``run_pair``.
    """
    reader, writer = subject.open(size, spin)

    def write(channel: Channel) -> None:
        reader.close()
        chunk = memoryview(bytearray(write_bytes))
        call = writer.write
        try:
            while True:
                call(chunk)
        except BrokenPipeError:
            pass
        writer.close()

    def read(channel: Channel) -> dict[str, Any]:
        writer.close()
        taken, total = _drain(reader, read_bytes, samples, seconds, channel)
        stats = dataclasses.asdict(reader.stats()) if subject.policy is not None else None
        reader.close()
        return {"samples": taken, "total": total, "stats": stats}

    stall = max(pair.STALL_SECONDS, 10 * seconds)
    outcome = pair.run_pair(
        write, read, ends=[reader, writer], cpus=cpus, progress=progress, stall_seconds=stall
    )
    return Pour(
        name=subject.name,
        size=size,
        write_bytes=write_bytes,
        read_bytes=read_bytes,
        writer=outcome.writer,
        reader=outcome.reader,
        **outcome.answer,
    )


def _drain(
    reader: Any, read_bytes: int, samples: int, seconds: float, channel: Channel
) -> tuple[list[float], int]:
    """The rate of each sample in bytes per second, and all bytes."""
    buffer = bytearray(read_bytes)
    call, clock = reader.readinto, time.perf_counter
    taken: list[float] = []
    total = got = 0
    call(buffer)  # the clock starts when the writer is there
    begin = clock()
    while len(taken) < samples:
        got += call(buffer)
        now = clock()
        # A sample may come to its end late, when this process is not run in time; so it is the
        # time that it really took which counts.
        if now - begin >= seconds:
            taken.append(got / (now - begin))
            total += got
            got, begin = 0, now
            channel.send(progress=len(taken))
    return taken, total
