"""The calls of a receiver, chosen at random, and the check of everything that comes."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable
from multiprocessing import BufferTooShort, connection
from typing import Any

from .desk import ENDED, FAILED, INTERRUPTED, TIMED_OUT, Desk
from .ledger import CLOSING, FORGIVEN, MESSAGES, RISK, TINY
from .messages import STOP, Spoilt, check, unpickled, unwrapped
from .plans import PAGE
from .sending import table

MOST_AT_ONCE = 20


class Receiver:
    """Receives messages from a connection."""

    def __init__(self, desk: Desk, end: Any) -> None:
        self.desk = desk
        self.end = end
        self.random = desk.random
        self.words = desk.words
        self.got = desk.ledger.got[desk.role - desk.plan.senders]
        self.last = [-1] * len(self.got)
        self.objects = desk.plan.kind == "objects"
        self.buffer = bytearray(3 * desk.plan.size + 100)
        self.parts_kept = False  # this process may have a part of a message
        self.stopped = False
        self.table = table(self._calls())

    def _calls(self) -> list[tuple[float, Callable[[], bool]]]:
        calls = [(0.35, self.recv_bytes), (0.15, self.recv_into), (0.15, self.try_recv)]
        calls += [(0.1, self.recv_view), (0.04, self.poll), (0.02, self.wait)]
        if self.objects:
            calls += [(0.3, self.recv), (0.05, self.recv_many), (0.05, self.iterate)]
        return [*calls, (0.002, self.fiddle)]

    def finished(self) -> bool:
        return self.stopped

    def step(self) -> bool:
        """One call; False: nothing can come any more."""
        return self.table[int(self.random() * len(self.table))]()

    # --- what came -------------------------------------------------------------------------------

    def take(self, call: Callable[..., Any], *args: Any, code: int, most: int = 1) -> bool:
        """Make a call which returns up to ``most`` messages, in a list, and note them.

        If this process is killed meanwhile, so many may be lost with it.
        """
        words = self.words
        words[RISK] = most
        result = self.desk.attempt(code, call, *args)
        if type(result) is list:
            for message in result:
                self.arrived(message)
            self.parts_kept = False
        elif result is INTERRUPTED:
            words[FORGIVEN] += most
            self.parts_kept = True
        elif result is TIMED_OUT or result is FAILED:
            self.parts_kept = True
        words[RISK] = 1 if self.parts_kept else 0
        return result is not ENDED

    def arrived(self, message: Any) -> None:
        who, number = check(message)
        if who < 0:
            if who == STOP:
                self.stopped = bool(self.desk.ledger.round[CLOSING])
            else:
                self.words[TINY + number] += 1
                self.words[MESSAGES] += 1
            return
        if number <= self.last[who]:
            raise Spoilt(f"message {number} of {who} after its number {self.last[who]}")
        self.last[who] = number
        self.got[who][number] += 1
        self.words[MESSAGES] += 1

    def _raw(self, data: Any) -> Any:
        return unpickled(data) if self.objects else data

    # --- calls -----------------------------------------------------------------------------------

    def recv_bytes(self) -> bool:
        return self.take(self._recv_bytes, self.desk.limit(), code=21)

    def _recv_bytes(self, limit: float | None) -> list[Any]:
        return [self._raw(self.end.recv_bytes(timeout=limit))]

    def recv_into(self) -> bool:
        size = len(self.buffer) if self.random() < 0.7 else int(self.random() * PAGE)
        return self.take(self._recv_into, size, self.desk.limit(), code=22)

    def _recv_into(self, size: int, limit: float | None) -> list[Any]:
        room = memoryview(self.buffer)[:size]
        offset = int(self.random() * 9) if size > 9 else 0
        try:
            count = self.end.recv_bytes_into(room, offset, timeout=limit)
        except BufferTooShort as error:
            return [self._raw(error.args[0])]
        return [self._raw(bytes(room[offset : offset + count]))]

    def try_recv(self) -> bool:
        return self.take(self._try_recv, code=23)

    def _try_recv(self) -> list[Any]:
        data = self.end.try_recv_bytes()
        if data is None:
            raise TimeoutError
        return [self._raw(data)]

    def recv_view(self) -> bool:
        return self.take(self._recv_view, self.desk.limit(), self.random() < 0.05, code=24)

    def _recv_view(self, limit: float | None, pause: bool) -> list[Any]:
        with self.end.recv_view(timeout=limit) as view:
            if pause:
                time.sleep(0.002)
            data = bytes(view)
        return [self._raw(data)]

    def recv(self) -> bool:
        return self.take(self._recv, self.desk.limit(), code=25)

    def _recv(self, limit: float | None) -> list[Any]:
        return [unwrapped(self.end.recv(timeout=limit))]

    def recv_many(self) -> bool:
        most = 1 + int(self.random() * MOST_AT_ONCE)
        return self.take(self._recv_many, most, self.desk.limit(), code=26, most=most)

    def _recv_many(self, most: int, limit: float | None) -> list[Any]:
        try:
            objs = self.end.recv_many(most, timeout=limit)
        except OSError as error:  # no descriptors, say: what came before it is not lost
            objs = getattr(error, "received", [])
            if not objs:
                raise
        return list(map(unwrapped, objs))

    def iterate(self) -> bool:
        return self.take(self._iterate, code=27)

    def _iterate(self) -> list[Any]:
        for obj in self.end:
            return [unwrapped(obj)]
        raise EOFError

    def poll(self) -> bool:
        return self.take(self._poll, self.desk.limit(), code=28)

    def _poll(self, limit: float | None) -> list[Any]:
        if not self.end.poll(limit):
            raise TimeoutError
        return self._recv_bytes(0.01)  # another receiver may have been faster

    def wait(self) -> bool:
        return self.take(self._wait, code=29)

    def _wait(self) -> list[Any]:
        """As an event loop does."""
        if not connection.wait([self.end], self.random() * 0.02):
            raise TimeoutError
        return self._recv_bytes(0.01)

    def fiddle(self) -> bool:
        self.desk.fiddle(self.end)
        return True


class RecordReader(Receiver):
    """Reads records of one length from a pipe."""

    def _calls(self) -> list[tuple[float, Callable[[], bool]]]:
        return [(0.6, self.read), (0.3, self.readinto), (0.01, self.watch), (0.002, self.fiddle)]

    def _count(self) -> int:
        return 1 + int(self.random() * MOST_AT_ONCE) if self.random() < 0.5 else 1

    def read(self) -> bool:
        count = self._count()
        return self.take(self._read, count, code=31, most=count)

    def _read(self, count: int) -> list[Any]:
        return list(self._records(self.end.read(count * self.desk.plan.record)))

    def readinto(self) -> bool:
        count = self._count()
        return self.take(self._readinto, count, code=32, most=count)

    def _readinto(self, count: int) -> list[Any]:
        room = bytearray(count * self.desk.plan.record)
        done = self.end.readinto(room)
        return list(self._records(None if done is None else bytes(room[:done])))

    def _records(self, data: bytes | None) -> Iterable[bytes]:
        if data is None:  # O_NONBLOCK
            time.sleep(0.0005)
            return []
        if not data:
            raise EOFError
        size = self.desk.plan.record
        if len(data) % size:
            raise Spoilt(f"torn: a read of {len(data)} bytes where records have {size}")
        return [data[at : at + size] for at in range(0, len(data), size)]

    def watch(self) -> bool:
        self.desk.attempt(33, self._watch)
        return True

    def _watch(self) -> None:
        select.select([self.end], [], [], self.random() * 0.02)
