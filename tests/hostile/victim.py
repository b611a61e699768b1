"""One sequence: a pipe, a hostile peer, and random calls while it is at work."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import shmpipe
from shmpipe import segment
from shmpipe.policies import POLICIES

from . import calls, guards, outcomes
from .peer import PAGE, Peer
from .watching import Page

PATIENCE = 0.1  # seconds after which a call that may wait for ever is interrupted
ROOM = 3 << 29  # bytes of address space beyond what there is at the start: no terabytes
CALLS = 30  # of a sequence


@dataclass
class Figures:
    sequences: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)  # by the peer in this process
    outcomes: Counter[str] = field(default_factory=Counter)
    late: int = 0  # calls that took a second more than their own time
    latest: tuple[float, str] = (0.0, "")  # seconds beyond its own time, and of which call
    peak: int = 0  # bytes of memory, of the process
    failures: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        self.sequences += other.sequences
        for name in ("calls", "done", "outcomes"):
            getattr(self, name).update(getattr(other, name))
        self.late += other.late
        self.latest = max(self.latest, other.latest)
        self.peak = max(self.peak, other.peak)
        self.failures += other.failures


def prepare(limited: bool) -> None:
    """Once for a process: guards, an alarm, no terabytes."""
    guards.install()
    signal.signal(signal.SIGALRM, _alarm)
    # What recv() unpickles is the peer's program; all that comes before is ours.
    calls.connections.load = lambda message: message
    if limited:
        with open("/proc/self/statm", "rb") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))


_armed = False


def _alarm(*_: Any) -> None:
    if _armed:
        raise outcomes.Interrupted


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    global _armed
    _armed = True
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, PATIENCE)
    try:
        yield
    finally:
        _armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def run(seed: int, together: bool, page: Page, figures: Figures, tell: Any = None) -> None:
    """The sequence of ``seed``; ``together``: the peer is another process, which never stops.

    Otherwise it acts between the calls, so that the same seed does the same again.
    """
    rng = random.Random(f"{seed} {together}")
    victim, peer = _pair(rng, together)
    children: list[int] = []
    try:
        if together:
            children.append(_set_loose(peer, victim, seed))
        for _ in range(CALLS):
            if not together:
                for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
                    done = peer.act(rng)
                    if tell:
                        tell(f"  peer: {done}")
            call = calls.choose(rng, victim)
            outcome = _measure(call, page, figures)
            if tell:
                tell(f"{call.name}: {outcome}")
            if victim.closed:
                break
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        _measure(calls.Call("close", victim.close), page, figures)
        figures.done.update(peer.done())
        peer.close()
    figures.sequences += 1
    figures.peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _measure(call: calls.Call, page: Page, figures: Figures) -> str:
    own = PATIENCE if call.waits else call.limit
    page.begin(call.name, own)
    started, starved = time.monotonic(), _starved()
    try:
        if call.waits:
            with _interrupted_later():
                call.act()
        else:
            call.act()
        outcome = "a result"
    except BaseException as error:
        outcome = outcomes.name(error)
        if not outcomes.is_promised(error):
            trace = "".join(traceback.format_exception(error))
            figures.failures.append(f"{call.name}: {trace}")
            outcome = f"not promised: {outcome}"
    # What it stood in the queue for a processor is not the peer's doing.
    beyond = time.monotonic() - started - own - (_starved() - starved)
    page.end()
    figures.calls[call.name] += 1
    figures.outcomes[outcome] += 1
    figures.latest = max(figures.latest, (beyond, f"{call.name}, seed {page.seed}"))
    figures.late += beyond > 1
    return f"{outcome} ({beyond:+.3f} s)"


def _starved() -> float:
    """Seconds that this thread could have run, but others did."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0  # a kernel that does not count


def _pair(rng: random.Random, together: bool) -> tuple[Any, Peer]:
    """The victim's end, and the peer that has the other one."""
    pages = rng.choice((1, 2, 4, 16))
    options: dict[str, Any] = {
        "size": pages * PAGE,
        "write_size": rng.randrange(1, pages + 1) * PAGE,
        "max_size": rng.choice((pages, 64)) * PAGE,
        "wake": rng.choice(list(POLICIES)),
        "spin": rng.choice((0, None)),
    }
    kind = rng.choice(("duplex", "duplex", "one way", "pipe"))
    ends: Any
    if kind == "pipe":
        ends = shmpipe.pipe(flags=rng.choice((0, os.O_NONBLOCK)), **options)
    else:
        ends = shmpipe.Pipe(kind == "duplex", **options)
    ends = rng.sample(ends, 2)
    mine, other = ends
    if kind == "pipe":
        seg, sock = other._side.ring.segment, other._side.bell.sock
    else:
        seg, sock = other._segment, other._bell.sock
    memory = os.dup(seg.memory.fileno())
    taken = socket.socket(fileno=os.dup(sock.fileno()))
    other.close()
    # With glibc's semaphores a peer that is quick enough wins: docs/security.md.
    kinds = shmpipe.engine == "native" or not together
    return mine, Peer(memory, taken, seg.rings, seg.max_pages, kinds)


def _set_loose(peer: Peer, victim: Any, seed: int) -> int:
    """A process in which the peer does one thing after the other until it is killed."""
    child = os.fork()
    if child:
        peer.sock.close()  # or the victim would never be alone
        peer.sock = socket.socket()
        return child
    try:
        is_connection = isinstance(victim, shmpipe.Connection)
        bell = victim._bell if is_connection else victim._side.bell
        os.close(bell.sock.detach())
        rng = random.Random(f"peer {seed}")
        while True:
            peer.act(rng)
            if rng.random() < 0.2:
                time.sleep(rng.choice((0, 1e-5, 1e-4, 1e-3)))
            if rng.random() < 0.0002:
                break
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


assert segment.PAGE == PAGE
