"""All interleavings of a few small programs: a stateless search with a memory of states.

Each *task* is a thread, and one of them runs at a time.  Before every access to something shared it
comes to a *point*, where the search chooses what happens next:

    R          task R makes the access it stands before, and runs to its next one
    R+k        the k oldest stores in R's store buffer reach memory
    R:late     the wait that R is in, or the nap, ends because its time is up
    R:dead     the process of task R is killed
    tick       the clock moves on, by what the program says

A buffered store (see ``memory``) can only matter to a task that stands before an access to the same
place, so only then is its arrival a choice of its own.

What cuts the search down, without losing a behaviour:

* Stores are not points; nor are accesses to places that no two tasks use, or that none stores to.
  Which those are is learnt: the search starts again when a place turns out to be shared.
* A task is deterministic, so what it has observed tells where it stands.  A state (observations,
  memory, buffers) that was seen before is not searched again.
* Sleep sets, where there is no bound: of two independent steps only one order is tried.

With ``preemptions=n`` only those schedules are tried that leave a task which could go on at most n
times (arrivals, late ends, and deaths do not count as such; they have limits of their own).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .memory import Failure, Killed, Memory, Op, Place, Task, shown

RUN, ARRIVE, LATE, DEAD, TICK = range(5)
MOST_STEPS = 4000


class Worker(threading.Thread):
    """A thread that lends itself to one task after the other."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.go = threading.Lock()
        self.go.acquire()
        self.job: Callable[[], None] | None = None
        self.start()

    def run(self) -> None:
        while True:
            self.go.acquire()
            if self.job is None:
                return
            job, self.job = self.job, None
            job()


class Limits:
    """How often in one schedule each kind of misfortune may strike; None: no bound."""

    def __init__(
        self, preemptions: int | None = None, late: int = 0, deaths: int = 0, ticks: int = 0
    ) -> None:
        self.preemptions, self.late, self.deaths, self.ticks = preemptions, late, deaths, ticks


class Run(Memory):
    """One execution, by one schedule."""

    def __init__(self, limits: Limits, shared: set[Place] | None, choose: Any, tso: bool) -> None:
        super().__init__(shared, tso)
        self.limits = limits
        self.choose = choose  # (run, choices) -> one of them; None: enough of this run
        self.tasks: list[Task] = []
        self.now = 1000.0
        self.preemptions = self.late = self.deaths = self.ticks = self.steps = 0
        self.failure: str | None = None
        self.cut_short = False  # all that could follow has been seen
        self.history: list[list[int]] = []  # the choices: a task and its moves so far, or others
        self.strict = True  # a wait that only its time limit ends is a failure
        self.hurried: frozenset[str] = frozenset()  # except of these tasks, which are to be late
        self.content: Callable[[], bool] = lambda: False  # whether those asleep have nothing to do
        self.killable: frozenset[Any] = frozenset()
        self.tick_by = 0.0
        self.on_death: Callable[[Task], None] = lambda task: None
        self.left_by: Callable[[Task], set[Place]] = lambda task: set()  # what a death changes
        self._main = threading.Lock()
        self._main.acquire()

    def add(self, name: str, process: Any, body: Callable[[], Any]) -> Task:
        self.tasks.append(Task(len(self.tasks), name, process, body))
        return self.tasks[-1]

    def may_die(self, task: Task) -> bool:
        return self.deaths < self.limits.deaths and task.process in self.killable

    # --- the baton -------------------------------------------------------------------------------

    def stop(self, op: Op, task: Task, alone: bool = False) -> None:
        """Stand before ``op`` until it is chosen; ``alone``: the choice is only whether to die."""
        task.pending = op
        chosen = self._decide(task if alone else None)
        if chosen is not task:
            self._hand_to(chosen)
            task.worker.go.acquire()
            if self.over or task.dead:
                raise Killed
        task.pending = None

    def _hand_to(self, task: Task | None) -> None:
        if task is None:
            self.over = True
            self._main.release()
        else:
            task.worker.go.release()

    def execute(self, workers: list[Worker]) -> None:
        """Run all tasks to the end of one schedule."""
        while len(workers) < len(self.tasks):
            workers.append(Worker())
        for task, worker in zip(self.tasks, workers, strict=False):
            task.worker = worker
            task.pending = Op("starts")
            worker.job = lambda task=task: self._live(task)
        self._hand_to(self._decide())
        self._main.acquire()
        for task in self.tasks:
            if not task.finished:
                self.current = task  # which may not touch anything any more
                task.worker.go.release()
                self._main.acquire()
        self.current = None

    def _live(self, task: Task) -> None:
        try:
            if self.over:
                raise Killed
            task.pending = None
            task.moves = 1  # to have started is one
            task.result = task.body()
            self.access(Op("ends", drains=True), task)
        except Killed:
            pass
        except BaseException as error:
            task.error = error
        task.finished = True
        if self.over:
            self._main.release()
            return
        if task.error is not None:
            self.failure = f"{task.name} raised {task.error!r}"
            self._hand_to(None)
        else:
            self._hand_to(self._decide())

    # --- choices ---------------------------------------------------------------------------------

    def _decide(self, alone: Task | None = None) -> Task | None:
        """Choose until a task is to run; None: this run is over."""
        try:
            while True:
                choices = [(RUN, alone.index), (DEAD, alone.index)] if alone else self._choices()
                if not choices and not self._quiet():
                    return None
                if not choices:
                    continue
                choice = self.choose(self, choices)
                if choice is None:
                    self.cut_short = True
                    return None
                chosen = self._perform(choice)
                if chosen is not None or (alone and alone.dead):
                    self.current = chosen
                    if chosen is not None:
                        return chosen
                    alone = None
        except Failure as failure:
            self.failure = str(failure)
        except BaseException as error:  # whoever waits for the baton must not do so for ever
            self.failure = f"the explorer itself: {error!r}"
        return None

    def _perform(self, choice: tuple[int, ...]) -> Task | None:
        kind = choice[0]
        if kind == TICK:
            self._record(TICK, 0)
            self.ticks += 1
            self.now += self.tick_by
            self._say(None, f"the clock moves on by {self.tick_by} s")
            return None
        task = self.tasks[choice[1]]
        self._record(kind, task.index, *choice[2:])
        if kind == RUN:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise Failure(f"no end after {MOST_STEPS} steps")
            if self.current is not task and self.current and self._can_go(self.current):
                self.preemptions += 1
            return task
        if kind == ARRIVE:
            for place, value in task.buffer[: choice[2]]:
                self._say(task, f"    (arrives: {shown(value)} in", place)
                self.put(place, value)
            del task.buffer[: choice[2]]
            return None
        if kind == LATE:
            self.late += 1
            return self._end_wait(task)
        self.deaths += 1
        self._kill(task)
        return None

    def _record(self, kind: int, index: int, count: int = 0) -> None:
        history = self.history
        if history and history[-1][0] == RUN:
            if kind == RUN and history[-1][1] == index:
                return
            history[-1][2] = self.tasks[history[-1][1]].moves
        history.append([kind, index, count])

    def finished_history(self) -> list[list[int]]:
        """The choices of this run, to be written down."""
        if self.history and self.history[-1][0] == RUN:
            self.history[-1][2] = self.tasks[self.history[-1][1]].moves
        return self.history

    def _say(self, task: Task | None, text: str, place: Place | None = None) -> None:
        if self.tell:
            self.tell(task, text, place)

    def _end_wait(self, task: Task) -> Task:
        assert task.pending is not None and task.pending.until is not None
        self.now = max(self.now, task.pending.until)
        task.late = True
        self._say(task, "    (its time is up)")
        return task

    def _kill(self, victim: Task) -> None:
        for task in self.tasks:
            if task.process == victim.process and not task.finished:
                task.dead = True
                self.drain(task)  # what was stored before will arrive
        self._say(victim, "IS KILLED")
        self.on_death(victim)

    def _can_go(self, task: Task) -> bool:
        op = task.pending
        if op is None or task.finished or task.dead:
            return False
        return op.enabled is None or op.enabled()

    def _choices(self) -> list[tuple[int, ...]]:
        """What can happen now; to go on with the same task comes first."""
        limits, found = self.limits, []
        going = [task for task in self.tasks if self._can_go(task)]
        mine = self.current if self.current in going else None
        if mine is not None:
            found.append((RUN, mine.index))
        if mine is None or limits.preemptions is None or self.preemptions < limits.preemptions:
            found += [(RUN, task.index) for task in going if task is not mine]
        for task in self.tasks:
            for count in self._arrivals(task):
                found.append((ARRIVE, task.index, count))
        if not found:
            return found  # all is quiet: what happens next is not a choice
        if self.late < limits.late:
            found += [(LATE, t.index) for t in self._waiting() if t not in going]
        if self.deaths < limits.deaths:
            for task in self.tasks:
                # One that others have left standing could have died before they did.
                now = limits.preemptions is None or task is mine or task not in going
                if now and self.may_die(task) and not task.finished and not task.dead:
                    found.append((DEAD, task.index))
        if self.ticks < limits.ticks:
            found.append((TICK,))
        return found

    def _arrivals(self, task: Task) -> list[int]:
        """How many of a task's buffered stores may arrive now: up to one that another may see."""
        if not task.buffer:
            return []
        eyes: set[Place] = set()
        for other in self.tasks:
            if other is not task and other.pending is not None and not other.dead:
                eyes.update(other.pending.reads, other.pending.writes)
                if other.pending.drains:
                    eyes.update(place for place, _ in other.buffer)
        return [n + 1 for n, (place, _) in enumerate(task.buffer) if place in eyes]

    def _waiting(self) -> list[Task]:
        return [
            task
            for task in self.tasks
            if not task.finished
            and not task.dead
            and task.pending is not None
            and task.pending.until is not None
        ]

    def _quiet(self) -> bool:
        """Nobody can go on.  True: time has passed, and somebody can; False: the run is over."""
        asleep = [task for task in self.tasks if not task.finished and not task.dead]
        if not asleep:
            return False
        waiting = [task for task in self._waiting() if task in asleep]
        self.current = None
        if not waiting and self.content():
            return False
        if self.strict:
            waiting = [task for task in waiting if task.name in self.hurried]
        if not waiting:
            names = ", ".join(f"{task.name} ({task.pending.name})" for task in asleep)
            raise Failure(f"asleep for ever: {names}")
        first = min(waiting, key=lambda task: (task.pending.until, task.index))
        self._end_wait(first)
        first.pending = Op(first.pending.name)
        return True

    # --- for the search --------------------------------------------------------------------------

    def state(self) -> int:
        """A digest of everything that decides what can happen from here on."""
        bounded = self.limits.preemptions is not None
        return hash(
            (
                tuple((t.seen, t.moves, len(t.buffer), t.dead, t.late) for t in self.tasks),
                self.digest,
                self.now,
                (self.late, self.deaths, self.ticks),
                self.current.index if bounded and self.current else -1,
            )
        )

    def footprint(self, choice: tuple[int, ...]) -> tuple[set[Place], set[Place]]:
        """What a step looks at, and what it changes."""
        if choice[0] == RUN:
            task = self.tasks[choice[1]]
            op = task.pending
            assert op is not None
            writes = set(op.writes)
            if op.draining():
                writes.update(place for place, _ in task.buffer)
                writes.add(("buffer", task.index))
            return set(op.reads), writes
        if choice[0] == TICK:
            return set(), {"clock"}
        task = self.tasks[choice[1]]
        if choice[0] == ARRIVE:
            places = {place for place, _ in task.buffer[: choice[2]]}
            return set(), places | {("buffer", choice[1])}
        if choice[0] == LATE:
            assert task.pending is not None
            return set(task.pending.reads), {"clock"}
        return set(), {"deaths", ("buffer", choice[1]), *self.left_by(task)}.union(
            place for place, _ in task.buffer
        )

    def independent(self, one: tuple[int, ...], two: tuple[int, ...]) -> bool:
        if ARRIVE not in (one[0], two[0]) and one[1:2] == two[1:2]:
            return False  # of the same task
        first, second = self.footprint(one), self.footprint(two)
        return not (first[1] & second[1] or first[0] & second[1] or first[1] & second[0])
