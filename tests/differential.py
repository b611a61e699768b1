"""Random calls on two pipes side by side, at full speed: ``python -m tests.differential``.

Each episode opens a new pair of pipes and takes steps on both until they differ or the episode
ends. `--against kernel` compares shmpipe with `os.pipe2`; `--against model` compares it with
`page_model`, which also has write sizes and wake policies. The first difference is shortened as
far as a few seconds allow, printed as a list of steps, and the exit status is 1.

Every episode depends only on the seed and its number: ``--seed N --episode K`` repeats one.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import support
from .page_model import PAGE, POLICIES, PageModel
from .subjects import KernelPipe, ModelPipe, ShmPipe, Step, Subject, compare

MAX = 1 << 20
# Bytes that one episode may move: with large pipes it is copying, not rules, that takes the time.
BUDGET = 3 << 20

NEAR_PAGE = (1, 2, 100, 1365, 2048, 2049, 4000, PAGE - 1, PAGE, PAGE + 1, 5000, 2 * PAGE - 1)
SIZE_ARGUMENTS = (0, 1, PAGE, PAGE + 1, 3 * PAGE, 4 * PAGE, 5 * PAGE, 65535, 65536, 65537)
ODD_ARGUMENTS = (-1, -PAGE, (1 << 31) + 1, 1 << 32, (1 << 32) + 5000)
TOO_LARGE = (MAX + 1, 2 * MAX, 1 << 31, -(1 << 31))
SIZES = (PAGE, 2 * PAGE, 4 * PAGE, 8 * PAGE, 65536, 131072, MAX)
SIZE_WEIGHTS = (10, 10, 10, 4, 10, 2, 1)
IGNORED_FLAGS = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_EXCL, os.O_TRUNC)


@dataclass
class Setup:
    """How an episode's pipes are made."""

    size: int = 65536
    options: dict[str, Any] = field(default_factory=dict)


Pair = tuple[Subject, Subject]
Maker = Callable[[Setup], Pair]


class Generator:
    """Steps of one episode. A model of the pipe runs along, so that sizes can aim at the edges."""

    def __init__(self, seed: str, with_write_size: bool, may_exceed: bool) -> None:
        self.random = random.Random(seed)
        self.with_write_size = with_write_size
        self.too_large = () if may_exceed else TOO_LARGE
        self.setup = self._setup()
        self.model = PageModel(self.setup.size, max_size=MAX)
        # Not asking at all leaves the code which serves nobody's watch to be tested, too.
        self.ask = self.random.choice((0.0, 0.05, 0.5, 1.0))
        self.poller = self.random.choice(("select", "poll", "epoll"))
        # Amounts of the order of a slot only: large ones fill or empty the pipe each time.
        self.by_slot = False

    def _setup(self) -> Setup:
        size = self.random.choices(SIZES, SIZE_WEIGHTS)[0]
        options: dict[str, Any] = {}
        if self.with_write_size:
            options["wake"] = self.random.choice(POLICIES)
            pages = self.random.randint(1, size // PAGE)
            options["write_size"] = self.random.choice((1, PAGE, pages * PAGE))
        return Setup(size, options)

    def steps(self) -> Iterator[Step]:
        rng, model = self.random, self.model
        length = rng.choice((10, 50, 200, 1000))
        closing = rng.random() < 0.6
        # How often to write rather than read: changes now and then, so the pipe fills and drains.
        bias = 0.5
        for index in range(length):
            if index % 16 == 0:
                bias = rng.choice((0.15, 0.4, 0.5, 0.6, 0.85))
                self.by_slot = rng.random() < 0.6
            if model.bytes_written > BUDGET:
                break
            yield self._data_step(bias) if rng.random() < 0.85 else self._control_step()
            if rng.random() < self.ask:
                yield ("ready", self.poller)
        if not closing:
            return
        order = rng.choice(("r", "w", "rw", "wr"))
        for end in order:
            yield ("close", end)
            if end == "w":
                model.writer_open = False
            else:
                model.reader_open = False
            for _ in range(rng.randint(0, 12)):
                yield self._data_step(0.5) if rng.random() < 0.6 else self._control_step()
                yield ("ready", self.poller)

    def _data_step(self, bias: float) -> Step:
        rng, model = self.random, self.model
        if rng.random() < bias:
            count = self._amount(model.free * PAGE, model.slots[-1].room if model.slots else 0)
            self._follow(lambda: model.write(bytes(count)))
            return ("write", rng.randrange(251), count)
        first = model.slots[0].length if model.slots else 0
        count = self._amount(len(model.data), first)
        kind = rng.random()
        if kind < 0.05:
            self._follow(lambda: model.read(-1))
            return ("readall",) if kind < 0.02 else ("read", rng.choice((-1, -5, None)))
        self._follow(lambda: model.read(count))
        return ("read" if kind < 0.6 else "readinto", count)

    def _follow(self, call: Callable[[], object]) -> None:
        """Keep the model in step; what it says is of no interest here."""
        try:
            call()
        except OSError:
            pass

    def _amount(self, edge: int, slot: int) -> int:
        """A count of bytes near an edge: of a page, of a slot, of all there is or all that fits."""
        rng = self.random
        kind = rng.random() * (0.62 if self.by_slot else 1)
        if kind < 0.30:
            return rng.choice(NEAR_PAGE)
        if kind < 0.50:
            count = slot + rng.choice((-1, 0, 0, 0, 1)) + PAGE * rng.choice((0, 0, 0, 1, 2))
            return count if count > 0 else PAGE
        if kind < 0.60:
            return rng.randint(1, 64)
        if kind < 0.62:
            return 0
        if kind < 0.82:
            count = edge + rng.choice((-PAGE, -1, 0, 0, 1, PAGE))
            return count if count > 0 else PAGE
        if kind < 0.90:
            return rng.randint(0, 3 * PAGE)
        return rng.randint(1, min(self.model.size + PAGE, 1 << 18))

    def _control_step(self) -> Step:
        rng, model = self.random, self.model
        end = rng.choice("rw")
        kind = rng.choices(
            ("unread", "set_size", "get_size", "write_size", "flags", "wrong_way", "counts"),
            (4, 6, 1, 6, 1, 1, 1),
        )[0]
        if kind == "write_size":
            if not self.with_write_size:
                return ("closed", end)
            if rng.random() < 0.2:
                return ("get_write_size", end)
            pages = rng.choice((1, 2, model.pages, model.pages // 2, rng.randint(1, model.pages)))
            count = pages * PAGE + rng.choice((-PAGE, -1, 0, 0, 0, 1))
            arg = rng.choice((count, count, count, count, 0, -1, -PAGE))
            self._follow(lambda: model.set_write_size(arg))
            return ("set_write_size", end, arg)
        if kind == "set_size":
            near = max(model.used, model.write_pages) * PAGE
            arg = rng.choice(
                (model.size // 2, model.size * 2, near, near + 1, rng.randint(0, 1 << 17))
                + (rng.choice(SIZE_ARGUMENTS + ODD_ARGUMENTS + self.too_large),) * 2
            )
            if self.too_large == () and MAX < arg % (1 << 32) <= 1 << 31:
                arg = MAX
            self._follow(lambda: model.set_size(arg))
            return ("set_size", end, arg)
        if kind == "flags":
            if rng.random() < 0.5:
                return ("get_flags", end)
            return ("set_flags", end, rng.choice(IGNORED_FLAGS))
        if kind == "counts" and not (
            self.with_write_size and model.reader_open and model.writer_open
        ):
            return ("unread", end)
        return (kind, end)


@dataclass
class Difference:
    """What went wrong, and the steps that lead there; the last of them differs."""

    text: str
    setup: Setup
    steps: list[Step]

    def report(self) -> str:
        lines = [self.text, f"pipe: size={self.setup.size} {self.setup.options or ''}", "steps:"]
        lines += [f"    {step!r}," for step in self.steps[-60:]]
        if len(self.steps) > 60:
            lines.insert(3, f"    # {len(self.steps) - 60} steps before these")
        return "\n".join(lines)


def run_steps(make: Maker, setup: Setup, steps: Iterator[Step] | list[Step]) -> Difference | None:
    """Take the steps on a new pair of pipes until they differ."""
    left, right = make(setup)
    taken: list[Step] = []
    try:
        for step in steps:
            taken.append(step)
            text = compare(step, left, right)
            if text:
                return Difference(text, setup, taken)
    finally:
        left.dispose()
        right.dispose()
    return None


def shorten(make: Maker, found: Difference, seconds: float) -> Difference:
    """Leave out whatever is not needed for some difference to remain."""
    deadline = time.monotonic() + seconds
    chunk = len(found.steps) // 2
    while chunk and time.monotonic() < deadline:
        start, smaller = 0, False
        while start < len(found.steps) and time.monotonic() < deadline:
            fewer = found.steps[:start] + found.steps[start + chunk :]
            again = run_steps(make, found.setup, fewer)
            if again is None:
                start += chunk
            else:
                found, smaller = again, True
        if not smaller or chunk > 1:
            chunk //= 2
    return found


def makers(against: str, left: str = "shmpipe") -> Maker:
    """How to make a pair of pipes for an episode."""
    kinds: dict[str, type[Any]] = {"shmpipe": ShmPipe, "kernel": KernelPipe, "model": ModelPipe}

    def make(setup: Setup) -> Pair:
        options = setup.options | ({} if against == "kernel" else {"max_size": MAX})
        if left == "kernel":
            return KernelPipe(setup.size), kinds[against](setup.size, **options)
        ours = kinds[left](setup.size, **setup.options, max_size=MAX)
        if against == "kernel":
            return ours, KernelPipe(setup.size)
        return ours, kinds[against](setup.size, **options)

    return make


kernel_may_exceed = functools.cache(support.kernel_may_exceed_max)


@dataclass
class Run:
    """A differential run: so many steps, or the first difference."""

    ops: int
    seed: int
    against: str
    left: str = "shmpipe"
    done: int = 0
    counts: collections.Counter[str] = field(default_factory=collections.Counter)

    def episode(self, number: int) -> Difference | None:
        with_write_size = "kernel" not in (self.against, self.left)
        may_exceed = not with_write_size and kernel_may_exceed()
        generator = Generator(f"{self.seed}/{number}", with_write_size, may_exceed)

        def counted() -> Iterator[Step]:
            for step in generator.steps():
                self.done += 1
                self.counts[step[0]] += 1
                yield step

        return run_steps(makers(self.against, self.left), generator.setup, counted())

    def all(self, progress: Callable[[int], None] = lambda number: None) -> Difference | None:
        number = 0
        while self.done < self.ops:
            found = self.episode(number)
            if found:
                found = shorten(makers(self.against, self.left), found, 10)
                found.text = f"seed {self.seed} episode {number}: {found.text}"
                return found
            number += 1
            progress(number)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("--ops", type=int, default=1_000_000, help="steps to take in all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--against", choices=("kernel", "model"), default="kernel")
    parser.add_argument("--left", choices=("shmpipe", "kernel"), default="shmpipe")
    parser.add_argument("--episode", type=int, help="only this one")
    options = parser.parse_args()
    run = Run(options.ops, options.seed, options.against, options.left)
    print(f"{run.left} against {run.against}, {run.ops} steps, seed {run.seed}", flush=True)
    began = shown = time.monotonic()

    def progress(number: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= 5:
            shown = now
            rate = run.done / (now - began)
            print(f"{run.done:>9} steps, {number} episodes, {rate:.0f}/s", flush=True)

    if options.episode is None:
        found = run.all(progress)
    else:
        found = run.episode(options.episode)
        if found:
            found = shorten(makers(run.against, run.left), found, 10)
    kinds = ", ".join(f"{kind} {count}" for kind, count in run.counts.most_common())
    print(f"{run.done} steps in {time.monotonic() - began:.1f} s: {kinds}")
    if found:
        print(f"DIFFERENCE at {found.report()}")
        return 1
    print("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
