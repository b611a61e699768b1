"""All calls of both kinds of ends, with random arguments."""

from __future__ import annotations

import fcntl as real_fcntl
import importlib
import multiprocessing.connection
import os
import random
import select
import termios
from collections.abc import Callable
from typing import Any

import numpy as np

import shmpipe
from shmpipe import control, fcntl, ioctl

from .peer import PAGE, raw

# The package has functions of the same names.
pipes = importlib.import_module("shmpipe.pipe")
connections = importlib.import_module("shmpipe.connection")

TIMEOUTS = (0.0, 0.0, 0.001, 0.01, 0.05)
SIZES = (0, 1, 8, 100, 4080, 4088, 4096, 5000, 20_000, 70_000)
COMMANDS = (
    control.F_GETPIPE_SZ,
    control.F_SETPIPE_SZ,
    control.F_GETPIPE_WRITE_SZ,
    control.F_SETPIPE_WRITE_SZ,
    control.F_GETFL,
    control.F_SETFL,
)
SETTINGS = (0, 1, PAGE, 2 * PAGE, 3 * PAGE, 16 * PAGE, 64 * PAGE, os.O_NONBLOCK)


class Call:
    """One call: what is done, its own time limit in seconds, and whether it may wait for ever."""

    def __init__(
        self, name: str, act: Callable[[], Any], limit: float = 0.0, waits: bool = False
    ) -> None:
        self.name, self.act, self.limit, self.waits = name, act, limit, waits


def choose(rng: random.Random, end: Any) -> Call:
    """A call on ``end``."""
    if isinstance(end, shmpipe.Connection):
        ways = [
            *_COMMON,
            *(_RECEIVING if end.readable else ()),
            *(_SENDING if end.writable else ()),
        ]
    else:
        ways = [*_COMMON, *(_READING if isinstance(end, shmpipe.PipeReader) else _WRITING)]
    return rng.choice(ways)(rng, end)


# --- calls of all ends ---------------------------------------------------------------------------


def _fcntl(rng: random.Random, end: Any) -> Call:
    cmd, arg = rng.choice(COMMANDS), rng.choice(SETTINGS)
    return Call("fcntl", lambda: fcntl(end, cmd, arg))


def _ioctl(rng: random.Random, end: Any) -> Call:
    return Call("ioctl", lambda: ioctl(end, termios.FIONREAD))


def _stats(rng: random.Random, end: Any) -> Call:
    return Call("stats", end.stats)


def _fileno(rng: random.Random, end: Any) -> Call:
    def act() -> None:
        number = end.fileno()
        poller = select.poll()
        poller.register(number)
        poller.poll(1)

    return Call("fileno", act)


def _hand_over(rng: random.Random, end: Any) -> Call:
    """To a process that has not had the segment, as nearly as that can be played in this one."""
    use = rng.random() < 0.7

    def act() -> None:
        copy = handed_over(end)
        try:
            if use:
                call = choose(rng, copy)
                if not call.waits and call.name != "hand-over":
                    call.act()
        finally:
            copy.close()

    return Call("hand-over", act, max(TIMEOUTS))


def handed_over(end: Any) -> Any:
    segment = end._segment if isinstance(end, shmpipe.Connection) else end._side.ring.segment
    bell = end._bell if isinstance(end, shmpipe.Connection) else end._side.bell
    memory = real_fcntl.fcntl(segment.lend(end).fileno(), real_fcntl.F_DUPFD_CLOEXEC, 0)
    sock = real_fcntl.fcntl(bell.lend().fileno(), real_fcntl.F_DUPFD_CLOEXEC, 0)
    if isinstance(end, shmpipe.Connection):
        return connections._rebuild(
            raw(memory), raw(sock), *end._rings, end.readable, end.writable, end._spin
        )
    return pipes._rebuild(type(end), raw(memory), raw(sock), end._max_pages, None)


_COMMON = (_fcntl, _ioctl, _stats, _fileno, _hand_over)

# --- connections ---------------------------------------------------------------------------------


def _timeout(rng: random.Random) -> float:
    return rng.choice(TIMEOUTS)


def _poll(rng: random.Random, end: Any) -> Call:
    limit = _timeout(rng)
    return Call("poll", lambda: end.poll(limit), limit)


def _recv(rng: random.Random, end: Any) -> Call:
    limit = _timeout(rng)
    return Call("recv", lambda: end.recv(timeout=limit), limit)


def _recv_bytes(rng: random.Random, end: Any) -> Call:
    limit, most = _timeout(rng), rng.choice((None, None, 1 << 20, 100))
    return Call("recv_bytes", lambda: end.recv_bytes(most, timeout=limit), limit)


def _recv_for_ever(rng: random.Random, end: Any) -> Call:
    return Call("recv_bytes without limit", end.recv_bytes, waits=True)


def _recv_bytes_into(rng: random.Random, end: Any) -> Call:
    limit, room = _timeout(rng), bytearray(rng.choice(SIZES))
    return Call("recv_bytes_into", lambda: end.recv_bytes_into(room, timeout=limit), limit)


def _try_recv(rng: random.Random, end: Any) -> Call:
    return Call("try_recv_bytes", end.try_recv_bytes)


def _recv_many(rng: random.Random, end: Any) -> Call:
    limit = _timeout(rng)
    return Call("recv_many", lambda: end.recv_many(5, timeout=limit), limit)


def _iterate(rng: random.Random, end: Any) -> Call:
    return Call("iteration", lambda: next(iter(end), None), waits=True)


def _wait(rng: random.Random, end: Any) -> Call:
    limit = _timeout(rng)
    return Call("wait", lambda: multiprocessing.connection.wait([end], limit), limit)


def _recv_view(rng: random.Random, end: Any) -> Call:
    limit, well = _timeout(rng), rng.random() < 0.8

    def act() -> None:
        with end.recv_view(timeout=limit) as view:
            bytes(view)
            if not well:
                raise EOFError

    return Call("recv_view", act, limit)


def _send_bytes(rng: random.Random, end: Any) -> Call:
    limit, content = _timeout(rng), bytes(rng.choice(SIZES))
    return Call("send_bytes", lambda: end.send_bytes(content, timeout=limit), limit)


def _send_for_ever(rng: random.Random, end: Any) -> Call:
    content = bytes(rng.choice(SIZES))
    return Call("send_bytes without limit", lambda: end.send_bytes(content), waits=True)


def _send(rng: random.Random, end: Any) -> Call:
    limit, obj = _timeout(rng), rng.choice((None, "a" * 300, np.zeros(rng.choice(SIZES))))
    return Call("send", lambda: end.send(obj, timeout=limit), limit)


def _send_many(rng: random.Random, end: Any) -> Call:
    limit = _timeout(rng)
    return Call("send_many", lambda: end.send_many(range(5), timeout=limit), limit)


def _try_send(rng: random.Random, end: Any) -> Call:
    content = bytes(rng.choice(SIZES))
    return Call("try_send_bytes", lambda: end.try_send_bytes(content))


def _reserve(rng: random.Random, end: Any) -> Call:
    limit, size, well = _timeout(rng), rng.choice(SIZES), rng.random() < 0.8

    def act() -> None:
        with end.reserve(size, timeout=limit) as view:
            view[:] = bytes(size)
            if not well:
                raise EOFError

    return Call("reserve", act, limit)


_RECEIVING = (
    _poll,
    _recv,
    _recv_bytes,
    _recv_bytes,
    _recv_for_ever,
    _recv_bytes_into,
    _recv_bytes_into,
    _try_recv,
    _recv_many,
    _iterate,
    _wait,
    _recv_view,
    _recv_view,
)
_SENDING = (
    _send_bytes,
    _send_bytes,
    _send_bytes,
    _send_for_ever,
    _send,
    _send_many,
    _try_send,
    _reserve,
    _reserve,
)

# --- pipes ---------------------------------------------------------------------------------------
# Whether they wait is for the peer to say: O_NONBLOCK stands in the segment.


def _read(rng: random.Random, end: Any) -> Call:
    size = rng.choice((*SIZES, 1 << 24))
    return Call("read", lambda: end.read(size), waits=True)


def _readinto(rng: random.Random, end: Any) -> Call:
    room = bytearray(rng.choice(SIZES))
    return Call("readinto", lambda: end.readinto(room), waits=True)


def _readall(rng: random.Random, end: Any) -> Call:
    return Call("readall", end.readall, waits=True)


def _write(rng: random.Random, end: Any) -> Call:
    content = bytes(rng.choice(SIZES))
    return Call("write", lambda: end.write(content), waits=True)


_READING = (_read, _read, _read, _readinto, _readinto, _readall)
_WRITING = (_write, _write, _write, _write)
