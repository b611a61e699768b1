"""Three pipes behind one face, so that sequences of calls can be compared.

`KernelPipe`, `ShmPipe` and `ModelPipe` take the same steps, each a tuple of a name and arguments
(see `Subject.do`), and turn whatever comes out into a comparable `(kind, value)`: results as they
are, exceptions as their class and errno. Everything is non-blocking.
"""

from __future__ import annotations

import fcntl
import io
import os
import select
import termios
from collections.abc import Callable
from typing import Any

from . import support
from .page_model import PageModel

# 251 is prime to the page size, so no two pages of a payload look alike.
_SOURCE = bytes(range(1, 252)) * 8

Step = tuple[Any, ...]
Outcome = tuple[str, Any]

ENDS = ("r", "w")


def payload(start: int, count: int) -> bytes:
    """`count` bytes which differ for every `start` below 251."""
    start %= 251
    whole = -(-(start + count) // len(_SOURCE))
    return (_SOURCE * whole)[start : start + count]


class Subject:
    """A pair of ends and what can be done to them."""

    name = ""

    def __init__(self, reader: Any, writer: Any) -> None:
        self.ends: dict[str, Any] = {"r": reader, "w": writer}

    def do(self, step: Step) -> Outcome:
        """Take one step; what came out of it, in comparable form."""
        try:
            value = getattr(self, step[0])(*step[1:])
        except OSError as error:
            return (type(error).__name__, error.errno)
        except (ValueError, TypeError) as error:
            # UnsupportedOperation is both an OSError and a ValueError, so it never gets here.
            return (type(error).__name__, None)
        return ("ok", value)

    # Each step's name is one of these methods.

    def write(self, start: int, count: int) -> int | None:
        return self.ends["w"].write(payload(start, count))  # type: ignore[no-any-return]

    def read(self, count: int | None) -> bytes | None:
        return self.ends["r"].read(count)  # type: ignore[no-any-return]

    def readall(self) -> bytes | None:
        return self.ends["r"].readall()  # type: ignore[no-any-return]

    def readinto(self, count: int) -> tuple[int | None, bytes]:
        """The count and the whole buffer: bytes beyond the count must stay as they were."""
        buffer = bytearray(b"\xff") * count
        return self.ends["r"].readinto(buffer), bytes(buffer)

    def close(self, end: str) -> None:
        self.ends[end].close()

    def closed(self, end: str) -> bool:
        return self.ends[end].closed  # type: ignore[no-any-return]

    def wrong_way(self, end: str) -> object:
        return self.ends[end].write(b"x") if end == "r" else self.ends[end].read(1)

    def unread(self, end: str) -> int:
        raise NotImplementedError

    def set_size(self, end: str, arg: int) -> int:
        raise NotImplementedError

    def get_size(self, end: str) -> int:
        raise NotImplementedError

    def set_flags(self, end: str, junk: int) -> int:
        raise NotImplementedError

    def get_flags(self, end: str) -> int:
        raise NotImplementedError

    def ready(self, how: str = "select") -> dict[str, bool]:
        """Readable and writable as a poller sees the open ends."""
        return POLLERS[how]({key: end for key, end in self.ends.items() if not end.closed})

    def lengths(self) -> list[int]:
        """Bytes in each slot. Takes them out where there is no other way to tell."""
        raise NotImplementedError

    def dispose(self) -> None:
        for end in self.ends.values():
            end.close()


def _by_select(ends: dict[str, Any]) -> dict[str, bool]:
    watched = list(ends.values())
    readable, writable, odd = select.select(watched, watched, watched, 0)
    assert not odd
    found = {}
    for key, end in ends.items():
        found[key + " readable"] = end in readable
        found[key + " writable"] = end in writable
    return found


# What select(2) counts as readable and writable.
_IN = select.POLLIN | select.POLLRDNORM | select.POLLHUP | select.POLLERR
_OUT = select.POLLOUT | select.POLLWRNORM | select.POLLERR
_ASKED = select.POLLIN | select.POLLOUT


def _from_bits(ends: dict[str, Any], events: list[tuple[int, int]]) -> dict[str, bool]:
    bits = dict(events)
    found = {}
    for key, end in ends.items():
        got = bits.get(end.fileno(), 0)
        found[key + " readable"] = bool(got & _IN)
        found[key + " writable"] = bool(got & _OUT)
    return found


def _by_poll(ends: dict[str, Any]) -> dict[str, bool]:
    poller = select.poll()
    for end in ends.values():
        poller.register(end, _ASKED)
    return _from_bits(ends, poller.poll(0))


def _by_epoll(ends: dict[str, Any]) -> dict[str, bool]:
    with select.epoll() as poller:
        for end in ends.values():
            poller.register(end, _ASKED)
        return _from_bits(ends, poller.poll(0))


POLLERS: dict[str, Callable[[dict[str, Any]], dict[str, bool]]] = {
    "select": _by_select,
    "poll": _by_poll,
    "epoll": _by_epoll,
}


class KernelPipe(Subject):
    """`os.pipe2`."""

    name = "kernel"

    def __init__(self, size: int = 65536) -> None:
        super().__init__(*support.kernel_pipe(size, nonblocking=True))

    def unread(self, end: str) -> int:
        return support.unread(self.ends[end])

    def set_size(self, end: str, arg: int) -> int:
        return fcntl.fcntl(self.ends[end].fileno(), fcntl.F_SETPIPE_SZ, arg)

    def get_size(self, end: str) -> int:
        return fcntl.fcntl(self.ends[end].fileno(), fcntl.F_GETPIPE_SZ)

    def set_flags(self, end: str, junk: int) -> int:
        return fcntl.fcntl(self.ends[end].fileno(), fcntl.F_SETFL, os.O_NONBLOCK | junk)

    def get_flags(self, end: str) -> int:
        return fcntl.fcntl(self.ends[end].fileno(), fcntl.F_GETFL)

    def lengths(self) -> list[int]:
        return support.kernel_slots(self.ends["r"])


class ShmPipe(Subject):
    """`shmpipe.pipe`."""

    name = "shmpipe"

    def __init__(self, size: int = 65536, **options: Any) -> None:
        import shmpipe

        self.module: Any = shmpipe
        super().__init__(*shmpipe.pipe(size, flags=os.O_NONBLOCK, **options))

    def unread(self, end: str) -> int:
        return self.module.ioctl(self.ends[end], termios.FIONREAD)  # type: ignore[no-any-return]

    def _fcntl(self, end: str, command: str, arg: int = 0) -> int:
        return self.module.fcntl(  # type: ignore[no-any-return]
            self.ends[end], getattr(self.module, command), arg
        )

    def set_size(self, end: str, arg: int) -> int:
        return self._fcntl(end, "F_SETPIPE_SZ", arg)

    def get_size(self, end: str) -> int:
        return self._fcntl(end, "F_GETPIPE_SZ")

    def set_write_size(self, end: str, arg: int) -> int:
        return self._fcntl(end, "F_SETPIPE_WRITE_SZ", arg)

    def get_write_size(self, end: str) -> int:
        return self._fcntl(end, "F_GETPIPE_WRITE_SZ")

    def set_flags(self, end: str, junk: int) -> int:
        return self._fcntl(end, "F_SETFL", os.O_NONBLOCK | junk)

    def get_flags(self, end: str) -> int:
        return self._fcntl(end, "F_GETFL")

    def counts(self, end: str) -> tuple[int, int, int]:
        stats = self.ends[end].stats()
        return stats.pages_used, stats.bytes_written, stats.bytes_read

    def lengths(self) -> list[int]:
        found = [0]
        reader = self.ends["r"]
        used = reader.stats().pages_used
        while reader.read(1):
            found[-1] += 1
            now = reader.stats().pages_used
            if now < used:
                used = now
                found.append(0)
        assert found.pop() == 0, "the last byte freed no slot"
        return found


class ModelPipe(Subject):
    """`PageModel`, with the ends' faces put around it."""

    name = "model"

    def __init__(self, size: int = 65536, **options: Any) -> None:
        if "wake" in options:
            options["policy"] = options.pop("wake")
        self.model = PageModel(size, **options)
        super().__init__(None, None)
        self.open = {"r": True, "w": True}

    def _check(self, end: str) -> None:
        if not self.open[end]:
            raise ValueError("closed")

    def write(self, start: int, count: int) -> int | None:
        self._check("w")
        return self.model.write(payload(start, count))

    def read(self, count: int | None) -> bytes | None:
        self._check("r")
        return self.model.read(-1 if count is None else count)

    def readall(self) -> bytes | None:
        return self.read(-1)

    def readinto(self, count: int) -> tuple[int | None, bytes]:
        got = self.read(count)
        data = got or b""
        return None if got is None else len(got), data + b"\xff" * (count - len(data))

    def close(self, end: str) -> None:
        if self.open[end]:
            self.open[end] = False
            (self.model.close_reader if end == "r" else self.model.close_writer)()

    def closed(self, end: str) -> bool:
        return not self.open[end]

    def wrong_way(self, end: str) -> object:
        self._check(end)
        raise io.UnsupportedOperation

    def unread(self, end: str) -> int:
        self._check(end)
        return self.model.unread()

    def set_size(self, end: str, arg: int) -> int:
        self._check(end)
        return self.model.set_size(arg)

    def get_size(self, end: str) -> int:
        self._check(end)
        return self.model.size

    def set_write_size(self, end: str, arg: int) -> int:
        self._check(end)
        return self.model.set_write_size(arg)

    def get_write_size(self, end: str) -> int:
        self._check(end)
        return self.model.write_size

    def set_flags(self, end: str, junk: int) -> int:
        self._check(end)
        return 0

    def get_flags(self, end: str) -> int:
        self._check(end)
        return os.O_NONBLOCK | (end == "w")

    def counts(self, end: str) -> tuple[int, int, int]:
        # Statistics outlive the end they are asked of, so there is no check.
        return self.model.used, self.model.bytes_written, self.model.bytes_read

    def ready(self, how: str = "select") -> dict[str, bool]:
        model = self.model
        found: dict[str, bool] = {}
        if self.open["r"]:
            found |= {"r readable": model.readable(), "r writable": False}
        if self.open["w"]:
            found |= {"w readable": not model.reader_open, "w writable": model.writable()}
        return found

    def lengths(self) -> list[int]:
        return self.model.lengths

    def dispose(self) -> None:
        pass


def compare(step: Step, left: Subject, right: Subject) -> str | None:
    """Take `step` on both; a description of the difference, None when they agree."""
    got, expected = left.do(step), right.do(step)
    if got == expected:
        return None
    return f"{step}: {left.name} {brief(got)}, {right.name} {brief(expected)}"


def brief(outcome: Outcome) -> str:
    """An outcome for a message: long byte strings by their length and both ends."""

    def short(value: Any) -> str:
        if isinstance(value, bytes) and len(value) > 40:
            return f"<{len(value)} bytes {value[:8]!r}..{value[-8:]!r}>"
        if isinstance(value, tuple):
            return "(" + ", ".join(short(item) for item in value) + ")"
        return repr(value)

    return short(outcome)
