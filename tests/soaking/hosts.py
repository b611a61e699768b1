"""A process of a round: plays one role, or several in threads, until they are over."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from multiprocessing import resource_sharer
from typing import Any

import shmpipe

from .desk import Alarm, Desk, Interrupted
from .ledger import FINISHED, FORKS, HANDOVERS, PID, PLAYING, RISK, STATE, Ledger
from .plans import Plan
from .receiving import Receiver, RecordReader
from .sending import RecordWriter, Sender
from .spoiling import spoil
from .streaming import StreamReader, StreamWriter


def fork() -> int:
    """(Only processes that multiprocessing starts itself begin anew with handing over.)"""
    pid = os.fork()
    if not pid:
        resource_sharer._resource_sharer._afterfork()  # type: ignore[attr-defined]
    return pid


GIVER_GONE = 3  # exit status: whoever was to hand an end over has died
_PLAYERS: dict[tuple[bool, str], Any] = {
    (True, "records"): RecordWriter,
    (False, "records"): RecordReader,
    (True, "stream"): StreamWriter,
    (False, "stream"): StreamReader,
}


def _unraisable(what: Any) -> None:
    """Nothing may go wrong in a finalizer, but for a signal's handler that raises there."""
    if not isinstance(what.exc_value, Interrupted):
        sys.__unraisablehook__(what)
        os._exit(1)


def _mapped() -> list[str]:
    with open("/proc/self/maps") as maps:
        return [line for line in maps if "memfd:shmpipe" in line]


class Host:
    """What runs in the process; ``ends``: those it was given, by whether they are for senders."""

    def __init__(self, plan: Plan, ledger: Ledger, number: int, ends: dict[bool, Any]) -> None:
        self.plan = plan
        self.ledger = ledger
        # (Of a process that was killed, some roles may be over.)
        self.roles = [role for role in plan.hosts[number] if ledger.role(role)[STATE] != FINISHED]
        self.movable = plan.methods[number] in ("fork", "sent") and len(plan.hosts[number]) == 1
        self.ends = ends
        self.starved = plan.starved[number]
        self.alarm = Alarm(plan, ledger.role(self.roles[0]))
        sides = [plan.is_sender(role) for role in self.roles]
        self.left = {side: sides.count(side) for side in ends}  # roles that still need that end

    def run(self) -> None:
        """The process's whole life."""
        status = 1
        try:
            self._run()
            status = 0
        except BaseException:
            self.alarm.armed = False
            whole = f"--- process {os.getpid()}, {self.plan.describe()}\n{traceback.format_exc()}"
            os.write(2, whole.encode())
        finally:
            os._exit(status)

    def _run(self) -> None:
        sys.unraisablehook = _unraisable
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True, chain=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for role in self.roles:
            self.ledger.role(role)[PID] = os.getpid()
        failed: list[str] = []
        threads = []
        for role in self.roles[1:]:

            def play(role: int = role) -> None:
                try:
                    self.play(role, Alarm(self.plan, self.ledger.role(role)))
                except BaseException:
                    failed.append(traceback.format_exc())
                    os.write(2, f"--- thread of {os.getpid()}\n{failed[-1]}".encode())
                    os._exit(1)  # the others might wait for it

            threads.append(threading.Thread(target=play))
            threads[-1].start()
        self.alarm.start()
        self.play(self.roles[0], self.alarm)
        self.alarm.stop()
        for thread in threads:
            thread.join()
        for end in self.ends.values():
            assert end.closed
        self._look_what_is_left()

    def _starve(self) -> None:
        """Leave hardly a descriptor: what can do without goes on, the rest says EMFILE.

        (Not from the beginning: the first call that a process makes on a pipe needs one.)
        """
        highest = max(map(int, os.listdir("/proc/self/fd")))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 4, most))
        hoard = []
        with contextlib.suppress(OSError):
            while True:
                hoard.append(os.dup(0))
        for fd in hoard[: random.Random().randint(0, 3)]:
            os.close(fd)

    def _look_what_is_left(self) -> None:
        if self.starved:
            return  # no descriptor to look with
        left = _mapped()
        if left:
            ours = (type(thing) for thing in gc.get_objects())
            living = Counter(kind.__name__ for kind in ours if "shmpipe" in kind.__module__)
            gc.collect()
            raise AssertionError(
                f"still mapped after close(): {left}; there are {living}; behind a collection of "
                f"garbage {_mapped()}"
            )

    def play(self, role: int, alarm: Alarm) -> None:
        side = self.plan.is_sender(role)
        desk = Desk(self.plan, self.ledger, role, alarm, self.starved)
        kind = _PLAYERS.get((side, self.plan.kind), Sender if side else Receiver)
        player = kind(desk, self.ends[side])
        if self.plan.spoil:
            spoil(self.plan.spoil, player, side)
        words = desk.words
        words[STATE] = PLAYING
        moves = 0.0007 if self.movable and not self.starved else 0.0
        steps = 0
        while not player.finished() and player.step():
            steps += 1
            if steps == 50 and self.starved and role == self.roles[0]:
                self._starve()
            if moves and desk.random() < moves and words[RISK] == 0:
                self._move(desk, player)
        self.left[side] -= 1
        if not self.left[side]:
            self.ends[side].close()
        words[STATE] = FINISHED

    # --- going on in another process -------------------------------------------------------------

    def _move(self, desk: Desk, player: Any) -> None:
        """Fork.  The child goes on, with its copy of the end or with one that it is sent."""
        words = desk.words
        self.alarm.stop()
        dice = desk.random()
        if dice < 0.4:
            self._bystander(words)
        elif dice < 0.8:
            parent = os.getpid()
            child = fork()
            if child:
                words[PID] = child
                os._exit(0)
            self._take_over(words, parent)
            words[FORKS] += 1
        else:
            self._hand_over(desk, player)
        self.alarm.go_on()

    def _bystander(self, words: memoryview) -> None:
        """A child that has nothing to do with it."""
        child = fork()
        if not child:
            for end in self.ends.values():
                end.close()
            os._exit(0)
        words[FORKS] += 1
        os.waitpid(child, 0)

    def _take_over(self, words: memoryview, parent: int) -> None:
        """Wait until the parent has named this process.

        By one store, so that whoever is killed here leaves no doubt who plays the role.
        """
        while words[PID] != os.getpid():
            if os.getppid() != parent and words[PID] != os.getpid():
                os._exit(GIVER_GONE)
            time.sleep(0.0002)

    def _hand_over(self, desk: Desk, player: Any) -> None:
        make = shmpipe.Pipe if desk.random() < 0.7 else multiprocessing.Pipe
        ours, theirs = make()
        side = self.plan.is_sender(desk.role)
        parent = os.getpid()
        child = fork()
        if child:
            theirs.close()
            ours.send(self.ends[side])
            ours.recv()
            desk.words[PID] = child
            os._exit(0)
        ours.close()
        for end in self.ends.values():
            end.close()
        try:
            self.ends[side] = player.end = theirs.recv()
            theirs.send("it is here")
        except (EOFError, OSError):
            # A process that is killed closes its files before it is gone.
            until = time.monotonic() + 10
            while os.getppid() == parent and time.monotonic() < until:
                time.sleep(0.001)
            if os.getppid() == parent:
                raise
            os._exit(GIVER_GONE)
        self._take_over(desk.words, parent)
        theirs.close()
        desk.words[HANDOVERS] += 1


def spawned(plan: Plan, path: str, number: int, ends: dict[bool, Any]) -> None:
    """The life of a process that multiprocessing has started."""
    ledger = Ledger(path)
    ledger.lay_out(plan.senders, plan.receivers, plan.numbers)
    Host(plan, ledger, number, ends).run()


def sent(plan: Plan, ledger: Ledger, number: int, carrier: Any) -> None:
    """The life of a forked process that gets its ends through a connection."""
    try:
        ends = carrier.recv()
        carrier.send("they are here")
    except (EOFError, OSError):
        traceback.print_exc()
        os._exit(1)
    carrier.close()
    for role in plan.hosts[number]:
        ledger.role(role)[HANDOVERS] += 1
    Host(plan, ledger, number, ends).run()
