"""Processes and threads that run one function and hand its result back; part of `support`."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .tasks import cpu_seconds, task_state, wait_asleep

START_METHODS = ("fork", "spawn", "forkserver")

# Environment variable with the path of the run's own stderr, for spawned children.
STDERR_VARIABLE = "SHMPIPE_TEST_STDERR"
# The end of the watchdog's socket which forked children inherit; set by conftest.
watchdog_socket: socket.socket | None = None

_started: list[_Runner] = []


class ChildDied(Exception):
    """A child ended without delivering a result; `exitcode` is as in multiprocessing."""

    def __init__(self, pid: int, exitcode: int | None) -> None:
        super().__init__(f"child {pid} ended with exit code {exitcode} and no result")
        self.pid = pid
        self.exitcode = exitcode


def register_pid(pid: int) -> None:
    """Tell the watchdog about a process, so that it dies with the run even when orphaned."""
    if watchdog_socket is not None:
        with contextlib.suppress(OSError):
            watchdog_socket.send(b"pid %d" % pid)


def enable_stack_dumps() -> None:
    """Make SIGUSR1 print all stacks of this process; forked children inherit it."""
    path = os.environ.get(STDERR_VARIABLE)
    try:
        # The test run's own stderr, not the file that captures a test's output.
        out = open(path, "ab", buffering=0) if path else sys.__stderr__  # noqa: SIM115
    except OSError:
        out = sys.__stderr__
    if out is not None:
        faulthandler.register(signal.SIGUSR1, file=out, all_threads=True, chain=False)


class _Runner:
    """What children and threads have in common: a result that arrives, and a place to sleep."""

    pid: int

    def alive(self) -> bool:
        raise NotImplementedError

    def abandon(self) -> str | None:
        """End it if it can be ended; a description when it was still running."""
        raise NotImplementedError

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def tasks(self) -> list[int] | None:
        """The tasks that run the function; None: all of the process."""
        return None

    def wait_asleep(self, timeout: float = 30, settle: float = 0.05) -> None:
        wait_asleep((self.pid, self.tasks()), timeout=timeout, settle=settle)


class Child(_Runner):
    """A forked process that runs one function; see the module's docstring."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], close: Iterable[Any]) -> None:
        self.name = getattr(fn, "__name__", repr(fn))
        self.exitcode: int | None = None
        self._outcome: tuple[str, Any, str] | None = None
        self._result, sender = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns about forking beside threads; tests do that on purpose.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            self._run(fn, args, close, sender)
        os.close(sender)
        register_pid(self.pid)
        _started.append(self)

    def _run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], close: Iterable[Any], sender: int
    ) -> None:
        """The child's whole life; never returns into the test."""
        status = 1
        try:
            _started.clear()
            os.close(self._result)
            for end in close:
                end.close()
            status = _deliver(sender, fn, args)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def fileno(self) -> int:
        """Readable once the result is there or the child is dead."""
        return self._result

    def _wait(self, timeout: float) -> None:
        if self.exitcode is not None:
            return
        chunks = []
        deadline = time.monotonic() + timeout
        while True:
            poller = select.poll()
            poller.register(self._result, select.POLLIN)
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                # The stack of the stuck child is what one wants to see in the report.
                with contextlib.suppress(OSError):
                    os.kill(self.pid, signal.SIGUSR1)
                raise TimeoutError(f"child {self.pid} ({self.name}) did not end in {timeout} s")
            chunk = os.read(self._result, 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
        os.close(self._result)
        self.exitcode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with contextlib.suppress(Exception):
            self._outcome = pickle.loads(b"".join(chunks))

    def join(self, timeout: float = 30) -> Any:
        """The function's result; raises what it raised, or `ChildDied`."""
        self._wait(timeout)
        return _unpack(self.pid, self.exitcode, self._outcome)

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """Send a signal; with SIGKILL also wait for the end, so that its ends are closed."""
        if self.exitcode is None:
            os.kill(self.pid, sig)
            if sig == signal.SIGKILL:
                self._wait(30)

    def alive(self) -> bool:
        if self.exitcode is not None:
            return False
        stat = task_state(self.pid, self.pid)
        return stat is not None and stat[0] not in "ZX"

    def abandon(self) -> str | None:
        if self.exitcode is not None:
            return None
        running = self.alive()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        self._wait(30)
        return f"child {self.pid} ({self.name})" if running else None


def _deliver(sender: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """Run `fn` and send what came out of it down `sender`; the exit status."""
    try:
        outcome: tuple[str, Any, str] = ("result", fn(*args), "")
    except BaseException as error:
        outcome = ("error", error, traceback.format_exc())
    try:
        data = pickle.dumps(outcome)
    except Exception:
        data = pickle.dumps(("error", RuntimeError(repr(outcome[1])), outcome[2]))
    view = memoryview(data)
    while view:
        view = view[os.write(sender, view) :]
    return 0 if outcome[0] == "result" else 1


def _unpack(pid: int, exitcode: int | None, outcome: tuple[str, Any, str] | None) -> Any:
    if outcome is None:
        raise ChildDied(pid, exitcode)
    kind, value, text = outcome
    if kind == "result":
        return value
    print(f"--- traceback of child {pid} ---\n{text}", file=sys.stderr)
    raise value


class ProcessChild(_Runner):
    """`Child`, started through multiprocessing."""

    def __init__(self, method: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        context: Any = multiprocessing.get_context(method)
        self.name = fn.__name__
        self._result, sender = context.Pipe(False)
        self.process = context.Process(target=_process_main, args=(sender, fn, args), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        sender.close()
        self.pid = self.process.pid
        self._outcome: tuple[str, Any, str] | None = None
        register_pid(self.pid)
        _started.append(self)

    @property
    def exitcode(self) -> int | None:
        return self.process.exitcode  # type: ignore[no-any-return]

    def join(self, timeout: float = 60) -> Any:
        if not self._result.closed:
            if not self._result.poll(timeout):
                with contextlib.suppress(OSError):
                    os.kill(self.pid, signal.SIGUSR1)
                raise TimeoutError(f"process {self.pid} ({self.name}) did not end in {timeout} s")
            with contextlib.suppress(EOFError, OSError):
                self._outcome = pickle.loads(self._result.recv_bytes())
            self._result.close()
        self.process.join(30)
        if self.process.exitcode is None:
            raise TimeoutError(f"process {self.pid} ({self.name}) gave its result but stays")
        return _unpack(self.pid, self.process.exitcode, self._outcome)

    def kill(self, sig: int = signal.SIGKILL) -> None:
        if self.process.exitcode is None:
            os.kill(self.pid, sig)
            if sig == signal.SIGKILL:
                self.process.join(30)

    def alive(self) -> bool:
        return self.process.is_alive()  # type: ignore[no-any-return]

    def abandon(self) -> str | None:
        running = self.process.is_alive()
        self.kill()
        self.process.join(30)
        self.process.close()
        self._result.close()
        return f"process {self.pid} ({self.name})" if running else None


def _process_main(sender: Any, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    enable_stack_dumps()
    reader, writer = os.pipe()
    collected: list[bytes] = []

    def collect() -> None:
        # A result larger than a pipe would block in _deliver without somebody who reads it.
        while chunk := os.read(reader, 1 << 16):
            collected.append(chunk)

    thread = threading.Thread(target=collect)
    thread.start()
    status = _deliver(writer, fn, args)
    os.close(writer)
    thread.join()
    os.close(reader)
    sender.send_bytes(b"".join(collected))
    sender.close()
    sys.exit(status)


class ThreadRun(_Runner):
    """A daemon thread that runs one function."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.pid = os.getpid()
        self.name = getattr(fn, "__name__", repr(fn))
        self._value: Any = None
        self._error: BaseException | None = None

        def run() -> None:
            try:
                self._value = fn(*args)
            except BaseException as error:
                self._error = error

        self.thread = threading.Thread(target=run, daemon=True, name=self.name)
        self.thread.start()
        _started.append(self)

    def join(self, timeout: float = 30) -> Any:
        self.thread.join(timeout)
        if self.thread.is_alive():
            raise TimeoutError(f"thread {self.name} did not end in {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value

    def alive(self) -> bool:
        return self.thread.is_alive()

    def tasks(self) -> list[int] | None:
        tid = self.thread.native_id
        assert tid is not None
        return [tid]

    def abandon(self) -> str | None:
        if not self.thread.is_alive():
            return None
        self.thread.join(1)
        return f"thread {self.name}" if self.thread.is_alive() else None


def run_child(fn: Callable[..., Any], *args: Any, close: Iterable[Any] = ()) -> Child:
    """Run `fn(*args)` in a forked process, which first closes the objects in `close`."""
    return Child(fn, args, close)


def run_process(method: str, fn: Callable[..., Any], *args: Any) -> ProcessChild:
    """Run `fn(*args)` in a multiprocessing child: "fork", "spawn" or "forkserver"."""
    return ProcessChild(method, fn, args)


def end_of_program(text: str, directory: Path) -> tuple[int, bytes, bytes]:
    """Run a program, which has imported ``sys`` and ``shmpipe``: exit status, output, errors."""
    script = directory / "program.py"
    script.write_text("import sys, shmpipe\n" + text)
    done = subprocess.run(
        [sys.executable, str(script)],
        # The same package as here, wherever it was found.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def run_thread(fn: Callable[..., Any], *args: Any) -> ThreadRun:
    """Run `fn(*args)` in a daemon thread."""
    return ThreadRun(fn, args)


def end_everything() -> list[str]:
    """End what the test started (conftest calls this); descriptions of what still ran."""
    left = [runner.abandon() for runner in _started]
    _started.clear()
    return [text for text in left if text]
