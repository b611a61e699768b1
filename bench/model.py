"""What is measured: workloads, the contenders in each, samples, and what follows from them."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """One run of one contender."""

    count: int  # messages, round trips, pipes
    seconds: float
    cpu: float  # seconds of all processes
    switches: int
    bytes: int = 0  # payload moved
    latencies: array[float] | None = None  # seconds, one for each round trip

    @property
    def rate(self) -> float:
        return self.count / self.seconds


@dataclass
class Contender:
    """One way to do a workload: ``run(count)`` does it once, in processes of its own."""

    name: str
    run: Callable[[int], Sample]
    count: int = 0  # set by calibration
    samples: list[Sample | None] = field(default_factory=list)  # one per round, None: not measured
    failure: str | None = None

    @property
    def measured(self) -> list[Sample]:
        return [sample for sample in self.samples if sample is not None]

    def median(self, figure: Callable[[Sample], float]) -> float:
        return statistics.median(figure(sample) for sample in self.measured)

    def times_faster_than(self, other: Contender) -> float | None:
        """The median of the ratios of the rates round by round: neighbours share their noise."""
        ratios = [
            mine.rate / theirs.rate
            for mine, theirs in zip(self.samples, other.samples, strict=False)
            if mine and theirs
        ]
        return statistics.median(ratios) if ratios else None


@dataclass
class Workload:
    """One comparison.  ``group`` is the idea it belongs to, and what ``--only`` takes."""

    name: str
    group: str
    title: str
    contenders: list[Contender]
    unit: str = "message"
    size: int = 0  # bytes of one message
    first_count: int = 1  # where calibration starts
    max_count: int = 10_000_000
    subject: str = "shmpipe"  # whose ratios to the others are reported
    per: str = "million"  # CPU and switches: for a "GB", a "million" or "one"

    def contender(self, name: str) -> Contender | None:
        for contender in self.contenders:
            if contender.name == name and contender.measured:
                return contender
        return None


def percentile(ordered: list[float], percent: float) -> float:
    """Of sorted values, the smallest that ``percent`` of them do not exceed."""
    index = -(-len(ordered) * percent // 100) - 1
    return ordered[min(len(ordered) - 1, max(0, int(index)))]


def size_name(size: int, space: str = "") -> str:
    """``64KiB``; with a space between for those who read it."""
    for factor, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size // factor}{space}{unit}"
    return f"{size}{space}B"
