"""Walks in which an end goes to another process that adopts it."""

from __future__ import annotations

import os
from multiprocessing.reduction import ForkingPickler
from pickle import loads
from typing import Any

from .actors import Aim, Hand, Process, Run
from .messages import Messages
from .promises import Played, check_all
from .streams import Traffic
from .walks import NOBODY, Walk


def channel() -> tuple[Any, Any]:
    """A pipe of the kernel's, as two files."""
    reader, writer = os.pipe()
    return open(reader, "rb", buffering=0), open(writer, "wb", buffering=0)


class HandOver(Walk):
    """One process has both ends and gives them to two others, which go on with them."""

    victims = ("giver", "writer", "reader")
    crowds = (1,)

    def __init__(self, play: Walk) -> None:
        super().__init__(1)
        self.name = f"handing-{play.name}"
        self.play_of = play

    def __repr__(self) -> str:
        return self.name

    def part_of(self, victim: str) -> str:
        return victim

    def make(self, run: Run) -> tuple[Any, Any, Any]:
        self.play_of.endless = False
        return self.play_of.make(run)

    def cast(
        self, run: Run, reader: Any, writer: Any, victim: str, aim: Aim
    ) -> tuple[list[Process], list[Process]]:
        def mine(name: str) -> Aim:
            return aim if name == victim else NOBODY

        plays = {"writer": self.play_of.write, "reader": self.play_of.read}
        given = {"writer": writer, "reader": reader}
        giving: dict[str, Any] = dict(given)
        adopting = {}
        for part in plays:
            theirs, giving[f"to {part}"] = channel()
            giving[f"from {part}"], back = channel()
            adopting[part] = {"channel": theirs, "back": back}
        run.add("giver", give, giving, 0, mine("giver"))
        made = [
            run.add(part, adopter(plays[part]), adopting[part], 0, mine(part)) for part in plays
        ]
        self.channels = [end for ends in (giving, *adopting.values()) for end in ends.values()]
        return [made[0]], [made[1]]

    def others(self) -> list[Any]:
        return self.channels

    def check(self, played: Played) -> None:
        # Who was given nothing takes no part.
        played.writers = [p for p in played.writers if not p.log_of("nothing")]
        played.readers = [p for p in played.readers if not p.log_of("nothing")]
        check_all(played)


def give(hand: Hand) -> None:
    ends = hand.ends
    for part in ("writer", "reader"):
        message = bytes(ForkingPickler.dumps(ends[part]))
        try:
            ends[f"to {part}"].write(message)
        except BrokenPipeError:
            hand.log("not wanted")
    for part in ("writer", "reader"):
        ends[f"from {part}"].read(1)  # the end of file: it is there, or dead


def adopter(play: Any) -> Any:
    def adopt(hand: Hand) -> None:
        message = hand.ends["channel"].read(1 << 16)
        try:
            if not message:
                raise EOFError
            hand.ends["end"] = loads(message)
        except (EOFError, OSError):  # whoever was to give it has died
            hand.log("nothing")
            return
        hand.ends.pop("back").close()
        play(hand)

    return adopt


def walks() -> list[Walk]:
    return [HandOver(Traffic(1)), HandOver(Messages(1))]
