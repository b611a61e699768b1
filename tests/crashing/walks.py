"""What all walks have in common."""

from __future__ import annotations

from typing import Any

from .actors import Aim, Hand, Process, Run
from .promises import Played, check_all

NOBODY = Aim()


class Walk:
    """A small play for one or two writers and as many readers; one process is the victim."""

    name = ""
    one_loss = 1
    victims: tuple[str, ...] = ("writer", "reader")
    crowds: tuple[int, ...] = (1, 2)

    def __init__(self, crowd: int) -> None:
        self.crowd = crowd

    def __repr__(self) -> str:
        return f"{self.name}-{self.crowd}x{self.crowd}"

    def play(self, seed: str, victim: str, aim: Aim, jitter: float = 0.0) -> Played:
        """Perform it, and check the promises.  Stuck, Broken: they are not kept."""
        run = Run(seed, jitter)
        reader, writer, view = self.make(run)
        # Whoever writes alone to a victim that reads does so until the pipe is broken.
        self.endless = self.crowd == 1 and victim == "reader"
        writers, readers = self.cast(run, reader, writer, victim, aim)
        ends = [reader, writer, *self.others()]
        del reader, writer
        run.perform(ends)
        chosen = next(p for p in run.processes if p.name == self.part_of(victim))
        played = Played(run, view, writers, readers, chosen, self.one_loss)
        self.check(played)
        return played

    def part_of(self, victim: str) -> str:
        return f"{victim}0"

    def cast(
        self, run: Run, reader: Any, writer: Any, victim: str, aim: Aim
    ) -> tuple[list[Process], list[Process]]:
        def add(part: str, number: int, play: Any, end: Any) -> Process:
            mine = aim if (part, number) == (victim, 0) else NOBODY
            return run.add(f"{part}{number}", play, {"end": end}, number, mine)

        everyone = range(self.crowd)
        writers = [add("writer", number, self.write, writer) for number in everyone]
        readers = [add("reader", number, self.read, reader) for number in everyone]
        return writers, readers

    def check(self, played: Played) -> None:
        check_all(played)

    def others(self) -> list[Any]:
        """What else a process has to close unless it plays with it."""
        return []

    def make(self, run: Run) -> tuple[Any, Any, Any]:
        """The reading end, the writing end, and the pipe's control words."""
        raise NotImplementedError

    def write(self, hand: Hand) -> None:
        raise NotImplementedError

    def read(self, hand: Hand) -> None:
        raise NotImplementedError
