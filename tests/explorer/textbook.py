"""Textbook algorithms whose answers are known, to test the explorer itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .memory import Failure, Op
from .scheduler import Limits, Run
from .search import Scenario


def fence(run: Run) -> None:
    run.step(Op("fence", drains=True))


def until(run: Run, met: Callable[[], bool], *places: Any) -> None:
    """In a loop without an end of its own: wait until ``places`` in memory are as wanted."""
    run.step(Op("waits for", places, drains=True, enabled=met))


class Litmus(Scenario):
    """Store, then load the other one's word: under TSO both may load 0 where no fence is."""

    def __init__(self, fenced: bool, tso: bool = True) -> None:
        self.fenced, self.tso = fenced, tso
        self.outcomes: set[tuple[Any, Any]] = set()

    def build(self, run: Run) -> None:
        def body(mine: str, other: str) -> Any:
            run.store(mine, 1)
            if self.fenced:
                fence(run)
            return run.load(other)

        run.add("A", "A", lambda: body("x", "y"))
        run.add("B", "B", lambda: body("y", "x"))

    def check(self, run: Run) -> None:
        self.outcomes.add((run.tasks[0].result, run.tasks[1].result))


class Message(Scenario):
    """Data, then a flag: TSO keeps the order of stores, and of loads."""

    def __init__(self) -> None:
        self.outcomes: set[tuple[Any, Any]] = set()

    def build(self, run: Run) -> None:
        def write() -> None:
            run.store("data", 1)
            run.store("flag", 1)

        run.add("W", "W", write)
        run.add("R", "R", lambda: (run.load("flag"), run.load("data")))

    def check(self, run: Run) -> None:
        self.outcomes.add(run.tasks[1].result)


class Peterson(Scenario):
    """Mutual exclusion of two by loads and stores alone."""

    def __init__(self, fenced: bool, tso: bool = True, rounds: int = 1) -> None:
        self.fenced, self.tso, self.rounds = fenced, tso, rounds

    def build(self, run: Run) -> None:
        inside: list[str] = []

        def body(name: str, me: int) -> None:
            for _ in range(self.rounds):
                run.store(("wants", me), 1)
                run.store("turn", 1 - me)
                if self.fenced:
                    fence(run)
                while run.load(("wants", 1 - me)) and run.load("turn") != me:
                    until(
                        run,
                        lambda: not run.get(("wants", 1 - me)) or run.get("turn") == me,
                        ("wants", 1 - me),
                        "turn",
                    )
                inside.append(name)
                run.step(Op("is inside", ("inside",), ("inside",)))
                if inside != [name]:
                    raise Failure("both are inside")
                inside.remove(name)
                run.store(("wants", me), 0)

        run.add("A", "A", lambda: body("A", 0))
        run.add("B", "B", lambda: body("B", 1))


class Buffer(Scenario):
    """A bounded buffer of one place; ``broken``: without a semaphore, or in the wrong order."""

    def __init__(self, broken: str = "", items: int = 2, producers: int = 1) -> None:
        self.broken, self.items, self.producers = broken, items, producers

    def build(self, run: Run) -> None:
        run.put("free", 1)
        run.put("mutex", 1)

        def down(name: str) -> None:
            run.step(Op("takes", (name,), (name,), True, lambda: run.get(name) > 0))
            run.put(name, run.get(name) - 1)

        def up(name: str) -> None:
            run.step(Op("posts", (), (name,), True))
            run.put(name, run.get(name) + 1)

        def produce(first: int) -> None:
            for item in range(first, first + self.items):
                names = ["mutex", "free"] if self.broken == "order" else ["free", "mutex"]
                for name in names:
                    if name != self.broken:
                        down(name)
                run.store("slot", run.load("slot") + (item,) if run.load("slot") else (item,))
                if self.broken != "mutex":
                    up("mutex")
                up("full")

        def consume() -> list[int]:
            got = []
            for _ in range(self.items * self.producers):
                down("full")
                if self.broken != "mutex":
                    down("mutex")
                held = run.load("slot")
                run.store("slot", ())
                if len(held or ()) != 1:
                    raise Failure(f"the slot holds {held}")
                got += held
                if self.broken != "mutex":
                    up("mutex")
                up("free")
            return got

        for number in range(self.producers):
            run.add("PQ"[number], "PQ"[number], lambda number=number: produce(10 * number))
        run.add("C", "C", consume)


class Condition(Scenario):
    """A sleeper that looks once more after it has announced itself, or that forgets to."""

    def __init__(self, looks: bool, fenced: bool = True, preemptions: int | None = None) -> None:
        self.looks, self.fenced = looks, fenced
        self.limits = Limits(preemptions)

    def build(self, run: Run) -> None:
        def wake() -> None:
            run.store("data", 1)
            if self.fenced:
                fence(run)
            if run.load("asleep"):
                run.step(Op("posts", (), ("bell",), True))
                run.put("bell", run.get("bell") + 1)

        def sleep() -> None:
            if run.load("data"):
                return
            run.store("asleep", 1)
            if self.fenced:
                fence(run)
            if self.looks and run.load("data"):
                return
            run.step(Op("sleeps on", ("bell",), ("bell",), True, lambda: run.get("bell") > 0))

        run.add("W", "W", wake)
        run.add("S", "S", sleep)
