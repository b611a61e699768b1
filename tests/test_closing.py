"""An end that one thread closes while another is using it: the other's call ends as it should."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmpipe


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


CONNECTION: dict[str, Callable[[Any], Any]] = {
    "fileno": lambda end: end.fileno(),
    "send": lambda end: end.try_send_bytes(b"x" * 3000),
    "recv": lambda end: end.try_recv_bytes(),
    "poll": lambda end: end.poll(0),
    "poll for a while": lambda end: end.poll(1e-5),
    "stats": lambda end: end.stats(),
    "fcntl": lambda end: shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, 4096),
    "halves": lambda end: (end.incoming.fileno(), end.outgoing.fileno()),
    "lend": lambda end: end.__reduce__()[0],
}
PIPE: dict[str, Callable[[Any], Any]] = {
    "fileno": lambda end: end.fileno(),
    "write": lambda end: end.write(b"x" * 3000),
    "read": lambda end: end.read(10),
    "stats": lambda end: end.stats(),
    "fcntl": lambda end: shmpipe.fcntl(end, shmpipe.F_SETPIPE_WRITE_SZ, 4096),
    "size": lambda end: shmpipe.fcntl(end, shmpipe.F_SETPIPE_SZ, 8192),
    "unread": lambda end: shmpipe.ioctl(end, 0x541B),
    "repr": repr,
}


def errors(end: Any, call: Callable[[Any], Any], close_after: float) -> Exception | None:
    """How a thread that makes the same call again and again ends when the end is closed."""
    ended: list[Exception] = []
    begun = threading.Event()

    def go() -> None:
        try:
            while not end.closed:
                call(end)
                begun.set()
        except Exception as error:
            ended.append(error)
        begun.set()

    thread = threading.Thread(target=go)
    thread.start()
    begun.wait()
    threading.Event().wait(close_after)
    end.close()
    thread.join()
    return ended[0] if ended else None


@pytest.mark.parametrize("call", CONNECTION)
def test_connection(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.reduction.DupFd", lambda fd: fd)
    for turn in range(60):
        a, b = shmpipe.Pipe()
        error = errors(a, CONNECTION[call], turn * 1e-5)
        assert error is None or repr(error) == "OSError('handle is closed')"
        b.close()


@pytest.mark.parametrize("call", PIPE)
def test_pipe(call: str) -> None:
    for turn in range(60):
        r, w = shmpipe.pipe(1 << 16)
        shmpipe.fcntl(r, shmpipe.F_SETFL, 0o4000)
        shmpipe.fcntl(w, shmpipe.F_SETFL, 0o4000)
        end, other = (r, w) if call == "read" else (w, r)
        error = errors(end, PIPE[call], turn * 1e-5)
        assert error is None or repr(error) == "ValueError('I/O operation on closed file')"
        other.close()
