"""Running a workload: everybody once, then again, so that nobody has the quiet minute alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .model import Contender, Sample, Workload
from .processes import MemberFailed


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int = 7
    seconds: float = 0.4  # of one run
    timeout: float = 60.0  # of one run, after which it is killed
    trips: int = 20_000  # round trips of one run at most
    fixed_count: int | None = None  # instead of calibration

    @staticmethod
    def fast() -> Plan:
        return Plan(rounds=3, seconds=0.1, timeout=30.0, trips=3000)

    @staticmethod
    def smoke() -> Plan:
        return Plan(rounds=1, seconds=0.0, timeout=20.0, trips=20, fixed_count=4)


def measure(workload: Workload, plan: Plan, tell: Callable[[str], None]) -> None:
    """Fill the contenders' samples; one that fails is out, and that is said."""
    contenders = list(workload.contenders)
    for contender in contenders:
        _attempt(contender, lambda contender=contender: _calibrate(contender, workload, plan), tell)
    for number in range(plan.rounds):
        # Another one begins each time: what a run leaves behind in the caches hits all in turn.
        first = number % len(contenders) if contenders else 0
        for contender in contenders[first:] + contenders[:first]:
            sample = None
            if contender.failure is None:
                sample = _attempt(
                    contender, lambda contender=contender: contender.run(contender.count), tell
                )
            contender.samples.append(sample)


def _calibrate(contender: Contender, workload: Workload, plan: Plan) -> Sample | None:
    """Find the count that takes ``plan.seconds``; it also warms up what can be warmed up."""
    if plan.fixed_count is not None:
        contender.count = plan.fixed_count
        return None
    count = workload.first_count
    enough = plan.seconds / 4
    while True:
        sample = contender.run(count)
        if sample.seconds >= enough or count >= workload.max_count:
            break
        # Starting up weighs much in a short run, so the next guess is not to be trusted far.
        count = int(count * min(10.0, max(2.0, enough / max(sample.seconds, 1e-6)))) + 1
        count = min(count, workload.max_count)
    contender.count = max(1, min(workload.max_count, round(sample.rate * plan.seconds)))
    return sample


def _attempt(
    contender: Contender, action: Callable[[], Sample | None], tell: Callable[[str], None]
) -> Sample | None:
    try:
        return action()
    except (MemberFailed, OSError) as error:
        contender.failure = str(error).strip()
        tell(f"  {contender.name} failed: {contender.failure.splitlines()[-1]}")
        return None
