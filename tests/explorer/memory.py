"""Shared memory as x86-64 has it: total store order.

A store goes to its task's buffer, a load looks there first, and a fence or a locked instruction
drains it; in what order buffers drain otherwise is for the ``scheduler``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

Place = Hashable
MOST_MOVES = 20_000  # of a task: one that makes more goes round in a circle


class Killed(BaseException):
    """Unwinds a task that is dead or whose run is over."""


class Failure(Exception):
    """Something the tasks promised does not hold."""


class Op:
    """The access a task stands before."""

    __slots__ = ("drains", "enabled", "name", "reads", "until", "writes")

    def __init__(
        self,
        name: str,
        reads: tuple[Place, ...] = (),
        writes: tuple[Place, ...] = (),
        drains: bool | Callable[[], bool] = False,
        enabled: Callable[[], bool] | None = None,
        until: float | None = None,
    ) -> None:
        self.name = name
        self.reads = reads
        self.writes = writes
        self.drains = drains  # the store buffer; a function: if it says so at that moment
        self.enabled = enabled  # None: at once
        self.until = until  # when a wait ends by itself

    def draining(self) -> bool:
        return self.drains() if callable(self.drains) else self.drains


class Task:
    """One thread of one process."""

    def __init__(self, index: int, name: str, process: Any, body: Callable[[], Any]) -> None:
        self.index = index
        self.name = name
        self.process = process
        self.body = body
        self.pending: Op | None = None
        self.buffer: list[tuple[Place, Any]] = []
        self.seen = index  # a digest of all that it has observed
        self.moves = 0  # accesses it has made
        self.finished = self.dead = self.late = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.worker: Any = None


class Memory:
    """What is shared, by place, and who has used what."""

    def __init__(self, shared: set[Place] | None, tso: bool) -> None:
        self.shared = shared  # None: everything, and every store is a point
        self.tso = tso
        self.memory: dict[Place, Any] = {}
        self.digest = 0  # of the memory
        self.current: Task | None = None
        self.over = False
        self.users: dict[Place, int] = {}
        self.storers: set[Place] = set()
        self.tell: Callable[[Task | None, str, Place | None], None] | None = None

    def get(self, place: Place) -> Any:
        return self.memory.get(place, 0)

    def put(self, place: Place, value: Any) -> None:
        """Change memory; ``value`` may be a function from the old to the new."""
        old = self.memory.get(place, 0)
        if callable(value):
            value = value(old)
        self.digest ^= hash((place, old)) ^ hash((place, value))
        self.memory[place] = value

    def load(self, place: Place) -> Any:
        task = self.current
        if task is None:
            return self.get(place)
        self.access(Op("loads", (place,)), task)
        value = self.get(place)
        for where, stored in task.buffer:
            if where == place:
                value = stored(value) if callable(stored) else stored
        self.observe(value)
        return value

    def store(self, place: Place, value: Any) -> None:
        """``value``: what is stored, or a function from the old to the new (of part of a place)."""
        task = self.current
        if task is None:
            self.put(place, value)
            return
        op = Op(f"stores {shown(value)} in", (), (place,))
        if not self.tso:
            self.access(op, task)
            self.put(place, value)
            return
        self._note(task, op)
        if self.shared is None:
            self.stop(op, task)
        elif self.may_die(task):
            self.stop(op, task, alone=True)
        task.moves += 1
        if self.tell:
            self.tell(task, op.name, place)
        task.buffer.append((place, value))

    def drain(self, task: Task) -> None:
        for place, value in task.buffer:
            self.put(place, value)
        task.buffer.clear()

    def observe(self, value: Any) -> None:
        """The running task learns something: from here on it may behave differently."""
        task = self.current
        if task is not None:
            task.seen = hash((task.seen, value))
            if self.tell:
                self.tell(task, f"    sees {shown(value)}", None)

    def access(self, op: Op, task: Task) -> None:
        """Come to a point if others may see the access, and account for it."""
        if op.enabled is not None and op.drains and task.buffer:
            # Nobody falls asleep with stores in the buffer: the system call comes first.
            self.access(Op(f"is going to: {op.name}", op.reads[:1], (), True), task)
        self._note(task, op)
        if self._is_point(op, task):
            self.stop(op, task)
        task.moves += 1
        if self.tell:
            self.tell(task, op.name, (op.reads + op.writes or (None,))[0])
        if op.draining():
            self.drain(task)

    def step(self, op: Op) -> None:
        """``access`` of the running task, if there is one (a scenario being set up has none)."""
        if self.current is not None:
            self.access(op, self.current)

    def _is_point(self, op: Op, task: Task) -> bool:
        shared = self.shared
        if shared is None or op.enabled is not None:
            return True
        if any(place in shared for place in op.reads + op.writes):
            return True
        return op.draining() and any(place in shared for place, _ in task.buffer)

    def _note(self, task: Task, op: Op) -> None:
        if self.over or task.dead:
            raise Killed
        if task.moves > MOST_MOVES:
            raise Failure(f"no end after {MOST_MOVES} accesses of {task.name}")
        users, bit = self.users, 1 << task.index
        for place in op.reads + op.writes:
            users[place] = users.get(place, 0) | bit
        self.storers.update(op.writes)

    def newly_shared(self) -> set[Place]:
        """Places that turned out to be used by several tasks, and stored to."""
        users = self.users
        several = {place for place in self.storers if users[place] & (users[place] - 1)}
        return several - (self.shared or set())

    def may_die(self, task: Task) -> bool:
        raise NotImplementedError

    def stop(self, op: Op, task: Task, alone: bool = False) -> None:
        raise NotImplementedError


def shown(value: Any) -> str:
    if callable(value):
        return "bytes"
    if isinstance(value, bytes) and len(value) > 16:
        return f"{len(value)} bytes"
    return repr(value)
