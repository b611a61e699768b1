"""What every test gets: a hard time limit, and a look at what it left behind.

The limit is 60 s for a test with its fixtures, or what ``@pytest.mark.timeout_s(n)`` says; the
environment variable SHMPIPE_TEST_TIMEOUT_FACTOR multiplies all limits on slow machines. A run
that exceeds a limit is ended as a whole, see watchdog.py.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from . import children, subjects, support

DEFAULT_LIMIT = 60.0
# Collecting, session fixtures, and shutting down the interpreter after the last test.
OTHER_LIMIT = 120.0

# Nothing is stored between runs: a failing example is printed, and can be given again.
_common: dict[str, Any] = {"deadline": None, "database": None, "print_blob": True}
hypothesis.settings.register_profile("short", max_examples=1200, stateful_step_count=30, **_common)
hypothesis.settings.register_profile("long", max_examples=40_000, stateful_step_count=80, **_common)
hypothesis.settings.load_profile("short")

# Files whose tests start many processes or wait a lot: left out of `tools/test --fast` as a whole.
SLOW_FILES = {
    "test_bench.py",
    "test_cases_system.py",
    "test_closing.py",
    "test_cpython.py",
    "test_crowd.py",
    "test_descriptors.py",
    "test_edges.py",
    "test_exits.py",
    "test_failing.py",
    "test_examples.py",
    "test_forked.py",
    "test_holders.py",
    "test_idle.py",
    "test_install.py",
    "test_interrupted.py",
    "test_interrupted_frames.py",
    "test_killed.py",
    "test_leaks.py",
    "test_places.py",
    "test_policies.py",
    "test_pouring.py",
    "test_processes.py",
    "test_pushing.py",
    "test_seqwc.py",
    "test_sharing.py",
    "test_sharing_crowd.py",
    "test_soaking.py",
    "test_starved.py",
    "test_takeover.py",
    "test_top.py",
    "test_threads.py",
    "test_torn_frames.py",
    "test_watchdog.py",
    "test_watchers.py",
    "test_wake_ratios.py",
    "test_wakes.py",
}

# Files about what is around the package, or which choose their engine themselves: the second run of
# `tools/test`, on the other engine, leaves them out.
ONCE_FILES = {
    "test_bench.py",
    "test_docs.py",
    "test_doctor.py",
    "test_explorer.py",
    "test_pouring.py",
    "test_seqwc.py",
    "test_top.py",
    "test_wake_ratios.py",
    "test_watchdog.py",
}

_failed = pytest.StashKey[bool]()


def _limit(seconds: float) -> float:
    return seconds * float(os.environ.get("SHMPIPE_TEST_TIMEOUT_FACTOR", "1"))


def _tell(seconds: float, name: str) -> None:
    if children.watchdog_socket is not None:
        with contextlib.suppress(OSError):
            message = f"start {_limit(seconds):g} {name}".encode()
            children.watchdog_socket.send(message[:4000])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW_FILES:
            item.add_marker(pytest.mark.slow)
        if item.path.name in ONCE_FILES:
            item.add_marker(pytest.mark.once)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout_s(seconds): hard time limit of this test")
    # A shell starts what it runs beside itself with these ignored, and what we start inherits that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if config.getoption("usepdb", False):
        return  # A debugger may take as long as it likes.
    # Capturing is not active here, so this is the stderr of the run.
    stderr = os.dup(2)
    os.environ[children.STDERR_VARIABLE] = f"/proc/{os.getpid()}/fd/{stderr}"
    children.enable_stack_dumps()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    script = Path(__file__).with_name("watchdog.py")
    with theirs:
        # Not a child of multiprocessing, and deliberately never waited for: it outlives the run
        # by the moment it takes to see that the run is over.
        process = subprocess.Popen(
            [sys.executable, "-I", str(script), str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
        )
        process.returncode = 0  # Keeps Popen from warning that it is still running.
    children.watchdog_socket = ours
    _tell(OTHER_LIMIT, "collection")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    marker = item.get_closest_marker("timeout_s")
    _tell(marker.args[0] if marker else DEFAULT_LIMIT, item.nodeid)
    try:
        return (yield)
    finally:
        _tell(OTHER_LIMIT, f"after {item.nodeid}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def open_fds() -> set[tuple[int, str]]:
    """The file descriptors of this process, with what they refer to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # The one of the listing itself is gone again.
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    tracker: Any = multiprocessing.resource_tracker
    forkserver: Any = multiprocessing.forkserver
    # These two start on first use and stay for good.
    lasting = {
        getattr(tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
        getattr(forkserver._forkserver, "_forkserver_authkey", None),
    }
    return {(fd, target) for fd, target in found if fd not in lasting}


@pytest.fixture(autouse=True)
def tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test leaves a child, a thread or a file descriptor behind."""
    before = open_fds()
    yield
    running = children.end_everything()
    for process in multiprocessing.active_children():
        process.kill()
        process.join(30)
        running.append(repr(process))
    if request.node.stash.get(_failed, False):
        return  # The traceback keeps the test's objects alive; there is an error to see already.
    assert not running, f"still running at the end of the test: {running}"
    left = open_fds() - before
    if left:
        gc.collect()
        left &= open_fds()
    assert not left, f"file descriptors left open: {sorted(left)}"


@pytest.fixture(autouse=True, scope="session")
def nothing_left_in_dev_shm() -> Iterator[None]:
    """The run leaves no name in /dev/shm."""
    shm = Path("/dev/shm")

    def names() -> set[str]:
        return {entry.name for entry in shm.iterdir()} if shm.is_dir() else set()

    before = names()
    yield
    gc.collect()
    left = names() - before

    def gone() -> bool:
        left.intersection_update(names())
        return not left

    # Another run on this machine, such as the other engine's, may have names there for a while.
    with contextlib.suppress(AssertionError):
        support.eventually(gone, timeout=15)
    assert not left, f"left in /dev/shm: {sorted(left)}"


KINDS: dict[str, type[Any]] = {
    "kernel": subjects.KernelPipe,
    "shmpipe": subjects.ShmPipe,
    "model": subjects.ModelPipe,
}
# For what the kernel's pipe does not have.
OURS = pytest.mark.parametrize("new_pipe", ["shmpipe", "model"], indirect=True)
# For the outside of the ends, which the model does not have.
REAL = pytest.mark.parametrize("new_pipe", ["kernel", "shmpipe"], indirect=True)


@pytest.fixture(params=list(KINDS))
def new_pipe(request: pytest.FixtureRequest) -> Iterator[Callable[..., subjects.Subject]]:
    """Makes non-blocking pipes of one kind; a test that uses it runs for each kind.

    That the kernel passes shows that the test asks for what the kernel really does.
    """
    made: list[subjects.Subject] = []

    def make(size: int = 65536, **options: Any) -> subjects.Subject:
        made.append(KINDS[request.param](size, **options))
        return made[-1]

    yield make
    for pipe in made:
        pipe.dispose()
