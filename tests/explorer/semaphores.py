"""Semaphores, fences and locks of the simulated machine."""

from __future__ import annotations

from typing import Any

from .machine import current
from .memory import Failure, Op, Task
from .views import Words

WOKEN, TIMED_OUT = 1, 0


class Semaphore:
    """A ``sem_t`` in the segment; as in glibc, a try that fails is no barrier."""

    place: Any
    count: int

    @classmethod
    def at(cls, address: int, keep: Any) -> Any:
        self = cls()
        self.address = self.place = address  # type: ignore[attr-defined]
        self.keep = keep  # type: ignore[attr-defined]
        self.count = 0
        return self

    def acquire(self, block: bool = True) -> bool:
        assert not block
        run, place = current().run, self.place
        run.step(Op("tries", (place,), (place,), lambda: run.get(place) > 0))
        got = run.get(place) > 0
        if got:
            self._take()
        elif place in current().locks and run.current:
            current().refused[run.current.index] = place
        run.observe(got)
        return got

    def _take(self) -> None:
        run, place = current().run, self.place
        run.put(place, run.get(place) - 1)
        self.count += 1
        if place in current().locks and run.current:
            current().refused.pop(run.current.index, None)
            holders = current().holders.setdefault(place, set())
            holders.add(run.current)
            if len(holders) > 1:
                names = " and ".join(sorted(task.name for task in holders))
                run.failure = f"{names} hold the lock {current().locks[place]} at the same time"
                raise Failure(run.failure)

    def release(self) -> None:
        run, place = current().run, self.place
        run.step(Op("posts", (), (place,), True))
        self.count -= 1
        run.put(place, run.get(place) + 1)
        if run.current:
            current().holders.get(place, set()).discard(run.current)

    def wait(self, seconds: float) -> int:
        run, place = current().run, self.place
        until = run.now + seconds
        op = Op("sleeps on", (place,), (place,), True, lambda: run.get(place) > 0, until)
        if current().wait(op):
            self._take()
            return WOKEN
        return TIMED_OUT

    def _is_zero(self) -> bool:
        run = current().run
        run.step(Op("looks at", (self.place,)))
        zero = bool(run.get(self.place) == 0)
        run.observe(zero)
        return zero

    def _count(self) -> int:
        return self.count

    def _after_fork(self) -> None:
        pass


class ThreadLock:
    """A reentrant lock among the threads of a process."""

    def __init__(self) -> None:
        self.owner: Task | None = None
        self.depth = 0
        self.run = current().run
        current().thread_locks += 1
        self.place = ("thread lock", current().thread_locks)

    def _is_owned(self) -> bool:
        return self.owner is not None and self.owner is self.run.current

    def acquire(self, block: bool = True, seconds: float = -1) -> bool:
        run, task = self.run, self.run.current
        if run.over or task is None:
            return True
        place = (self.place,)
        if not self._is_owned():
            if block:
                until = run.now + seconds if seconds >= 0 else None
                if not current().wait(
                    Op("waits for", place, place, enabled=self._free, until=until)
                ):
                    return False
            else:
                run.step(Op("tries", place, place))
                run.observe(self._free())
                if not self._free():
                    return False
        self.owner = task
        self.depth += 1
        return True

    def _free(self) -> bool:
        return self.owner is None

    def release(self) -> None:
        if self.run.over or self.run.current is None:
            return
        self.depth -= 1
        if not self.depth:
            self.run.step(Op("gives back", (), (self.place,)))
            self.owner = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        ident = self.owner.worker.ident if self.owner is not None else 0
        return f"<lock owner={ident} count={self.depth}>"


class FileLock:
    """The kernel's lock on the segment, which goes with its owner."""

    def __enter__(self) -> None:
        run, me = current().run, 1 + current().process(current().here())
        if run.current is not None:
            place = ("file lock",)
            current().wait(
                Op("locks the segment", place, place, True, lambda: run.get("file lock") == 0)
            )
        run.put("file lock", me)

    def __exit__(self, *exc: object) -> None:
        current().run.step(Op("unlocks the segment", (), ("file lock",), True))
        current().run.put("file lock", 0)


def fence() -> None:
    current().run.step(Op("fence", drains=True))


def spin(words: Words, index: int, target: int, seconds: float) -> bool:
    """Of all its looks only the last one counts."""
    return bool(words[index] >= target)
