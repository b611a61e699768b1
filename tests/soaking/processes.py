"""Processes as the director has them: started in four ways, ended in one, and told apart."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import warnings
from typing import Any

import shmpipe

from .hosts import GIVER_GONE, Host, fork, sent, spawned
from .ledger import FINISHED, PID, PLAYING, STATE, Ledger
from .plans import Plan

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Who goes on in a child, and ends, leaves the child to this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Process:
    """One host, from its start to its end, whichever process it goes on in."""

    def __init__(self, plan: Plan, ledger: Ledger, number: int, ends: dict[bool, Any]) -> None:
        """``ends``: all that the director has; the process keeps those of its roles' sides."""
        self.plan = plan
        self.ledger = ledger
        self.number = number
        self.roles = plan.hosts[number]
        self.status: int | None = None  # as of waitpid; negative: the signal that killed it
        self.stopped_until = 0.0
        self._stopped = 0
        self._started: Any = None
        for role in self.roles:
            words = ledger.role(role)
            if words[STATE] != FINISHED:
                words[STATE] = words[PID] = 0
        sides = {plan.is_sender(role) for role in self.unfinished()}
        mine = {side: ends[side] for side in sides}
        method = plan.methods[number]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
            if method in ("spawn", "forkserver"):
                context: Any = multiprocessing.get_context(method)
                arguments = (plan, ledger.path, number, mine)
                self._started = context.Process(target=spawned, args=arguments)
                self._started.start()
                self._pid = self._started.pid
            else:
                self._pid = self._fork(method, ends, mine)

    def _fork(self, method: str, ends: dict[bool, Any], mine: dict[bool, Any]) -> int:
        ours, theirs = shmpipe.Pipe() if method == "sent" else (None, None)
        pid = fork()
        if not pid:
            try:
                for side, end in ends.items():
                    if method == "sent" or side not in mine:
                        end.close()
                if ours is not None:
                    ours.close()
                    sent(self.plan, self.ledger, self.number, theirs)
                Host(self.plan, self.ledger, self.number, mine).run()
            finally:
                os._exit(1)
        if ours is not None and theirs is not None:
            theirs.close()
            with ours:
                ours.send(mine)
                # The thread that hands them over must not be at work when this process forks again.
                if not ours.poll(120):
                    raise TimeoutError("an end was not taken")
                ours.recv()
        return pid

    def unfinished(self) -> list[int]:
        return [role for role in self.roles if self.ledger.role(role)[STATE] != FINISHED]

    def pid(self) -> int:
        """The process that has the roles now."""
        if len(self.roles) == 1:  # others stay where they are
            self._pid = self.ledger.role(self.roles[0])[PID] or self._pid
        return self._pid

    def may_be_killed(self) -> bool:
        """Not while it waits for its ends: what is on its way would stay for good (with stdlib)."""
        playing = [self.ledger.role(role)[STATE] == PLAYING for role in self.unfinished()]
        return self.status is None and bool(playing) and all(playing)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(), number)

    def stop(self, until: float) -> None:
        self._stopped = self.pid()
        self.stopped_until = until
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """(It may have just left its roles to a child when it was stopped.)"""
        self.stopped_until = 0.0
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._stopped, signal.SIGCONT)

    def ended(self) -> bool:
        """Whether it has; then ``status`` tells how."""
        if self.status is None:
            if self._started is None:
                self.status = _wait(self.pid())
            else:
                self.status = self._started.exitcode
                if self.status is not None:
                    self._started.join()
                    self._started.close()
        return self.status is not None


def _wait(pid: int) -> int | None:
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # still its parent's, which is about to end
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def reap_the_rest() -> list[int]:
    """Exit statuses, of those that nobody has asked for, which should not be."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found.append(os.waitstatus_to_exitcode(status))
    return [status for status in found if status not in (0, GIVER_GONE, -signal.SIGKILL)]
