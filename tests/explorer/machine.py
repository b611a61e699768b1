"""The simulated machine: what is shared beside memory, and what blocks.

What the modules under test find in place of memory, semaphores, kernel and clock is in ``views``,
``semaphores`` and ``kernel``.  Every method there that touches something shared comes to a point
first (see ``scheduler``).  Places are byte addresses in the segment, or tuples for what is not in
it.
"""

from __future__ import annotations

from typing import Any

from .memory import Failure, Op, Task
from .scheduler import Run


class Machine:
    """What one run has beside its memory."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.locks: dict[Any, str] = {}  # side locks, by place
        self.holders: dict[Any, set[Task]] = {}
        self.died_with: set[str] = set()  # the names of locks that the dead held
        self.refused: dict[int, Any] = {}  # by task: the lock that it has last found taken
        self.processes: list[str] = []
        self.setting_up: str | None = None  # the process that a scenario is making things for
        self.fds: dict[int, Any] = {}
        self.sockets: list[Any] = []
        self.thread_locks = 0
        run.on_death = self._died
        run.left_by = self._left_by
        if run.limits.late or run.limits.ticks:
            self._changed_from_outside("clock")

    def process(self, name: str) -> int:
        if name not in self.processes:
            self.processes.append(name)
            self.run.put(("alive", name), 1)
            self.changed_by_death(("alive", name))
        return self.processes.index(name)

    def changed_by_death(self, place: Any) -> None:
        if self.run.limits.deaths:
            self._changed_from_outside(place)

    def _changed_from_outside(self, place: Any) -> None:
        if self.run.shared is not None:
            self.run.shared.add(place)

    def _left_by(self, task: Task) -> set[Any]:
        found: set[Any] = {("alive", task.process), "file lock"}
        for socket in self.sockets:
            if socket.process == task.process:
                found.update((socket.held, socket.mine))
        return found

    def here(self) -> str:
        task = self.run.current
        name = task.process if task is not None else self.setting_up
        assert name is not None
        return str(name)

    def new_fd(self, thing: Any) -> int:
        fd = 1000 + len(self.fds)
        self.fds[fd] = thing
        return fd

    def _died(self, task: Task) -> None:
        name, run = task.process, self.run
        run.put(("alive", name), 0)
        for socket in self.sockets:
            if socket.process == name:
                socket.gone()
        if run.get("file lock") == 1 + self.processes.index(name):
            run.put("file lock", 0)
        for place, holders in self.holders.items():
            dead = [task for task in holders if task.process == name]
            holders.difference_update(dead)
            self.died_with.update(self.locks[place] for _ in dead)

    # --- what blocks -----------------------------------------------------------------------------

    def wait(self, op: Op) -> bool:
        """Wait until ``op`` is enabled; False: its time was up before."""
        task = self.run.current
        if task is None:
            raise Failure("a call would block where nobody is left to end that")
        self.run.access(op, task)
        late, task.late = task.late, False
        self.run.observe(not late)
        return not late

    def sleep(self, seconds: float) -> None:
        """A nap: it ends when the lock that the task wants is free, or when all else is at rest.

        (Naps that end before would only find the lock taken again.)
        """
        task = self.run.current
        assert task is not None
        lock = self.refused.get(task.index)
        free = (lambda: self.run.get(lock) > 0) if lock is not None else (lambda: False)
        places = () if lock is None else (lock,)
        self.wait(Op("naps", places, (), True, free, self.run.now + seconds))


_machines: list[Machine] = []


def start(run: Run) -> Machine:
    """A new machine, which the modules under test are on from now on."""
    _machines[:] = [Machine(run)]
    return _machines[0]


def current() -> Machine:
    return _machines[0]
