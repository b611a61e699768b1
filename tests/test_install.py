"""`install()`, `uninstall()`, `installed()`, and what multiprocessing builds on its pipes."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import Pipe as bound_before
from pathlib import Path
from typing import Any

import pytest

import shmpipe
from shmpipe import patch

from .programs import installed as program
from .support import START_METHODS, eventually, register_pid, run_child, run_process, run_thread

PROGRAM = Path(program.__file__)
METHODS = pytest.mark.parametrize("method", START_METHODS)
ORIGINALS = (
    multiprocessing.Pipe,
    multiprocessing.connection.Pipe,
    vars(multiprocessing.context.BaseContext)["Pipe"],
)


def current() -> tuple[Any, Any, Any]:
    return (
        multiprocessing.Pipe,
        multiprocessing.connection.Pipe,
        vars(multiprocessing.context.BaseContext)["Pipe"],
    )


def all_standard() -> bool:
    return all(now is before for now, before in zip(current(), ORIGINALS, strict=True))


def all_ours() -> bool:
    return not any(now is before for now, before in zip(current(), ORIGINALS, strict=True))


def made_by(pipe: Any, *args: Any, **options: Any) -> type:
    """The type of both ends of a pipe."""
    first, second = pipe(*args, **options)
    with first, second:
        assert type(first) is type(second)
        return type(first)


@pytest.fixture(autouse=True)
def nothing_stays_installed() -> Iterator[None]:
    assert all_standard()
    yield
    stayed = not all_standard()
    while not all_standard():
        shmpipe.uninstall()
    assert not stayed


# In place


@METHODS
def test_every_way_to_a_pipe(method: str) -> None:
    with shmpipe.installed():
        assert multiprocessing.Pipe is shmpipe.Pipe
        assert multiprocessing.connection.Pipe is shmpipe.Pipe
        for pipe in (
            bound_before,
            multiprocessing.get_context(method).Pipe,
            multiprocessing.get_context().Pipe,
        ):
            assert made_by(pipe) is made_by(pipe, False) is shmpipe.Connection
    for pipe in (multiprocessing.Pipe, bound_before, multiprocessing.get_context(method).Pipe):
        assert made_by(pipe) is multiprocessing.connection.Connection


def test_a_method_that_was_bound_while_installed_is_ours() -> None:
    with shmpipe.installed():
        pipe = multiprocessing.get_context("fork").Pipe
    assert made_by(pipe) is shmpipe.Connection


@METHODS
def test_duplex_and_options_are_passed_on(method: str) -> None:
    with shmpipe.installed():
        for pipe in (multiprocessing.Pipe, multiprocessing.get_context(method).Pipe):
            for duplex in (True, False):
                first, second = pipe(duplex, size=16384)
                with first, second:
                    assert first.writable is second.readable is duplex
                    assert shmpipe.fcntl(second, shmpipe.F_GETPIPE_SZ) == 16384
            first, second = pipe(duplex=False)
            with first, second:
                assert first.readable and not first.writable
            with pytest.raises(TypeError):
                pipe(color="red")


def test_the_start_method_stays_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c"]
        + [
            "import multiprocessing, shmpipe\n"
            "with shmpipe.installed():\n"
            "    multiprocessing.Pipe()\n"
            "    multiprocessing.connection.Pipe()\n"
            "    multiprocessing.get_context('fork').Pipe()\n"
            "assert multiprocessing.get_start_method(allow_none=True) is None\n"
            "multiprocessing.set_start_method('spawn')\n"
            "print('done')\n"
        ],
        cwd=tmp_path,  # It is first on the path; a shmpipe there would be found.
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_pipes_outlive_the_change() -> None:
    standard = multiprocessing.Pipe()
    shmpipe.install()
    ours = multiprocessing.Pipe()
    for ends in (standard, ours):
        ends[0].send("there")
    shmpipe.uninstall()
    for first, second in (standard, ours):
        with first, second:
            assert second.recv() == "there"
            second.send("back")
            assert first.recv() == "back"


def report() -> tuple[type, bool]:
    return made_by(multiprocessing.Pipe), program.patched_here()


@METHODS
def test_children(method: str) -> None:
    with shmpipe.installed():
        child = run_process(method, report)
        if method == "fork":
            assert child.join() == (shmpipe.Connection, True)
        else:
            assert child.join() == (multiprocessing.connection.Connection, False)


# Nesting


def test_install_and_uninstall() -> None:
    shmpipe.install()
    assert all_ours()
    shmpipe.uninstall()
    assert all_standard()


def test_the_last_uninstall_counts() -> None:
    shmpipe.install()
    first = current()
    with shmpipe.installed():
        shmpipe.install()
        assert current() == first
        shmpipe.uninstall()
        assert current() == first
    assert current() == first
    shmpipe.uninstall()
    assert all_standard()


def test_an_exception_passes_and_uninstalls() -> None:
    seen = []

    def fail() -> None:
        with shmpipe.installed():
            seen.append(all_ours())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert seen == [True]
    assert all_standard()


def test_uninstall_without_install() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="install"):
            shmpipe.uninstall()
        assert all_standard()
    with shmpipe.installed():  # The failed attempts do not count.
        assert all_ours()
    assert all_standard()


def test_what_others_put_in_place_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(duplex: bool = True) -> None:
        pass

    with monkeypatch.context() as patches:
        patches.setattr(multiprocessing, "Pipe", other)  # before: comes back
        with shmpipe.installed():
            assert all_ours()
            with pytest.MonkeyPatch.context() as inner:  # within: is over before we are
                inner.setattr(multiprocessing.connection, "Pipe", other)
            assert multiprocessing.connection.Pipe is shmpipe.Pipe
        assert multiprocessing.Pipe is other
    assert all_standard()
    shmpipe.install()
    with monkeypatch.context() as patches:
        patches.setattr(multiprocessing, "Pipe", other)  # from within until after: stays
        shmpipe.uninstall()
        assert multiprocessing.Pipe is other
        assert current()[1:] == ORIGINALS[1:]
    # It puts back what it found, which was ours.
    assert multiprocessing.Pipe is shmpipe.Pipe
    multiprocessing.Pipe = ORIGINALS[0]


def test_threads() -> None:
    start = threading.Barrier(4)

    def work() -> int:
        start.wait()
        good = 0
        for _ in range(500):
            with shmpipe.installed():
                good += all_ours()
        return good

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [run_thread(work) for _ in range(4)]
        assert [thread.join() for thread in threads] == [500] * 4
    finally:
        sys.setswitchinterval(interval)
    assert all_standard()


class SlowPlace:
    """Something with a Pipe, which takes time to change."""

    def __init__(self) -> None:
        vars(self)["Pipe"] = "standard"
        self.__dict__.update(reached=threading.Event(), go=threading.Event())

    def __setattr__(self, name: str, value: object) -> None:
        self.reached.set()
        assert self.go.wait(30)
        vars(self)[name] = value


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> SlowPlace:
    slow = SlowPlace()
    monkeypatch.setattr(patch, "_PLACES", ((slow, "ours"),))
    return slow


def test_install_waits_for_another_install(place: Any) -> None:
    first = run_thread(shmpipe.install)
    assert place.reached.wait(30)
    second = run_thread(shmpipe.install)
    second.wait_asleep()  # It must not return before the pipe is in place.
    place.go.set()
    first.join()
    second.join()
    shmpipe.uninstall()
    assert place.Pipe == "ours"
    shmpipe.uninstall()
    assert place.Pipe == "standard"


def test_install_waits_for_an_uninstall(place: Any) -> None:
    place.go.set()
    shmpipe.install()
    place.go.clear()
    place.reached.clear()
    first = run_thread(shmpipe.uninstall)
    assert place.reached.wait(30)
    second = run_thread(shmpipe.install)
    second.wait_asleep()
    place.go.set()
    first.join()
    second.join()
    assert place.Pipe == "ours"
    shmpipe.uninstall()
    assert place.Pipe == "standard"


def install_once() -> bool:
    with shmpipe.installed():
        return all_ours()


def test_fork_while_another_thread_installs() -> None:
    taken = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with patch._lock:
            taken.set()
            leave.wait(0.3)

    thread = run_thread(hold)
    taken.wait()
    child = run_child(install_once)  # A lock copied while it is held would never be free in there.
    leave.set()
    assert child.join() is True
    thread.join()
    assert install_once()


# What is built on pipes


def session_members(leader: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getsid(int(name)) == leader:
                    found.append(int(name))
            except ProcessLookupError:
                pass
    return found


@pytest.mark.timeout_s(120)
@METHODS
@pytest.mark.parametrize("scenario", program.SCENARIOS)
def test_program(scenario: str, method: str, tmp_path: Path) -> None:
    """Objects and arrays pass through unharmed; a clean end, and nothing left behind."""
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), method, scenario],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={
                **os.environ,
                "OPENBLAS_NUM_THREADS": "1",
                # Pool and executors fork beside their own threads, which Python 3.12 warns about.
                "PYTHONWARNINGS": "default,ignore::DeprecationWarning",
            },
            start_new_session=True,
        )
    register_pid(process.pid)
    try:
        status = process.wait(100)
        # The fork server and the resource tracker end once they see that the program has.
        eventually(lambda: not session_members(process.pid), timeout=10, what="its processes end")
    finally:
        for pid in session_members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    assert (tmp_path / "err").read_text() == ""
    assert (tmp_path / "out").read_text() == "done\n"
    assert status == 0
