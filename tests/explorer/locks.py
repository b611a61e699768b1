"""The scenarios for the side locks alone: exclusion, and take-over from the dead."""

from __future__ import annotations

from .base import PipeScenario
from .memory import Op
from .scheduler import Limits, Run
from .world import End


class Exclusion(PipeScenario):
    """Three processes take one lock in turns."""

    name = "exclusion"
    limits = Limits(3)
    names = "PQT"
    rounds = (1, 1, 1)

    def begin(self, run: Run) -> None:
        for name, rounds in zip(self.names, self.rounds, strict=True):
            end = self.world.writer(name)
            self.add(run, end, lambda end=end, rounds=rounds: self.use(run, end, rounds))

    def use(self, run: Run, end: End, rounds: int) -> None:
        lock = end.side.lock
        for _ in range(rounds):
            lock.enter()
            try:
                # That nobody else is inside is checked by the machine, for all side locks.
                run.step(Op("is inside", ("inside",), ("inside",)))
            finally:
                lock.release()
                lock.leave()


class TakeOver(Exclusion):
    """One of them may be killed at any point; the others must get in all the same, one by one."""

    name = "take-over"
    limits = Limits(2, deaths=1)
    strict = False
    killable = ("P",)
    # Two looks, and again where the other waiter was just trying.
    patience = 1.0


class DeathOfWaiter(TakeOver):
    """The one that may be killed has waited for the lock."""

    name = "death-of-waiter"
    names = "QP"
    rounds = (2, 1)


class SeemsLost(Exclusion):
    """A process died while it was trying, so that the lock seems lost, but is in use."""

    name = "seems-lost"
    limits = Limits(late=1)
    names = "QT"
    rounds = (2, 1)
    strict = False
    patience = 1.0

    def begin(self, run: Run) -> None:
        dead = self.world.writer("P")
        self.world.died_inside(dead, dead.side.lock)
        run.put(dead.side.lock.place, 1)  # it only seemed to hold it
        super().begin(run)


class Arrivals(Exclusion):
    """Processes take their places in the table at the same time."""

    name = "arrivals"
    limits = Limits(2)
    names = "PQ"
    rounds = (1, 1)
    places = False


LOCKS: list[PipeScenario] = [Exclusion(), TakeOver(), DeathOfWaiter(), SeemsLost(), Arrivals()]
