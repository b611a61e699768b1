"""Victims as processes of their own: one that dies or stands still is a finding, not the end."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from . import victim
from .victim import Figures
from .watching import Page

BATCH = 100  # sequences of a process
HARD = 10.0  # seconds beyond its own time after which a call counts as endless


class Batch:
    """Some sequences in a process; what came of them, and the seed that ended it, if one did."""

    def __init__(self, first: int, count: int, together: bool, limited: bool) -> None:
        self.page = Page()
        self.figures = Figures()
        self.next = first  # the seed to go on with
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            os.close(reader)
            _live(first, count, together, limited, self.page, writer)
        os.close(writer)
        self._watch(reader, first, count)

    def _watch(self, reader: int, first: int, count: int) -> None:
        received, hung = b"", ""
        while True:
            ready = select.select([reader], [], [], 0.1)[0]
            if ready:
                piece = os.read(reader, 1 << 16)
                if not piece:
                    break
                received += piece
            seed, beyond, name = self.page.look()
            if beyond > HARD and not hung:
                hung = f"seed {seed}: {name} has not ended {beyond:.0f} s after its time"
                os.kill(self.pid, signal.SIGUSR1)  # it says where it is
                time.sleep(0.5)
                os.kill(self.pid, signal.SIGKILL)
        os.close(reader)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        seed, _, name = self.page.look()
        last = b""
        while received:  # figures after each sequence; the last that are whole count
            size = int.from_bytes(received[:4], "little")
            if len(received) < 4 + size:
                break
            last, received = received[4 : 4 + size], received[4 + size :]
        if last:
            self.figures = pickle.loads(last)
        if status or hung:
            self.figures.failures.append(hung or f"seed {seed}: {name or '?'}: ended with {status}")
            self.next = seed + 1
        else:
            self.next = first + count


def _live(first: int, count: int, together: bool, limited: bool, page: Page, writer: int) -> None:
    """The life of a victim."""
    try:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        victim.prepare(limited)
        figures = Figures()
        before = _open_descriptors()
        for seed in range(first, first + count):
            page.seed = seed
            found = len(figures.failures)
            victim.run(seed, together, page, figures)
            figures.failures[found:] = [f"seed {seed}: {x}" for x in figures.failures[found:]]
            if _open_descriptors() != before:
                figures.failures.append(f"seed {seed}: descriptors left open")
                before = _open_descriptors()
            answer = pickle.dumps(figures)
            _write(writer, len(answer).to_bytes(4, "little") + answer)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(3)


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def run(
    first: int,
    sequences: int | None,
    seconds: float | None,
    together: bool,
    limited: bool = True,
    tell: Callable[[str], Any] = print,
) -> Figures:
    """Sequences from seed ``first`` on, so many or for so long."""
    total = Figures()
    until = None if seconds is None else time.monotonic() + seconds
    seed, last = first, None if sequences is None else first + sequences
    while (last is None or seed < last) and (until is None or time.monotonic() < until):
        count = BATCH if last is None else min(BATCH, last - seed)
        batch = Batch(seed, count, together, limited)
        total.add(batch.figures)
        for failure in batch.figures.failures:
            tell(failure)
        seed = batch.next
    return total
