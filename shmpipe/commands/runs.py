"""``seq N | wc`` over several pipes, each run measured as one `Result`.

All runs do the same work: the numbers 1 to N, one per line, in writes of 4096 bytes, as ``seq``
makes them; reads of up to 16 KiB in which lines, words and bytes are counted, as ``wc`` does. Our
reader has more to do than our writer, as ``wc`` has more to do than ``seq``: the pipe is mostly
full, the writer mostly waits, and it is the rule for waking it that decides how often.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import pair
from .lines import Counter, number_chunks, text_digest, text_size
from .pair import BothSides, Channel, Outcome, Report, Usage

if TYPE_CHECKING:
    from ..policies import WakePolicy

DEFAULT_COUNT = 50_000_000
DEFAULT_SIZE = 65536
WRITE_BYTES = 4096  # one write of `seq`
READ_BYTES = 16384  # one read of `wc`


@dataclass(frozen=True)
class Result(BothSides):
    """One run: what it was, what it took, what was counted."""

    pipe: str
    """``"kernel"`` or ``"shmpipe"``."""
    programs: str
    """``"seq, wc"`` or ``"ours"``."""
    count: int
    size: int
    write_size: int | None
    """The free space, in bytes, at which a sleeping writer is woken; None where it is fixed."""
    policy: str | None
    spin: float | None
    """Seconds spent spinning before a sleep; None for the automatic choice or no choice."""
    seconds: float
    lines: int
    words: int
    bytes: int
    digest: str | None
    """BLAKE2b of what was read; ``wc`` takes none."""
    writer: Usage
    reader: Usage
    stats: dict[str, int] | None
    """The counters of the pipe, as ``stats()`` of its reading end gave them at the end."""

    def problems(self) -> list[str]:
        """What is wrong with the counts, in words; empty when all bytes arrived unchanged."""
        size = text_size(self.count)
        expected: dict[str, int | str] = {"lines": self.count, "words": self.count, "bytes": size}
        counted = {name: getattr(self, name) for name in expected}
        if self.digest is not None:
            expected["digest"] = text_digest(self.count)
            counted["digest"] = self.digest
        if self.stats is not None:
            for name in ("bytes_written", "bytes_read"):
                expected[name] = size
                counted[name] = self.stats[name]
        return [
            f"{self.label()}: {name} should be {expected[name]}, was {counted[name]}"
            for name in expected
            if counted[name] != expected[name]
        ]

    def label(self) -> str:
        """What tells this run from the others of a table, on one line."""
        if self.pipe == "kernel":
            return "seq | wc, kernel pipe" if self.programs != "ours" else "ours, kernel pipe"
        return f"ours, shmpipe, write size {self.write_size}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON: all fields, and the sums."""
        sums = {"switches": self.switches, "cpu_seconds": self.cpu_seconds}
        return {**dataclasses.asdict(self), **sums}


def run_shmpipe(
    count: int = DEFAULT_COUNT,
    size: int = DEFAULT_SIZE,
    write_size: int = 4096,
    policy: WakePolicy = "write-size",
    spin: float | None = 0.0,
    cpus: tuple[int, int] | None = None,
    progress: Report = lambda amount: None,
) -> Result:
    """Over ``shmpipe.pipe()``, with our own writer and reader."""
    import shmpipe

    reader, writer = shmpipe.pipe(size, write_size=write_size, wake=policy, spin=spin)
    # The pipe has rounded both.
    size = shmpipe.fcntl(reader, shmpipe.F_GETPIPE_SZ)
    write_size = shmpipe.fcntl(reader, shmpipe.F_GETPIPE_WRITE_SZ)
    outcome = _run_ours(reader, writer, count, cpus, progress)
    return _result(
        outcome,
        outcome.answer,
        pipe="shmpipe",
        programs="ours",
        count=count,
        size=size,
        write_size=write_size,
        policy=policy,
        spin=spin,
    )


def run_kernel(
    count: int = DEFAULT_COUNT,
    size: int = DEFAULT_SIZE,
    cpus: tuple[int, int] | None = None,
    progress: Report = lambda amount: None,
) -> Result:
    """Over a pipe of the kernel, with the same writer and reader as `run_shmpipe`."""
    read_fd, write_fd, size = _kernel_pipe(size)
    reader = open(read_fd, "rb", buffering=0)  # noqa: SIM115  # run_pair closes them
    writer = open(write_fd, "wb", buffering=0)  # noqa: SIM115
    outcome = _run_ours(reader, writer, count, cpus, progress)
    return _result(outcome, outcome.answer, pipe="kernel", programs="ours", count=count, size=size)


def run_seq_wc(
    count: int = DEFAULT_COUNT,
    size: int = DEFAULT_SIZE,
    cpus: tuple[int, int] | None = None,
    progress: Report = lambda amount: None,
) -> Result:
    """The programs ``seq`` and ``wc`` themselves, over a pipe of the kernel."""
    read_fd, write_fd, size = _kernel_pipe(size)
    outcome = pair.run_pair(
        pair.program("seq", str(count), stdout=write_fd),
        pair.program("wc", stdin=read_fd),
        ends=[_Fd(read_fd), _Fd(write_fd)],
        cpus=cpus,
        progress=progress,
        probe=pair.bytes_read_by,
    )
    numbers = [int(word) for word in str(outcome.answer).split()]
    answer = dict(zip(("lines", "words", "bytes"), numbers, strict=True))
    return _result(outcome, answer, pipe="kernel", programs="seq, wc", count=count, size=size)


class _Fd:
    """A file descriptor that is closed once."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _kernel_pipe(size: int) -> tuple[int, int, int]:
    """Both fds, and the size as rounded by the kernel."""
    read_fd, write_fd = os.pipe()
    try:
        return read_fd, write_fd, fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, size)
    except OSError:
        os.close(read_fd)
        os.close(write_fd)
        raise


def _run_ours(
    reader: Any, writer: Any, count: int, cpus: tuple[int, int] | None, progress: Report
) -> Outcome:
    """Our own writer and reader, over any two ends that work like unbuffered files."""

    def write(channel: Channel) -> None:
        reader.close()
        for chunk in number_chunks(count, WRITE_BYTES):
            written = writer.write(chunk)
            while written < len(chunk):
                written += writer.write(chunk[written:])
        writer.close()

    def read(channel: Channel) -> dict[str, Any]:
        writer.close()
        buffer = bytearray(READ_BYTES)
        counter = Counter(buffer)
        while size := reader.readinto(buffer):
            counter.feed(size)
            channel.progress(counter.bytes)
        stats = dataclasses.asdict(reader.stats()) if hasattr(reader, "stats") else None
        counts = {"lines": counter.lines, "words": counter.words, "bytes": counter.bytes}
        return {**counts, "digest": counter.digest(), "stats": stats}

    return pair.run_pair(write, read, ends=[reader, writer], cpus=cpus, progress=progress)


def _result(outcome: Outcome, answer: dict[str, Any], **what: Any) -> Result:
    nothing = dict.fromkeys(("write_size", "policy", "spin", "digest", "stats"))
    measured = {
        "seconds": outcome.seconds,
        "writer": outcome.writer,
        "reader": outcome.reader,
    }
    return Result(**{**nothing, **what, **measured, **answer})
