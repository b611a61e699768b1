"""Helpers of the tests of names: `listen()` and `connect()`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

import shmpipe

from .support import Flag, run_child

LIMIT = 20  # seconds, for what comes at once
NOBODY = 65534  # a user that is not the one who runs the tests
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of this test's names.  (pytest's own has a path that is long for a socket.)"""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield Path(directory, "shmpipe")


def files(place: Path) -> list[str]:
    return sorted(os.listdir(place))


def echo(name: str, wait: bool = False) -> int:
    """Connect, and send back what comes, until end of file; how much that was."""
    count = 0
    with shmpipe.connect(name, wait=wait, timeout=LIMIT) as connection:
        for thing in connection:
            connection.send(thing)
            count += 1
    return count


def echo_at(directory: str, name: str) -> int:
    """`echo`, wherever this process has its names (a fork server began in another test)."""
    os.environ["XDG_RUNTIME_DIR"] = directory
    return echo(name)


def converse(connection: Any) -> None:
    """With an `echo` at the other end."""
    array = numpy.arange(300_000)
    connection.send("hello")
    assert connection.recv(timeout=LIMIT) == "hello"
    connection.send(array)
    assert numpy.array_equal(connection.recv(timeout=LIMIT), array)


def listen_only(name: str, ready: Flag, mode: int | None) -> None:
    """Have a name and accept nobody, until killed."""
    with shmpipe.listen(name, mode=mode):
        ready.set()
        signal.pause()


def program(*lines: str, before: Sequence[str] = (), **environment: str) -> subprocess.Popen[bytes]:
    """A Python that has nothing of ours but the environment."""
    path = os.pathsep.join(filter(None, sys.path))
    command = [*before, sys.executable, "-c", "\n".join(lines)]
    # Not from the checkout, where the package lies uncompiled.
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.Popen(command, env=environment, cwd=os.sep)


def leave_behind(place: Path, name: str, mode: int | None = None) -> None:
    """What a listener leaves that was killed."""
    with Flag() as ready:
        child = run_child(listen_only, name, ready, mode)
        ready.wait()
        child.kill()
    assert os.path.basename(name) in files(place)


def refusal(name: str | Path) -> int | None:
    """The errno with which `listen` fails."""
    try:
        with shmpipe.listen(name):
            return 0
    except OSError as error:
        return error.errno
