"""Walks behind a death: others find what a killed, or stopped, process has left, and clean it up.

The first process dies, or stands still, at one certain step; the victim is one that comes after it.
"""

from __future__ import annotations

from typing import Any

from shmpipe import locking

from .actors import STOP, Aim, Hand, Process, Run
from .messages import Brief, Dripping, Large, LatePoll, Leaving, Messages, PolledDripping, Stepped
from .streams import Traffic
from .walks import NOBODY, Walk

LATER = 0.12  # seconds: a lock that is lost is looked at after 0.1


class Behind(Walk):
    """Three processes of one side, of which the first one dies, and two of the other side."""

    victims = ("taker", "third", "other0")
    crowds = (1,)

    def __init__(
        self,
        name: str,
        play: Walk,
        side: str,
        aim: Aim,
        patience: float | None = None,
        idle: float = 0.0,
    ) -> None:
        super().__init__(1)
        self.name = f"behind-{name}"
        self.play_of, self.side, self.aim = play, side, aim
        self.patience = patience  # seconds between looks, in place of the real ones
        self.idle = idle  # seconds until somebody else of the dead one's side comes

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
        plays = {"writer": self.play_of.write, "reader": self.play_of.read}
        ends = {"writer": writer, "reader": reader}
        other = "reader" if self.side == "writer" else "writer"

        def add(name: str, side: str, who: int, how: Aim, wait: float | None) -> Process:
            def play(hand: Hand) -> None:
                if self.patience is not None:
                    locking.PATIENCE = self.patience
                if wait is not None:
                    if self.aim.action != STOP:
                        hand.wait_until_ended(0)
                    hand.pause(wait)
                plays[side](hand)

            return run.add(name, play, {"end": ends[side]}, who, how)

        def mine(name: str) -> Aim:
            return aim if name == victim else NOBODY

        first = add("first", self.side, 0, self.aim, None)
        taker = add("taker", self.side, 1, mine("taker"), self.idle)
        third = add("third", self.side, 2, mine("third"), LATER + self.idle)
        others = [add(f"other{n}", other, n, mine(f"other{n}"), None) for n in range(2)]
        if self.side == "writer":
            return [first, taker, third], others
        return others, [first, taker, third]


def walks() -> list[Walk]:
    stopped = Aim("recv-unlock", 2, STOP, 0.15)
    return [
        Behind("write-lock", Traffic(2), "writer", Aim("write-unlock", 2)),
        Behind("read-lock", Traffic(2), "reader", Aim("read-unlock", 2)),
        Behind("send-lock", Messages(2), "writer", Aim("send-unlock", 1)),
        Behind("recv-lock", Messages(2), "reader", Aim("recv-unlock", 1)),
        Behind("send-lock-brief", Brief(2), "writer", Aim("send-unlock", 1)),
        Behind("send-turn", Messages(2), "writer", Aim("send-turn-over", 1)),
        Behind("recv-turn", Messages(2), "reader", Aim("recv-turn-over", 1)),
        Behind("unfinished", Messages(2), "writer", Aim("frame-first", 4)),
        Behind("unfinished-alone", Messages(2), "writer", Aim("frame-first", 4), idle=0.3),
        Behind("unfinished-late", LatePoll(2), "writer", Aim("frame-first", 2)),
        Behind("unfinished-stepped", Stepped(2), "writer", Aim("frame-first", 3)),
        Behind("kept", Messages(2), "reader", Aim("parts-wake", 2)),
        Behind("not-begun", Large(2), "reader", Aim("bytering.consume.RPOS", 1)),
        Behind("not-taken", Traffic(2), "writer", Aim("locking.enter.acquire", 1), patience=0.0),
        Behind("left", Leaving(2), "writer", Aim("frame-first", 3, STOP, 0.15)),
        Behind("stopped-polled", PolledDripping(2), "reader", stopped),
        Behind("stopped", Dripping(2), "reader", stopped),
    ]
