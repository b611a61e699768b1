"""What the machine can do at best, measured beside those who use it.

In one process: a copy, an empty call.  Between two: the copies alone, the semaphores alone.  Those
promise nothing: whoever dies leaves the other waiting, and a message has no length.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from .model import Contender, Sample
from .peers.base import Channel, Peer
from .peers.stdlib import FORK
from .processes import Crew, Post
from .rounds import Plan

PREFIX = "limit: "
RING = 4 << 20  # bytes; shmpipe's default size


class _Empty:
    def method(self) -> None:
        pass


def _memory(size: int) -> memoryview:
    """Bytes that begin with a page.

    A copy to a place that lies a little further in its page than what is copied can take twenty
    times as long, where the C library uses a string instruction.  A limit is the best there is.
    """
    memory = memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    memory[:] = bytes(size)  # the kernel gives the pages when they are written to
    return memory


def _copying(size: int) -> Callable[[], Any]:
    source, target = _memory(size), _memory(size)

    def copy() -> None:
        target[:] = source

    return copy


def _compiled_method() -> Callable[[], Any]:
    return threading.Lock().locked  # looks at one word and returns a constant


def _python_method() -> Callable[[], Any]:
    return _Empty().method


def _member(post: Post, make: Callable[[], Callable[[], Any]], count: int) -> float:
    call = make()
    post.ready()
    for _ in range(4):
        call()
    post.start()
    start = time.perf_counter()
    for _ in repeat(None, count):
        call()
    return time.perf_counter() - start


def _contender(
    name: str, make: Callable[[], Callable[[], Any]], size: int, plan: Plan
) -> Contender:
    def run(count: int) -> Sample:
        with Crew(plan.timeout) as crew:
            crew.fork(_member, make, count)
            [seconds], usage = crew.run()
        return Sample(count, seconds, usage.cpu, usage.switches, count * size)

    return Contender(PREFIX + name, run)


def memcpy(size: int, plan: Plan) -> Contender:
    """Copying a message once, over and over to the same place."""
    return _contender("memcpy", lambda: _copying(size), size, plan)


def empty_calls(plan: Plan) -> list[Contender]:
    """Calling a method that does nothing."""
    return [
        _contender("compiled method", _compiled_method, 0, plan),
        _contender("Python method", _python_method, 0, plan),
    ]


class _Copies(Channel):
    """Bytes copied into shared memory by one process, and out of it by another."""

    _SENT, _TAKEN = 0, 8  # where the number of bytes is, in words; a cache line each

    def __init__(self, size: int) -> None:
        view = memoryview(mmap.mmap(-1, mmap.PAGESIZE + RING))
        self._words = view[: mmap.PAGESIZE].cast("Q")
        self._ring = view[mmap.PAGESIZE :]
        self._starts = range(0, size, min(size, RING // 4))

    def sender(self) -> Callable[[bytes], Any]:
        words, ring, starts = self._words, self._ring, self._starts
        chunk, at, source = starts.step, 0, _memory(starts.stop)

        def send(data: bytes) -> None:
            nonlocal at
            for start in starts:
                while at + chunk - words[self._TAKEN] > RING:
                    pass
                place = at % RING
                ring[place : place + chunk] = source[start : start + chunk]
                at += chunk
                words[self._SENT] = at

        return send

    def receiver(self) -> Callable[[], Any]:
        words, ring, starts = self._words, self._ring, self._starts
        chunk, at, target = starts.step, 0, _memory(starts.stop)

        def receive() -> None:
            nonlocal at
            for start in starts:
                while words[self._SENT] == at:
                    pass
                place = at % RING
                target[start : start + chunk] = ring[place : place + chunk]
                at += chunk
                words[self._TAKEN] = at

        return receive

    def receiver_into(self, buffer: bytearray) -> Callable[[], Any]:
        return self.receiver()


class TwoCopies(Peer):
    """What large messages cost if nothing but the copies is done, both at the same time.

    By one ``memcpy`` for each piece, into a buffer that is there; on x86-64, which shows the other
    process the bytes before their count.
    """

    name = PREFIX + "two copies"
    into = True

    def channel(self, size: int, writers: int = 1) -> Channel:
        return _Copies(size)


class _Semaphore(Channel):
    def __init__(self) -> None:
        self._semaphore = FORK.Semaphore(0)

    def sender(self) -> Callable[[bytes], Any]:
        release = self._semaphore.release
        return lambda data: release()

    def receiver(self) -> Callable[[], Any]:
        acquire = self._semaphore.acquire
        return lambda: acquire() and b""


class TwoSemaphores(Peer):
    """What waiting costs if nothing is sent: the C library's semaphores, which sleep at once."""

    name = PREFIX + "two semaphores"

    def channel(self, size: int, writers: int = 1) -> Channel:
        return _Semaphore()
