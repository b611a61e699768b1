"""What the scenarios have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import kernel
from .memory import Failure, Op
from .scheduler import Run
from .search import Scenario
from .world import ASK_AFTER, PAGE, End, World

POLLIN, POLLOUT = kernel.POLLIN, kernel.POLLOUT
COUNTS = ("RD_SLEEPERS", "WR_SLEEPERS", "RD_LONG", "WR_LONG")


def page(letter: str, count: int = PAGE) -> bytes:
    return letter.encode() * count


def same(what: str, got: Any, wanted: Any) -> None:
    if got != wanted:
        raise Failure(f"{what}: {shorter(got)} instead of {shorter(wanted)}")


def shorter(value: Any) -> str:
    """Bytes as ``a*4096 b*1``."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shorter, value)) + "]"
    if not isinstance(value, bytes):
        return repr(value)
    runs: list[list[Any]] = []
    for byte in value:
        if runs and runs[-1][0] == byte:
            runs[-1][1] += 1
        else:
            runs.append([byte, 1])
    return " ".join(f"{chr(byte)}*{count}" for byte, count in runs) or "nothing"


class PipeScenario(Scenario):
    """What all of them have in common."""

    pages = 1
    most_pages = 0
    write_pages = 1
    policy = "write-size"
    frames = False
    rings = 1
    places = True
    filled = b""
    strict = True
    counted = True  # whether all who slept are counted out, whenever nobody has been killed
    killable: tuple[str, ...] = ()
    fast: int | None = 1  # pre-emptions in the fast set; ``limits`` are those of the full one
    patience = 0.0  # seconds of its clock that all may take; 0: as long as it likes

    def build(self, run: Run) -> None:
        self.world = World(
            run,
            pages=self.pages,
            policy=self.policy,
            write_pages=self.write_pages,
            most_pages=self.most_pages,
            frames=self.frames,
            places=self.places,
            rings=self.rings,
        )
        run.strict = self.strict
        run.killable = frozenset(self.killable)
        if self.filled:
            self.world.fill(self.filled)
        self.started = run.now
        self.begin(run)

    def begin(self, run: Run) -> None:
        raise NotImplementedError

    def check(self, run: Run) -> None:
        if not run.deaths and self.counted:
            for ring in range(self.rings):
                for name in COUNTS:
                    same(f"{name} at the end", self.world.word(name, ring), 0)
        if self.patience and run.now - self.started > self.patience + 1e-6:
            raise Failure(f"it took {run.now - self.started:.2f} s by its own clock")
        self.promised(run)

    def promised(self, run: Run) -> None:
        pass

    def add(self, run: Run, end: End, body: Callable[[], Any], name: str = "") -> None:
        run.add(name or end.process, end.process, body)

    def wait_until_asleep(self, run: Run, count: int, semaphore: str) -> None:
        """Until the first ``count`` tasks sleep there; several: longer than answers are trusted."""
        place = self.world.place_of(semaphore)

        def asleep() -> bool:
            pending = [task.pending for task in run.tasks[:count]]
            return all(op is not None and op.until and place in op.reads for op in pending)

        run.step(Op("waits until the others sleep", (place,), (), True, asleep))
        if count > 1:
            run.now += 2 * ASK_AFTER

    # Two ends, as nearly all have them.
    def ends(self) -> tuple[End, End]:
        return self.world.reader("R"), self.world.writer("W")


def result(run: Run, name: str) -> Any:
    return next(task.result for task in run.tasks if task.name == name)


def pages_of(data: bytes) -> list[bytes]:
    return [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
