"""Looks whether this machine has what the pipes need, and says what it means where it has not.

Each check tries the thing itself: a version number would say little about a container. The exit
status is 1 if something is missing without which there are no pipes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import select
import socket
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, dataclass

HELP = "what the pipes need of this machine, and what it has"

GOOD, SLOWER, MISSING = "ok", "limited", "MISSING"
FDS_OF_A_PIPE = 5  # with both ends in this process and the reading one watched
FEW_PIPES = 20  # fewer than a small Pool may want


@dataclass(frozen=True)
class Finding:
    """What one check has found."""

    name: str
    state: str
    """``"ok"``, ``"limited"`` (works, with what `meaning` says) or ``"MISSING"`` (no pipes)."""
    found: str
    meaning: str
    """What it is for, and what follows where it is not there."""


@dataclass(frozen=True)
class Check:
    """One thing to look at: ``look()`` returns the state and what was found, or raises."""

    name: str
    look: Callable[[], tuple[str, str]]
    meaning: str
    otherwise: str = MISSING
    """The state if ``look()`` raises."""

    def finding(self) -> Finding:
        try:
            state, found = self.look()
        except Exception as error:  # whatever is wrong here, the other checks still tell something
            state, found = self.otherwise, f"{type(error).__name__}: {error}"
        return Finding(self.name, state, found, self.meaning)


def _closed() -> Exception:
    return OSError("closed")


def _engine() -> tuple[str, str]:
    import shmpipe

    engine = getattr(shmpipe, "engine", "pure")
    return (GOOD if engine == "native" else SLOWER), engine


def _sealed_memory() -> tuple[str, str]:
    from ..descriptors import owned
    from ..segment import Segment

    segment = Segment.create(1, 1, _closed)
    Segment.attach(owned(os.dup, segment.lend(segment).fileno()), _closed)
    return GOOD, "memfd_create works, sealed against resizing"


def _lock_of_rare_decisions() -> tuple[str, str]:
    from ..segment import Segment

    reached: list[int] = []
    Segment.create(1, 1, _closed).exclusively(lambda: reached.append(1))
    return (GOOD, "works") if reached else (MISSING, "excludes even its holder")


def _round_trip() -> tuple[str, str]:
    import shmpipe

    reader, writer = shmpipe.pipe()
    with reader, writer:
        writer.write(b"ping")
        answer = reader.read(10)
    return (GOOD, "bytes go through") if answer == b"ping" else (MISSING, f"read {answer!r}")


def _nested_epoll() -> tuple[str, str]:
    """A reading end's descriptor is an epoll instance, and others watch it by epoll."""
    left, right = socket.socketpair()
    with left, right, select.epoll() as inner, select.epoll() as outer:
        inner.register(left, select.EPOLLIN)
        outer.register(inner.fileno(), select.EPOLLIN)
        if outer.poll(0):
            return MISSING, "an idle epoll instance shows readable"
        right.send(b"x")
        if not outer.poll(0):
            return MISSING, "an epoll instance with events does not show readable in another one"
    return GOOD, "works"


def _tokens() -> tuple[str, str]:
    from ..doorbell import doorbells

    left, right = doorbells(_closed, False)
    try:
        if not right.is_open():
            return MISSING, "an empty socket is not writable"
        right.plug(1)
        tokens = len(left.lend().recv(4096, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        if right.is_open():
            return MISSING, f"a socket still takes more after {tokens} tokens"
        if tokens < 2:
            return MISSING, "one token is enough, so readable and full cannot be told apart"
        left.eat(1, 1)
        if not right.is_open():
            return MISSING, "a socket stays full after its tokens have been eaten"
    finally:
        left.close()
        right.close()
    return GOOD, f"{tokens} tokens fill one"


def _eventfd() -> tuple[str, str]:
    os.close(os.eventfd(0, os.EFD_CLOEXEC))
    return GOOD, "works"


def _pidfd() -> tuple[str, str]:
    os.close(os.pidfd_open(os.getpid()))
    return GOOD, "works"


def _proc() -> tuple[str, str]:
    with open("/proc/self/stat", "rb") as file:
        pid = int(file.read().split()[0])
    if pid != os.getpid():
        return SLOWER, "is of another pid namespace"
    return GOOD, "is of this pid namespace"


def _cpus() -> tuple[str, str]:
    usable = len(os.sched_getaffinity(0))
    found = f"{usable} usable of {os.cpu_count()}"
    return (GOOD if usable > 1 else SLOWER), found


def _spin() -> tuple[str, str]:
    from ..waiting import spin_limit

    seconds = spin_limit(None)
    return GOOD, f"at most {seconds * 1e6:g} µs" if seconds else "off, because there is one CPU"


def _descriptors() -> tuple[str, str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd")) - 1
    except OSError:
        used = 3
    if soft == resource.RLIM_INFINITY:
        return GOOD, "no limit"
    pipes = max(soft - used, 0) // FDS_OF_A_PIPE
    most = "any" if hard == resource.RLIM_INFINITY else str(hard)
    found = f"limit {soft} (can be raised to {most}): {pipes} pipes"
    return (GOOD if pipes >= FEW_PIPES else SLOWER), found


def _sizes() -> tuple[str, str]:
    from ..control import LARGEST, system_max_size
    from .table import byte_count

    most, grown = byte_count(LARGEST), byte_count(system_max_size())
    return GOOD, f"up to {most} when made; F_SETPIPE_SZ grows one up to {grown}"


CHECKS = (
    Check(
        "engine",
        _engine,
        "native is the compiled one, several times as fast; pure is the same code, interpreted."
        " Install again with a C compiler and Python's headers, or see SHMPIPE_ENGINE.",
    ),
    Check(
        "sealed memory",
        _sealed_memory,
        "A pipe lives in a memfd (Linux 3.17), which leaves no name behind and cannot be cut off"
        " under its users. Without it there are no pipes.",
    ),
    Check(
        "a pipe",
        _round_trip,
        "A few bytes through a pipe in this process, semaphores included.",
    ),
    Check(
        "lock of a file",
        _lock_of_rare_decisions,
        "Decides who clears up after a process that was killed. Without it there are no pipes.",
    ),
    Check(
        "tokens per socket",
        _tokens,
        "Readiness is shown by tokens in a socket with the smallest buffer: none, one, or so many"
        " that it is full. Without these three states select() and poll() would be told wrong.",
    ),
    Check(
        "nested epoll",
        _nested_epoll,
        "A reading end's fileno() is an epoll instance. Without nesting, epoll, asyncio and"
        " selectors cannot watch it; calls that simply block still work.",
        SLOWER,
    ),
    Check(
        "eventfd",
        _eventfd,
        "Part of a reading end's fileno(). Without it, ends cannot be watched.",
        SLOWER,
    ),
    Check(
        "pidfd",
        _pidfd,
        "A sleeper watches the other users of its pipe by it (Linux 5.3). Without it, it looks"
        " after them twice a second.",
        SLOWER,
    ),
    Check(
        "/proc",
        _proc,
        "Tells whether the holder of a lock still lives. Without it only its number counts, which"
        " another process may have got; all users of a pipe must be in one pid namespace.",
        SLOWER,
    ),
    Check(
        "CPUs",
        _cpus,
        "With one CPU, reader and writer take turns: larger pipes and write sizes help, spinning"
        " does not.",
    ),
    Check(
        "spinning",
        _spin,
        "How long a call waits for the other side before it goes to sleep, unless spin= says"
        " otherwise. It saves sleeps and costs CPU time.",
    ),
    Check(
        "descriptors",
        _descriptors,
        "A pipe takes one for its memory, one for each end that a process holds, and two more for a"
        " reading end that is watched. At the limit, making one raises OSError EMFILE; raise it"
        " with ulimit -n.",
    ),
    Check(
        "pipe sizes",
        _sizes,
        "size= may be so much, whatever the limit of the kernel's own pipes. That one,"
        " /proc/sys/fs/pipe-max-size, is what F_SETPIPE_SZ may grow a pipe to later, unless"
        " max_size= said otherwise when it was made.",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--verbose", action="store_true", help="say what each thing is for")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """All checks; 1 if there can be no pipes here."""
    findings = [check.finding() for check in CHECKS]
    if args.json:
        print(json.dumps({**_about(), "findings": [asdict(one) for one in findings]}, indent=2))
    else:
        print(", ".join(f"{name} {version}" for name, version in _about().items()))
        print()
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.state:8} {finding.name:{width}}  {finding.found}")
            if args.verbose or finding.state != GOOD:
                indent = " " * (len("MISSING  ") + width + 1)
                print(textwrap.indent(textwrap.fill(finding.meaning, 100 - len(indent)), indent))
    missing = [finding.name for finding in findings if finding.state == MISSING]
    if missing:
        print(f"shmpipe doctor: there can be no pipes here: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


def _about() -> dict[str, str]:
    from .._version import __version__

    return {
        "shmpipe": __version__,
        "python": platform.python_version(),
        platform.system().lower(): platform.release(),
        "machine": platform.machine(),
    }
