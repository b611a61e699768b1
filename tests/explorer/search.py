"""The search through all schedules of a scenario, and the way back to one of them.

A depth-first search without snapshots: every schedule is run from the start.  See ``scheduler``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .memory import Failure, Place
from .scheduler import ARRIVE, DEAD, LATE, RUN, TICK, Limits, Run, Worker

Choice = tuple[int, ...]


class Scenario:
    """A few small programs, and what must hold in the end."""

    name = ""
    limits = Limits()
    remembers = True  # states; not where tasks of one process share variables of Python's
    tso = True

    def title(self) -> str:
        """Its name, or that of its kind and what it was made with."""
        made_with = " ".join(f"{name}={value}" for name, value in vars(self).items())
        return self.name or f"{type(self).__name__} {made_with}"

    def build(self, run: Run) -> None:
        """Put the memory in its first state and add the tasks."""
        raise NotImplementedError

    def check(self, run: Run) -> None:
        """All tasks have ended: raise Failure if something is not as promised."""


class Result:
    """What a search has found."""

    def __init__(self) -> None:
        self.schedules = 0
        self.states = 0
        self.failure: str | None = None
        self.schedule = ""  # of the failure
        self.complete = False


class _Node:
    """A point on the present path where there was a choice."""

    __slots__ = ("chosen", "done", "left", "sleep")

    def __init__(self, candidates: list[Choice], sleep: set[Choice]) -> None:
        self.chosen = candidates[0]
        self.left = candidates[1:]
        self.done: list[Choice] = []
        self.sleep = sleep


class Search:
    """Runs a scenario again and again."""

    def __init__(self, scenario: Scenario, limits: Limits | None = None) -> None:
        self.scenario = scenario
        self.limits = limits or scenario.limits
        self.shared: set[Place] = set()
        self.workers: list[Worker] = []
        self._start()

    def _start(self) -> None:
        self.path: list[_Node] = []
        self.visited: dict[int, Any] = {}
        self.depth = 0
        self.sleep: set[Choice] = set()

    def run(self, most: int | None = None) -> Result:
        """Search until a failure is found, all is done, or ``most`` schedules have been run."""
        result = Result()
        try:
            while not result.complete and (most is None or result.schedules < most):
                run = execute(self.scenario, self.limits, self.shared, self._choose, self.workers)
                result.schedules += 1
                if run.failure is not None:
                    result.failure = run.failure
                    result.schedule = written(run)
                    break
                new = run.newly_shared()
                if new:
                    self.shared |= new
                    self._start()
                    result.schedules = 0  # what was found so far does not count
                else:
                    result.complete = not self._next()
        finally:
            dismiss(self.workers)
        result.states = len(self.visited)
        return result

    def _next(self) -> bool:
        """Turn to the next schedule; False: there is none."""
        while self.path:
            node = self.path[-1]
            if node.left:
                node.done.append(node.chosen)
                node.chosen = node.left.pop(0)
                self.depth = 0
                self.sleep = set()
                return True
            self.path.pop()
        return False

    # --- called by the run -----------------------------------------------------------------------

    def _choose(self, run: Run, choices: list[Choice]) -> Choice | None:
        if self.depth < len(self.path):
            return self._again(run, choices)
        if len(choices) == 1:
            if choices[0] in self.sleep:
                return None
            self.sleep = self._still_asleep(run, self.sleep, choices[0])
            return choices[0]
        candidates = self._candidates(run, choices)
        if not candidates:
            return None
        self.path.append(_Node(candidates, self.sleep))
        return self._again(run, choices)

    def _again(self, run: Run, choices: list[Choice]) -> Choice:
        if len(choices) == 1:
            return choices[0]
        node = self.path[self.depth]
        self.depth += 1
        if node.chosen not in choices:
            raise Failure("the tasks are not deterministic, or the explorer is wrong")
        if self.depth == len(self.path):
            self.sleep = self._still_asleep(run, node.sleep.union(node.done), node.chosen)
        return node.chosen

    def _still_asleep(self, run: Run, sleep: set[Choice], choice: Choice) -> set[Choice]:
        if not sleep or self.limits.preemptions is not None:
            return set()
        return {other for other in sleep if run.independent(other, choice)}

    def _candidates(self, run: Run, choices: list[Choice]) -> list[Choice]:
        """What is still to be tried in this state."""
        if not self.scenario.remembers:
            return [choice for choice in choices if choice not in self.sleep]
        state = run.state()
        if self.limits.preemptions is not None:
            before = self.visited.get(state)
            if before is not None and before <= run.preemptions:
                return []
            self.visited[state] = run.preemptions
            return choices
        slept = self.visited.get(state)
        if slept is None:
            self.visited[state] = frozenset(self.sleep.intersection(choices))
            return [choice for choice in choices if choice not in self.sleep]
        self.visited[state] = slept & self.sleep
        return [choice for choice in choices if choice in slept and choice not in self.sleep]


def execute(
    scenario: Scenario,
    limits: Limits,
    shared: set[Place] | None,
    choose: Callable[[Run, list[Choice]], Choice | None],
    workers: list[Worker],
    tell: Any = None,
) -> Run:
    """One schedule of a scenario."""
    run = Run(limits, shared, choose, scenario.tso)
    try:
        scenario.build(run)
    except Exception as error:
        run.failure = f"before anything runs: {error!r}"
        return run
    run.tell = tell
    run.execute(workers)
    run.tell = None
    if run.failure is None and not run.cut_short:
        try:
            scenario.check(run)
        except Failure as failure:
            run.failure = str(failure)
    return run


def dismiss(workers: list[Worker]) -> None:
    for worker in workers:
        worker.go.release()
    for worker in workers:
        worker.join()
    workers.clear()


# --- schedules in writing ------------------------------------------------------------------------


def written(run: Run) -> str:
    """The schedule of a run: ``R5`` until task R has made 5 accesses, and the other choices."""
    parts = []
    for kind, index, count in run.finished_history():
        name = run.tasks[index].name
        if kind == RUN:
            parts.append(f"{name}{count}")
        elif kind == ARRIVE:
            parts.append(f"{name}+{count}")
        else:
            parts.append({LATE: f"{name}:late", DEAD: f"{name}:dead", TICK: "tick"}[kind])
    return " ".join(parts)


def replay(
    scenario: Scenario, schedule: str, tell: Any = None, limits: Limits | None = None
) -> str | None:
    """Run one schedule; returns what fails in it, or None."""
    steps = schedule.split()
    workers: list[Worker] = []

    def choose(run: Run, choices: list[Choice]) -> Choice | None:
        indexes = {task.name: task.index for task in run.tasks}
        while steps:
            step = steps[0]
            if step == "tick":
                return steps.pop(0) and (TICK,)
            match = re.fullmatch(r"([A-Za-z]+)(\d+|\+\d+|:late|:dead)", step)
            if not match:
                raise Failure(f"{step!r} is no part of a schedule")
            index, what = indexes[match[1]], match[2]
            if what[0] == "+":
                return steps.pop(0) and (ARRIVE, index, int(what))
            if what[0] == ":":
                return steps.pop(0) and (LATE if what == ":late" else DEAD, index)
            task = run.tasks[index]
            if task.moves < int(what) and (RUN, index) in choices:
                return RUN, index
            steps.pop(0)
        return choices[0]

    try:
        limits = limits or scenario.limits
        everything = Limits(None, limits.late, limits.deaths, limits.ticks)
        return execute(scenario, everything, None, choose, workers, tell).failure
    finally:
        dismiss(workers)
