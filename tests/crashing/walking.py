"""Which process dies where, in which walk: all steps in turn, or chance."""

from __future__ import annotations

import dataclasses
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Collection
from typing import Any

from shmpipe._names import NAMES  # type: ignore[import-not-found]

from . import handing, messages, streams, taking
from .actors import AT_ANY_TIME, KILL, STOP, STOP_AND_KILL, Aim
from .promises import Played
from .walks import Walk

WALKS: list[Walk] = [
    *(kind(crowd) for kind in streams.WALKS + messages.WALKS for crowd in kind.crowds),
    *taking.walks(),
    *handing.walks(),
]


QUICK = ("traffic-1x1", "traffic-2x2", "messages-1x1", "messages-2x2", "loans-2x2")
FEW = 6  # of the walks that come to a step, the fastest: the pass over all steps takes a minute


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to try: reads as ``walk/victim/step/arrival/action/seed``."""

    walk: str
    victim: str
    step: str
    arrival: int
    action: str
    seed: str

    def __str__(self) -> str:
        return "/".join(map(str, dataclasses.astuple(self)))

    @classmethod
    def parse(cls, text: str) -> Case:
        walk, victim, step, arrival, action, seed = text.split("/", 5)
        return cls(walk, victim, step, int(arrival), action, seed)


def walk_named(name: str) -> Walk:
    return next(walk for walk in WALKS if repr(walk) == name)


class Figures:
    """What was tried, and what came out of it."""

    def __init__(self) -> None:
        self.runs = self.kills = self.stops = 0
        self.died_at: Counter[str] = Counter()  # by step
        self.stopped_at: Counter[str] = Counter()
        self.promises: Counter[str] = Counter()
        self.by_walk: Counter[str] = Counter()
        self.latest, self.latest_case = 0.0, ""
        self.longest, self.longest_case = 0.0, ""  # that a run went on after a death
        self.failures: list[str] = []
        self.seconds: dict[str, float] = {}  # that each walk takes
        self.seen: dict[tuple[str, str], dict[str, int]] = {}  # steps, by walk and victim

    def perform(self, case: Case, jitter: float = 0.0) -> Played | None:
        """Try one case; None: a promise was not kept, and it is noted."""
        walk = walk_named(case.walk)
        seconds = random.Random(case.seed).uniform(0.01, 0.1)
        aim = Aim(case.step or None, case.arrival, case.action, seconds)
        self.runs += 1
        begin = time.monotonic()
        try:
            played = walk.play(case.seed, case.victim, aim, jitter)
        except Exception as error:
            short = "".join(traceback.format_exception_only(error)).strip()
            self.failures.append(f"{case}: {short}")
            print(f"FAILED: {self.failures[-1]}", file=sys.stderr, flush=True)
            return None
        if not case.step:
            self.seconds[case.walk] = time.monotonic() - begin
        self._count(case, played)
        return played

    def _count(self, case: Case, played: Played) -> None:
        self.by_walk[case.walk] += 1
        self.promises += played.checked
        if played.run.outlived > self.longest:
            self.longest, self.longest_case = played.run.outlived, str(case)
        if played.latest > self.latest:
            self.latest, self.latest_case = played.latest, str(case)
        steps = played.victim.board.seen()
        known = self.seen.setdefault((case.walk, case.victim), {})
        for step, count in steps.items():
            known[step] = max(known.get(step, 0), count)
        if played.victim.killed:
            self.kills += 1
        came = steps.get(case.step, 0) >= case.arrival > 0
        if came and case.action != AT_ANY_TIME:
            if played.victim.killed:
                self.died_at[case.step] += 1
            if case.action != KILL:
                self.stops += 1
                self.stopped_at[case.step] += 1

    def as_json(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "kills": self.kills,
            "stops": self.stops,
            "steps": len(NAMES),
            "steps_not_died_at": sorted(set(NAMES) - self.died_at.keys()),
            "promises_checked": dict(sorted(self.promises.items())),
            "latest": [round(self.latest, 3), self.latest_case],
            "longest": [round(self.longest, 3), self.longest_case],
            "walks": dict(sorted(self.by_walk.items())),
            "failures": self.failures,
            "places": self._places(),
        }

    def _places(self) -> dict[str, list[tuple[str, str]]]:
        """Of each step that nobody has died at: walks that come to it, and victims."""
        found: dict[str, list[tuple[str, str]]] = {}
        for place, steps in self.seen.items():
            for step in steps.keys() - self.died_at.keys():
                found.setdefault(step, []).append(place)
        return found


def survey(figures: Figures, seed: str, names: Collection[str] = (), times: int = 1) -> None:
    """Each walk (or those named) without a death: which steps its victims come to."""
    for walk in WALKS:
        if names and repr(walk) not in names:
            continue
        for victim in walk.victims:
            for number in range(times):
                figures.perform(Case(repr(walk), victim, "", 0, KILL, f"{seed}.{number}"))


def every_step(figures: Figures, seed: str, full: bool = False) -> list[Case]:
    """A death at each step that the survey has come to, with one peer and in a crowd.

    In full: in each walk that comes to it.
    """
    chance = random.Random(seed)
    chosen: dict[tuple[str, int], list[tuple[str, str, int]]] = {}
    for (walk, victim), steps in figures.seen.items():
        for step, count in steps.items():
            key = step, walk_named(walk).crowd
            chosen.setdefault(key, []).append((walk, victim, count))
    cases = []
    for (step, _), places in sorted(chosen.items()):
        places.sort(key=lambda place: figures.seconds[place[0]])
        for walk, victim, count in places if full else [chance.choice(places[:FEW])]:
            arrival = chance.choice((1, chance.randint(1, count)))
            action = chance.choice((KILL, KILL, STOP_AND_KILL, STOP))
            cases.append(Case(walk, victim, step, arrival, action, f"{seed}.{len(cases)}"))
    return cases


def remaining(figures: Figures, seed: str, steps: Collection[str], most: int = 40) -> None:
    """More tries for each of the steps at which nobody has died yet: some are rarely come to."""
    for again in range(3):
        missing = sorted(set(steps) - figures.died_at.keys())
        if set(missing) - set().union(*figures.seen.values()):
            survey(figures, f"{seed}.again{again}")
        for step in missing:
            _try(figures, step, f"{seed}.{step}.{again}", most)


def _try(figures: Figures, step: str, seed: str, most: int) -> None:
    places = sorted(
        (
            (steps[step], walk, victim)
            for (walk, victim), steps in figures.seen.items()
            if step in steps
        ),
        reverse=True,
    )
    for number in range(most if places else 0):
        _, walk, victim = places[number % len(places)]
        figures.perform(Case(walk, victim, step, 1, KILL, f"{seed}.{number}"))
        if step in figures.died_at:
            return


def by_chance(figures: Figures, seed: str) -> Case:
    """Any step of any walk, at any arrival; or, now and then, no step at all."""
    chance = random.Random(seed)
    (walk, victim), steps = chance.choice(list(figures.seen.items()))
    if chance.random() < 0.1:
        return Case(walk, victim, "", 0, AT_ANY_TIME, seed)
    step = chance.choice(list(steps))
    arrival = chance.choice((1, 1, chance.randint(1, steps[step])))
    action = chance.choices((KILL, STOP_AND_KILL, STOP), (9, 3, 1))[0]
    return Case(walk, victim, step, arrival, action, seed)
