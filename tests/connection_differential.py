"""Random calls on two links side by side: ``python -m tests.connection_differential``.

Each episode makes a `shmpipe.Pipe` and a `multiprocessing.Pipe`, takes the same steps on both and
compares what comes out: results, exceptions, and their texts where programs look at them. Both
ends are in this process; a call that would block is left out, which each link knows from what is
in flight on it. Messages that do not fit are sent by a thread while the peer receives.

The first difference is shortened as far as a few seconds allow and printed as a list of steps; the
exit status is then 1. Every episode depends on the seed and its number alone: ``--seed N --episode
K`` repeats one. ``--left stdlib`` compares the standard library with itself.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .connection_subjects import BUFFER_NAMES, LARGEST, OBJECT_NAMES, Link, Step

# ---------------------------------------------------------------- episodes

SIZES = (0, 1, 2, 7, 8, 9, 100, 1000, 4088, 4096, 5000, 8191, 8192, 10_000, 16_384, 16_385, 20_000)
LARGE_SIZES = (50_000, 65_536, 65_537, 100_000, 262_144, 1_000_000, (1 << 20) - 8, 1 << 20, LARGEST)
ODD_NUMBERS = (-1, -5, 1 << 70)
RING_SIZES = (65_536, 131_072, 1 << 20)


@dataclass
class Setup:
    """How an episode's links are made."""

    duplex: bool
    options: dict[str, Any]


class Episode:
    """The steps of one episode, from a generator of its own."""

    def __init__(self, name: str) -> None:
        self.random = random.Random(name)
        options = {"size": self.random.choice(RING_SIZES)}
        if self.random.random() < 0.3:
            options["spin"] = 0
        self.setup = Setup(self.random.random() < 0.5, options)

    def steps(self) -> Iterator[Step]:
        rng = self.random
        closing = rng.random() < 0.7
        large = rng.random() < 0.1
        for _ in range(rng.choice((10, 40, 150))):
            yield self._step(rng.choice("aabbbb"), large)
        if closing:
            for end in rng.choice(("a", "b", "ab", "ba")):
                yield (rng.choice(("close", "close", "leave_with")), end)
                for _ in range(rng.randint(2, 15)):
                    yield self._step(rng.choice("ab"), False)

    def _step(self, end: str, large: bool) -> Step:
        rng = self.random
        kind = rng.random()
        if large and kind < 0.1:
            how = rng.choice(("bytes only", "into", "bytes", "array", "two arrays", "list"))
            return ("large", end, rng.choice(LARGE_SIZES), how)
        if kind < 0.25:
            return ("send", end, rng.choice(OBJECT_NAMES), rng.choice(SIZES))
        if kind < 0.45:
            return self._send_bytes(end)
        receiver = rng.choice("aaab")
        if kind < 0.6:
            return ("recv", receiver)
        if kind < 0.72:
            usual = ("none", "none", None, LARGEST, *SIZES[-4:])
            limit = rng.choice(usual + SIZES[:6] + ODD_NUMBERS[:2] if rng.random() < 0.1 else usual)
            return ("recv_bytes", receiver, limit)
        if kind < 0.85:
            what = rng.choice(("bytearray", "bytearray", "array", "slice", "numpy", "double"))
            length = rng.choice(SIZES + (30_000,) * 10)
            offset = rng.choice((None, None, 0, 1, 8, length, length // 2, length + 1, -1))
            return ("recv_bytes_into", receiver, what, length, offset)
        if kind < 0.95:
            return ("poll", receiver, rng.choice((0, 0.0, 0, -1, 0.001, None, "soon")))
        return (rng.choice(("states", "fileno")), end)

    def _send_bytes(self, end: str) -> Step:
        rng = self.random
        what, length = rng.choice(BUFFER_NAMES), rng.choice(SIZES)
        offset: Any = 0
        size: Any = None
        if what.startswith("strided"):
            # The standard library takes a part of such a buffer if it is of one item.
            return ("send_bytes", end, what, length, offset, size, False)
        if rng.random() < 0.5:
            offset = rng.choice((0, 1, length // 2, length, length + 1, *ODD_NUMBERS))
        if rng.random() < 0.5:
            size = rng.choice((0, 1, length // 3, length, length + 1, *ODD_NUMBERS))
        return ("send_bytes", end, what, length, offset, size, rng.random() < 0.3)


@dataclass
class Difference:
    """What went wrong, and the steps that lead there; the last of them differs."""

    text: str
    setup: Setup
    steps: list[Step]

    def report(self) -> str:
        lines = [self.text, f"link: duplex={self.setup.duplex} {self.setup.options}", "steps:"]
        return "\n".join(lines + [f"    {step!r}," for step in self.steps[-60:]])


def brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:140]} ... {text[-140:]} ({len(text)} characters)"


def run_steps(left: str, setup: Setup, steps: Iterator[Step] | list[Step]) -> Difference | None:
    """Take the steps on two new links until they differ."""
    ours, theirs = (Link(kind, setup.duplex, setup.options) for kind in (left, "stdlib"))
    taken: list[Step] = []
    try:
        for step in steps:
            taken.append(step)
            got, expected = ours.do(step), theirs.do(step)
            if got != expected:
                text = f"{step}: {left} {brief(got)}, stdlib {brief(expected)}"
                return Difference(text, setup, taken)
    finally:
        ours.dispose()
        theirs.dispose()
    return None


def shorten(left: str, found: Difference, seconds: float) -> Difference:
    """Leave out whatever is not needed for some difference to remain."""
    deadline = time.monotonic() + seconds
    chunk = max(1, len(found.steps) // 2)
    while time.monotonic() < deadline:
        start, smaller = 0, False
        while start < len(found.steps) and time.monotonic() < deadline:
            fewer = found.steps[:start] + found.steps[start + chunk :]
            again = run_steps(left, found.setup, fewer)
            if again is None:
                start += chunk
            else:
                found, smaller = again, True
        if chunk == 1 and not smaller:
            break
        chunk = max(1, chunk // 2)
    return found


@dataclass
class Run:
    """A differential run: so many steps, or the first difference."""

    ops: int
    seed: int
    left: str = "shmpipe"
    done: int = 0
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def episode(self, number: int) -> Difference | None:
        episode = Episode(f"{self.seed}/{number}")

        def counted() -> Iterator[Step]:
            for step in episode.steps():
                self.done += 1
                self.counts[step[0]] += 1
                yield step

        found = run_steps(self.left, episode.setup, counted())
        if found:
            found = shorten(self.left, found, 10)
            found.text = f"seed {self.seed} episode {number}: {found.text}"
        return found

    def all(self, progress: Callable[[int], None] = lambda number: None) -> Difference | None:
        number = 0
        while self.done < self.ops:
            found = self.episode(number)
            if found:
                return found
            number += 1
            progress(number)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.connection_differential")
    parser.add_argument("--ops", type=int, default=300_000, help="steps to take in all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--left", choices=("shmpipe", "stdlib"), default="shmpipe")
    parser.add_argument("--episode", type=int, help="only this one")
    options = parser.parse_args()
    run = Run(options.ops, options.seed, options.left)
    print(f"{run.left} against stdlib, {run.ops} steps, seed {run.seed}", flush=True)
    began = shown = time.monotonic()

    def progress(number: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= 5:
            shown = now
            rate = run.done / (now - began)
            print(f"{run.done:>9} steps, {number} episodes, {rate:.0f}/s", flush=True)

    found = run.all(progress) if options.episode is None else run.episode(options.episode)
    kinds = ", ".join(f"{kind} {count}" for kind, count in run.counts.most_common())
    print(f"{run.done} steps in {time.monotonic() - began:.1f} s: {kinds}")
    if found:
        print(f"DIFFERENCE at {found.report()}")
        return 1
    print("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
