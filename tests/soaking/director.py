"""Runs one round: starts the processes, disturbs them, replaces the dead, draws the balance."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import time
from collections import Counter
from multiprocessing import resource_sharer
from typing import Any

import shmpipe

from . import ledger as words
from .ledger import CLOSING, FINISHED, FORGIVEN, LIFE, OPERATIONS, RISK, STATE, STOPPING, Ledger
from .messages import Spoilt, make_stop, pickled
from .plans import PAGE, Plan
from .processes import Process, reap_the_rest

TICK = 0.003  # seconds
GRACE = 1.0  # seconds behind its time after which a round is left in peace, so that it ends
LIMIT = 20.0  # seconds that a call may take; counted in ticks, so a starved machine has longer


class Failure(Exception):
    """A promise was broken; the text says which."""


class Round:
    def __init__(self, plan: Plan, ledger: Ledger, figures: Counter[str], limit: float) -> None:
        self.plan = plan
        self.ledger = ledger
        self.figures = figures
        self.ticks = limit / TICK
        self.chance = random.Random(f"{plan.seed}/director")
        self.processes: list[Process | None] = []
        self.seen: dict[int, tuple[int, int]] = {}  # role -> (operations, ticks since they moved)
        self.ends: dict[bool, Any] = {}  # the director's copies, by whether they send
        self.over = False
        self.late = 0  # ticks since its time was up

    def run(self) -> None:
        plan = self.plan
        self.ledger.clear()
        self.ledger.lay_out(plan.senders, plan.receivers, plan.numbers)
        before = _holdings()
        self._make_ends()
        self.processes = [None] * len(plan.hosts)
        for number in range(len(plan.hosts)):
            self._start(number)
        until = time.monotonic() + plan.seconds
        disturb = time.monotonic() + self._pause()
        while not self.over:
            time.sleep(TICK)
            now = time.monotonic()
            self._look_after_them(now)
            if now >= until or self._all_finished(True):
                self._end()
            if now >= disturb and self.late < GRACE / TICK:
                self._disturb(now)
                disturb = now + self._pause()
        for end in self.ends.values():
            end.close()
        self.ends.clear()
        self._balance(before)

    def _make_ends(self) -> None:
        plan, options = self.plan, {"wake": self.plan.wake, "spin": self.plan.spin}
        options |= {"write_size": plan.write_size, "max_size": 4 * plan.size}
        if plan.is_pipe:
            receiving, sending = shmpipe.pipe(plan.size, **options)
        else:
            receiving, sending = shmpipe.Pipe(plan.duplex, size=plan.size, **options)
        self.ends = {True: sending, False: receiving}

    def _start(self, number: int) -> None:
        for role in self.plan.hosts[number]:
            self.ledger.role(role)[LIFE] += 1
            self.seen.pop(role, None)
        self.processes[number] = Process(self.plan, self.ledger, number, self.ends)
        self.figures[f"started by {self.plan.methods[number]}"] += 1

    def _all_finished(self, senders: bool) -> bool:
        first = 0 if senders else self.plan.senders
        last = self.plan.senders if senders else len(self.ledger.roles)
        return all(role[STATE] == FINISHED for role in self.ledger.roles[first:last])

    # --- while it runs ---------------------------------------------------------------------------

    def _look_after_them(self, now: float) -> None:
        for number, process in enumerate(self.processes):
            if process is None:
                continue
            if process.stopped_until and now >= process.stopped_until:
                process.go_on()
            if process.ended():
                self._ended(number, process)
            elif not process.stopped_until:
                self._is_it_stuck(process)

    def _is_it_stuck(self, process: Process) -> None:
        for role in process.unfinished() or process.roles[:1]:
            now = self.ledger.role(role)[OPERATIONS]
            then, ticks = self.seen.get(role, (-1, 0))
            self.seen[role] = now, (ticks + 1 if now == then else 0)
            if ticks > self.ticks:
                call = self.ledger.role(role)[words.CALL]
                raise Failure(f"stuck: role {role}, process {process.pid()}, in call {call}")

    def _ended(self, number: int, process: Process) -> None:
        self.processes[number] = None
        if process.status == 0:
            if process.unfinished():
                raise Failure(f"process {process.pid()} left with roles {process.unfinished()}")
            return
        if process.status != -signal.SIGKILL:
            raise Failure(f"process {process.pid()} ended with status {process.status} (see above)")
        self.figures["kills"] += 1
        for role in process.unfinished():
            mine = self.ledger.role(role)
            if self.plan.kind != "stream" and not self.plan.is_sender(role):
                mine[FORGIVEN] += mine[RISK]
                mine[RISK] = 0
            if self.plan.ending == "senders killed" and self.ledger.round[STOPPING]:
                mine[STATE] = FINISHED if self.plan.is_sender(role) else mine[STATE]
            if self.plan.ending == "receivers killed" and False not in self.ends:
                mine[STATE] = mine[STATE] if self.plan.is_sender(role) else FINISHED
        if process.unfinished():
            self._start(number)

    def _pause(self) -> float:
        return self.chance.expovariate(1 / self.plan.gap)

    def _disturb(self, now: float) -> None:
        chance = self.chance
        what = chance.choices(("kill", "stop", "resize", "all"), (60, 25, 14, 1))[0]
        victim = self.processes[chance.randrange(len(self.processes))]
        if what == "kill" and victim is not None and victim.may_be_killed():
            victim.signal(signal.SIGKILL)
        elif what == "stop" and victim and not victim.stopped_until and victim.may_be_killed():
            victim.stop(now + chance.choice([0.001, 0.02, 0.1, 0.3]))
            self.figures["stops"] += 1
        elif what == "resize":
            self._resize()
        elif what == "all":
            for one in self.processes:
                if one is not None and one.may_be_killed():
                    one.signal(signal.SIGKILL)

    def _resize(self) -> None:
        """(Not while others may stand still in a call: it would wait for them.)"""
        if any(process is not None and process.stopped_until for process in self.processes):
            return
        for end in list(self.ends.values())[:1]:
            size = max(PAGE, self.plan.size * self.chance.choice([1, 2, 4]) // 2)
            with contextlib.suppress(OSError):
                shmpipe.fcntl(end, shmpipe.F_SETPIPE_SZ, size)
                self.figures["resizes"] += 1

    # --- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        """One step towards the end of the round; called again until ``over``."""
        self.late += 1
        if self.late > 2 * self.ticks:
            raise Failure(f"stuck: the round does not end; states {self._states()}")
        plan, sides = self.plan, self.ledger.round
        if plan.ending == "receivers killed":
            self._abandon(False)
        else:
            sides[STOPPING] = 1
            if plan.ending == "senders killed":
                self._abandon(True)
        if self._all_finished(True):
            if plan.duplex:
                sides[CLOSING] = 1
                self._send_stop()
            elif True in self.ends:
                self.ends.pop(True).close()
        gone = all(process is None for process in self.processes)
        self.over = gone and self._all_finished(True) and self._all_finished(False)

    def _states(self) -> list[str]:
        names = "idle", "playing", "finished"
        return [names[role[STATE]] for role in self.ledger.roles]

    def _abandon(self, senders: bool) -> None:
        """Kill all of a side at once, and give up its end: the other side has to see that."""
        if senders in self.ends:
            self.ends.pop(senders).close()
        for process in self.processes:
            if process is None or not process.may_be_killed():
                continue
            if any(self.plan.is_sender(role) is senders for role in process.unfinished()):
                process.signal(signal.SIGKILL)

    def _send_stop(self) -> None:
        """On a duplex connection there is no end of file while the receivers themselves hold it."""
        stop = make_stop()
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.ends[True].try_send_bytes(pickled(stop) if self.plan.kind == "objects" else stop)

    def _balance(self, before: Counter[str]) -> None:
        bad = [f"a process ended with status {status}" for status in reap_the_rest()]
        if self.plan.kind != "stream":
            abandoned = self.plan.ending == "receivers killed"
            bad += self.ledger.complaints(abandoned)
            where = "left in the pipe" if abandoned else "lost with a receiver"
            self.figures[f"messages {where}"] += self.ledger.missing
        if "sent" in self.plan.methods:
            resource_sharer.stop(timeout=10)
        gc.collect()
        if _holdings() - before:
            bad.append(f"left behind in the director: {_holdings() - before}")
        if bad:
            raise Failure("\n".join(bad))
        self._count()

    def _count(self) -> None:
        figures, total = self.figures, self.ledger.total
        figures["rounds"] += 1
        figures[f"rounds of {self.plan.kind}"] += 1
        for name, word in (
            ("operations", OPERATIONS),
            ("messages", words.MESSAGES),
            ("timeouts", words.TIMEOUTS),
            ("signals", words.SIGNALS),
            ("handlers that raised", words.RAISED),
            ("resizes", words.RESIZES),
            ("forks", words.FORKS),
            ("hand-overs", words.HANDOVERS),
            ("calls refused for want of descriptors", words.REFUSED),
        ):
            figures[name] += total(word)
        figures["operations"] -= total(words.REFUSED)


def _holdings() -> Counter[str]:
    """What this process has of pipes: mappings, segments, sockets."""
    found: Counter[str] = Counter()
    with open("/proc/self/maps") as maps:
        found["mappings"] = sum("memfd:shmpipe" in line for line in maps)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            for kind in ("socket:", "/memfd:shmpipe"):
                found[kind] += target.startswith(kind)
    return found


__all__ = ["Failure", "Round", "Spoilt"]
