"""Names for processes that are not related: `listen()` and `connect()`."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import selectors
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import shmpipe
from shmpipe import naming, rendezvous

from .support import START_METHODS, Flag, eventually, run_child, run_process, run_thread

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of names; nothing is left there at the end of a test that closes all."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path / "shmpipe"


def names(place: Path) -> list[str]:
    return sorted(os.listdir(place))


def talk(connection: Any, thing: Any = "hello") -> Any:
    """Send something to an `answer` and return what comes back."""
    connection.send(thing)
    return connection.recv(timeout=20)


def answer(name: str, **options: Any) -> int:
    """Connect, and send back what comes, until end of file; how much that was."""
    count = 0
    with shmpipe.connect(name, **options) as connection:
        for thing in connection:
            connection.send(thing)
            count += 1
    return count


# ---------------------------------------------------------------- meeting


@pytest.mark.parametrize("method", START_METHODS)
def test_processes_meet(method: str, place: Path) -> None:
    with shmpipe.listen("meet") as listener:
        child = run_process(method, answer, "meet", timeout=20) if method == "x" else None
        child = run_process(method, answer_within, "meet")
        with listener.accept(20) as connection:
            array = numpy.arange(300_000)
            assert talk(connection) == "hello"
            assert numpy.array_equal(talk(connection, array), array)
        assert child.join() == 2
        assert names(place) == ["meet"]
    assert names(place) == []


def answer_within(name: str) -> int:
    return answer(name, timeout=20)


def test_a_program_of_its_own_meets_us(place: Path) -> None:
    """Not a child that has inherited anything but the environment."""
    program = (
        "import shmpipe, sys\n"
        "with shmpipe.connect(sys.argv[1], timeout=20) as connection:\n"
        "    for thing in connection: connection.send(thing * 2)\n"
    )
    with shmpipe.listen("apart") as listener:
        path = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(
            [sys.executable, "-c", program, "apart"], env={**os.environ, "PYTHONPATH": path}
        )
        with listener.accept(20) as connection:
            assert talk(connection, "ab") == "abab"
        assert process.wait(20) == 0
