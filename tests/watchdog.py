"""The process that ends a test run which hangs. Started by conftest.py, talks over one socket.

It is a process of its own because a thread would be stuck with the rest: a hang may hold the
interpreter lock, or sit in an uninterruptible call. Messages, one datagram each:

* ``start <seconds> <name>``: something begins that must be over in so many seconds
* ``stop``: it is over
* ``pid <n>``: this process belongs to the run, even when its parent dies

When time is up, it has every process of the run print its stacks (SIGUSR1; see
`children.enable_stack_dumps`), then kills them all, the test process included, whose exit status
is then that of SIGKILL. When the test process dies on its own, the rest of the run is killed too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time


def _field(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def identity(pid: int) -> tuple[int, bytes]:
    """A pid and its start time: still the same process when both agree."""
    fields = _field(pid, "stat").rpartition(b")")[2].split()
    return pid, fields[19] if fields else b""


def descendants(root: int) -> list[int]:
    """All living processes below `root`, parents first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _field(int(name), "stat").rpartition(b")")[2].split()
            if fields and fields[0] not in b"ZX":
                children.setdefault(int(fields[1]), []).append(int(name))
    found = list(children.get(root, []))
    for pid in found:
        found.extend(children.get(pid, []))
    return found


class Watchdog:
    def __init__(self, messages: socket.socket, root: int) -> None:
        self.messages = messages
        self.root = root
        self.registered: set[tuple[int, bytes]] = set()
        self.deadline: float | None = None
        self.limit = 0.0
        self.name = ""

    def run(self) -> None:
        poller = select.poll()
        poller.register(self.messages, select.POLLIN)
        root_exit = os.pidfd_open(self.root)
        poller.register(root_exit, select.POLLIN)
        while True:
            wait = None
            if self.deadline is not None:
                wait = max(0.0, self.deadline - time.monotonic()) * 1000
            ready = [fd for fd, _ in poller.poll(wait)]
            if self.messages.fileno() in ready:
                message = self.messages.recv(4096)
                if not message:
                    poller.unregister(self.messages)
                else:
                    self.handle(message.decode(errors="replace"))
            elif root_exit in ready:
                self.kill(self.members())
                return
            elif self.deadline is not None and time.monotonic() >= self.deadline:
                self.expire()
                return

    def handle(self, message: str) -> None:
        word, _, rest = message.partition(" ")
        if word == "pid":
            self.registered.add(identity(int(rest)))
        elif word == "start":
            seconds, _, self.name = rest.partition(" ")
            self.limit = float(seconds)
            self.deadline = time.monotonic() + self.limit
        else:
            self.deadline = None

    def members(self) -> list[int]:
        """The processes of the run other than the test process and this one."""
        pids = descendants(self.root)
        for pid, start in self.registered:
            if start and identity(pid) == (pid, start) and pid not in pids:
                pids.append(pid)
                pids.extend(child for child in descendants(pid) if child not in pids)
        return [pid for pid in pids if pid not in (os.getpid(), self.root)]

    def expire(self) -> None:
        say(f"\n\n==== {self.name}: not over after {self.limit:g} s; the run ends here ====")
        for pid in [self.root, *self.members()]:
            describe(pid)
        self.kill(self.members())
        with contextlib.suppress(OSError):
            os.kill(self.root, signal.SIGKILL)
        say("==== all processes of the run were killed ====")

    def kill(self, pids: list[int]) -> None:
        # Stopped first, or one of them forks while the others are being killed.
        for sig in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, sig)
            pids = list(dict.fromkeys([*pids, *self.members()]))


def describe(pid: int) -> None:
    """Say what a process is at; it prints its stacks itself."""
    command = _field(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
    where = _field(pid, "wchan").decode(errors="replace")
    state = _field(pid, "stat").rpartition(b")")[2].split()[:1]
    say(f"\n---- process {pid}, state {state}, in {where!r}: {command[:200]}")
    caught = [line for line in _field(pid, "status").splitlines() if line.startswith(b"SigCgt")]
    # A process without a handler would die of the signal and say nothing.
    if caught and int(caught[0].split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.3)


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode() + b"\n")


if __name__ == "__main__":
    # Ctrl-C in a terminal reaches the whole group, but the run must stay guarded while it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Watchdog(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).run()
