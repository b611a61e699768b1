"""Descriptors, clock and processes of the simulated machine: what the kernel gives."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from .machine import current
from .memory import Killed, Op

POLLIN, POLLOUT, POLLERR, POLLHUP, ELSEWHERE = 0x01, 0x04, 0x08, 0x10, 0x10000
# Of a socket pair as Linux has it: tokens in the queue that leave it writable, or that fill it.
WRITABLE_WITH = {False: 1, True: 42}
FULL_WITH = {False: 6, True: 170}


class Endpoint:
    """One process's descriptor of one end of a socket pair."""

    def __init__(self, pair: str, end: int, process: str) -> None:
        self.run = current().run
        self.process = process
        self.mine, self.theirs = (("queue", pair, at) for at in (end, 1 - end))
        self.wide = ("wide", pair, end)
        self.held, self.peer_held = (("holders", pair, at) for at in (end, 1 - end))
        self.bit = 1 << current().process(process)
        self.run.put(self.held, self.run.get(self.held) | self.bit)
        current().changed_by_death(self.held)
        self.fd = current().new_fd(self)
        current().sockets.append(self)
        self.run.put(self.mine, self.run.get(self.mine) or b"")

    def gone(self) -> None:
        """This process does not hold the end any more; what nobody can read goes with the last."""
        self.run.put(self.held, self.run.get(self.held) & ~self.bit)
        if not self.run.get(self.held):
            self.run.put(self.mine, b"")

    def places(self) -> tuple[Any, ...]:
        return (self.mine, self.theirs, self.peer_held, self.wide)

    def shows(self) -> int:
        run = self.run
        gone = not run.get(self.peer_held)
        shown = POLLHUP if gone else 0
        if gone or run.get(self.mine):
            shown |= POLLIN
        if gone or len(run.get(self.theirs)) <= WRITABLE_WITH[bool(run.get(self.wide))]:
            shown |= POLLOUT
        return shown


class Socket:
    """What owns such a descriptor: closed with the last reference, as the real one is."""

    def __init__(self, end: Endpoint) -> None:
        self.end, self.run = end, end.run

    def __del__(self) -> None:
        if self.run.over:
            return
        try:
            self.run.step(Op("closes", (), (self.end.held, self.end.mine), True))
            self.end.gone()
        except Killed:
            pass  # its task finds that out again

    def fileno(self) -> int:
        return self.end.fd

    def setblocking(self, on: bool) -> None:
        pass

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.run.step(Op("sets the send buffer", (), (self.end.wide,), True))
        self.run.put(self.end.wide, int(value > 1))

    def send(self, data: bytes, flags: int) -> int:
        run, end = self.run, self.end
        if data:
            run.step(Op(f"sends {data!r} to", (end.theirs, end.peer_held), (end.theirs,), True))
        else:
            run.step(Op("asks for hang-up", (end.peer_held,), (), True))
        if not run.get(end.peer_held):
            run.observe("EPIPE")
            raise BrokenPipeError
        queue = run.get(end.theirs)
        if data and len(queue) >= FULL_WITH[bool(run.get(end.wide))]:
            run.observe("EAGAIN")
            raise BlockingIOError
        run.observe("sent")
        if data:
            run.put(end.theirs, queue + data)
        return len(data)

    def recv(self, count: int, flags: int) -> bytes:
        run, end, peek = self.run, self.end, flags & 2
        name = "peeks at" if peek else f"eats {count} of"
        run.step(Op(name, (end.mine, end.peer_held), () if peek else (end.mine,), True))
        queue: bytes = run.get(end.mine)
        if not queue and run.get(end.peer_held):
            run.observe("EAGAIN")
            raise BlockingIOError
        run.observe(queue[:count])
        if not peek:
            run.put(end.mine, queue[count:])
        return queue[:count]


class Event:
    """An eventfd."""

    def __init__(self) -> None:
        self.run = current().run
        self.fd = current().new_fd(self)
        self.place = ("event", self.fd)

    def fileno(self) -> int:
        return self.fd

    def places(self) -> tuple[Any, ...]:
        return (self.place,)

    def shows(self) -> int:
        return POLLIN if self.run.get(self.place) else 0


class Epoll:
    """An epoll instance that is only ever watched itself."""

    def __init__(self, size: int) -> None:
        self.run = current().run
        self.inside: list[Any] = []
        self.fd = current().new_fd(self)

    def register(self, fd: int, events: int) -> None:
        self.inside.append(current().fds[fd])

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        pass

    def places(self) -> tuple[Any, ...]:
        return tuple(place for one in self.inside for place in one.places())

    def shows(self) -> int:
        return POLLIN if any(one.shows() & (POLLIN | POLLHUP) for one in self.inside) else 0


class PidFd:
    """Shows the end of a process."""

    def __init__(self, process: str) -> None:
        self.run = current().run
        self.place = ("alive", process)
        self.fd = current().new_fd(self)

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        pass

    def places(self) -> tuple[Any, ...]:
        return (self.place,)

    def shows(self) -> int:
        return 0 if self.run.get(self.place) else POLLIN


def poll_fd(fd: int, events: int, seconds: float | None, others: Sequence[int] = ()) -> int:
    run, first = current().run, current().fds[fd]
    rest = [current().fds[other] for other in others]

    def shown() -> int:
        found = first.shows() & (events | POLLERR | POLLHUP)
        return found or (ELSEWHERE if any(other.shows() for other in rest) else 0)

    places = first.places() + tuple(place for other in rest for place in other.places())
    if seconds == 0:
        run.step(Op("asks", places, (), True))
    else:
        until = None if seconds is None else run.now + seconds
        current().wait(Op("polls", places, (), True, lambda: shown() != 0, until))
    result = shown()
    run.observe(result)
    return result


# --- clock, processes, and what modules are replaced by ------------------------------------------


class Clock:
    """In place of ``time``."""

    @staticmethod
    def monotonic() -> float:
        run = current().run
        if run.limits.ticks or run.limits.late:
            run.step(Op("looks at the clock", ("clock",)))
            run.observe(run.now)
        return run.now

    @staticmethod
    def sleep(seconds: float) -> None:
        current().sleep(seconds)


class Identity:
    """In place of ``identity``: a process's token is its number and 1."""

    @property
    def token(self) -> int:
        return 1 + current().process(current().here())

    def is_alive(self, token: int) -> bool:
        place = ("alive", current().processes[token - 1])
        current().run.step(Op("asks whether lives", (place,), (), True))
        alive = bool(current().run.get(place))
        current().run.observe(alive)
        return alive

    def watch(self, token: int) -> PidFd | None:
        if token == self.token or not self.is_alive(token):
            return None
        return PidFd(current().processes[token - 1])


class Os:
    """In place of ``os`` where descriptors are made and closed."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def getpid(self) -> object:
        """Never the same: no place is given back by the garbage collector, which is not a task."""
        return object()

    def eventfd(self, value: int, flags: int) -> int:
        raise NotImplementedError

    def eventfd_write(self, fd: int, value: int) -> None:
        place = current().fds[fd].place
        current().run.step(Op("rings itself", (), (place,), True))
        current().run.put(place, 1)

    def eventfd_read(self, fd: int) -> None:
        place = current().fds[fd].place
        current().run.step(Op("hushes itself", (), (place,), True))
        if not current().run.get(place):
            raise BlockingIOError
        current().run.put(place, 0)


def owned(make: Any, *args: object) -> Any:
    """In place of ``descriptors.owned``: the only one to own is an eventfd."""
    return Event()


SELECT = types.SimpleNamespace(epoll=Epoll, EPOLLIN=1)
