"""One face over `multiprocessing.Pipe` and `shmpipe.Pipe`.

Tests that take a `kind` run on the standard library's connections first, which proves the test
itself, and then on ours; what the standard library lacks or gets wrong is tested on ours alone.
``make_link(kind, duplex)`` and the context manager ``link_of`` give the two ends in the order in
which `Pipe` returns them: whatever `duplex` is, the second can send to the first.

Also here: `messages` with checksums, and `Session`, a program in processes of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_sharer
from pathlib import Path
from typing import Any

import pytest

import shmpipe

from .support import eventually, task_state

KINDS = ("stdlib", "shmpipe")

both_kinds = pytest.mark.parametrize("kind", KINDS)
both_ways = pytest.mark.parametrize("duplex", [True, False], ids=["duplex", "one-way"])

KiB = 1 << 10
MiB = 1 << 20

# What a message may cost beside its payload; the rings of these tests are far larger.
OVERHEAD = 4 * KiB


def make_link(kind: str, duplex: bool = True, **options: Any) -> tuple[Any, Any]:
    """Both ends of a new link: the receiver's and the sender's; `options` are shmpipe's own."""
    if kind == "stdlib":
        assert not options
        return multiprocessing.Pipe(duplex)
    return shmpipe.Pipe(duplex, **options)


@contextlib.contextmanager
def link_of(kind: str, duplex: bool = True, **options: Any) -> Iterator[tuple[Any, Any]]:
    """`make_link` whose ends are closed at the end of the with block."""
    receiver, sender = make_link(kind, duplex, **options)
    with receiver, sender:
        yield receiver, sender


def fill_link(sender: Any, size: int = KiB) -> int:
    """Send messages of ours until no other fits; how many those were."""
    count = 0
    while sender.try_send_bytes(numbered(count, size)):
        count += 1
    return count


def numbered(number: int, size: int) -> bytes:
    """A message of `size` bytes which differs for each number."""
    return (b"%08d" % number).ljust(size, b".")[:size]


def receive_all(receiver: Any, *others: Any) -> list[bytes]:
    """Every message until end of file."""
    for other in others:
        other.close()
    found = []
    with contextlib.suppress(EOFError):
        while True:
            found.append(receiver.recv_bytes())
    return found


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error)


def is_interrupted(call: Callable[[], Any]) -> bool:
    """Whether the call ends with KeyboardInterrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        call()
    except KeyboardInterrupt:
        return True
    return False


def waiting_its_turn(*runners: Any) -> None:
    """Give them the time to begin to wait for somebody in the middle of a large message.

    Whoever does that looks now and then if the other is still there, so it is never quite asleep.
    """
    time.sleep(0.15)
    for runner in runners:
        assert runner.alive()


@pytest.fixture
def stop_resource_sharer() -> Iterator[None]:
    """The thread and the listening socket that hand descriptors over stay for good otherwise."""
    yield
    resource_sharer.stop(timeout=10)


# ---------------------------------------------------------------- messages with checksums

_HEADER = struct.Struct("<IIQI")
SMALLEST = _HEADER.size
_NOISE = random.Random(1).randbytes(8 * MiB)


def message(who: int, number: int, size: int) -> bytes:
    """A message of `size` bytes in all, which tells who sent it."""
    payload = size - SMALLEST
    start = (who * 7919 + number * 104_729) % (len(_NOISE) - payload)
    body = _NOISE[start : start + payload]
    return _HEADER.pack(who, number, size, zlib.crc32(body, who << 20 ^ number)) + body


def check_message(data: bytes) -> tuple[int, int]:
    """(sender, number) of a message, which has to be whole."""
    assert len(data) >= SMALLEST, f"torn message of {len(data)} bytes"
    who, number, size, checksum = _HEADER.unpack_from(data)
    assert size == len(data), f"message {who}/{number} of {size} bytes came as {len(data)}"
    assert zlib.crc32(memoryview(data)[SMALLEST:], who << 20 ^ number) == checksum, (
        f"message {who}/{number} is damaged"
    )
    return who, number


def numbers_of(who: int, found: Iterable[tuple[int, int]]) -> list[int]:
    """The numbers of one sender's messages, in the order in which they were found."""
    return [number for sender, number in found if sender == who]


# ---------------------------------------------------------------- programs of their own


def names_in_dev_shm() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


@contextlib.contextmanager
def nothing_left_in_dev_shm() -> Iterator[None]:
    """What the block puts into /dev/shm is gone again soon after it."""
    before = names_in_dev_shm()
    yield
    left = names_in_dev_shm() - before

    def gone() -> bool:
        left.intersection_update(names_in_dev_shm())
        return not left

    # Other programs on this machine may have names there for a moment, too.
    eventually(gone, 15, f"{left} to go from /dev/shm")


class Session:
    """A program in a session of its own, so that whatever it starts can be found again."""

    def __init__(self, program: str, directory: Path, *arguments: str) -> None:
        script = directory / "program.py"
        script.write_text(textwrap.dedent(program))
        # The same package as here, wherever it was found.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [*arguments, sys.executable, str(script)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        # The program's children have its pipes as well: without this, reading would never end.
        for pid in self.pids():
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        self.process.communicate()

    def pids(self) -> list[int]:
        """The processes of the session that still run."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                state = task_state(int(name), int(name))
                with contextlib.suppress(OSError):
                    if state and state[0] not in "ZX" and os.getsid(int(name)) == self.process.pid:
                        found.append(int(name))
        return found

    def wait_gone(self) -> None:
        eventually(lambda: not self.pids(), 10, f"processes {self.pids()} to end")

    def finish(self, timeout: float = 40) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of a program that ends by itself."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out.decode(), err.decode()
