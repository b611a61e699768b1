"""All scenarios by name, how far each is searched, and the hunt for mutants."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from .base import PipeScenario
from .deaths import DEATHS
from .duplex import DUPLEX
from .edges import EDGES
from .loans import LOANS
from .locks import LOCKS
from .losses import LOSSES
from .messages import FRAMES
from .mutants import Mutant, applied
from .pipes import PIPES
from .reservations import RESERVATIONS
from .scheduler import Limits
from .search import Result, Search
from .stepped import STEPPED
from .stepped_losses import STEPPED_LOSSES
from .timeouts import TIMEOUTS
from .watching import WATCHED

How = tuple[str, int | None, int]  # a scenario, pre-emptions (None: no bound), schedules

ALL = [
    *LOCKS,
    *EDGES,
    *PIPES,
    *WATCHED,
    *DEATHS,
    *FRAMES,
    *TIMEOUTS,
    *LOSSES,
    *LOANS,
    *RESERVATIONS,
    *STEPPED,
    *STEPPED_LOSSES,
    *DUPLEX,
]
SCENARIOS: dict[str, PipeScenario] = {scenario.name: scenario for scenario in ALL}
FAST_MOST = 400  # schedules of each scenario in the fast set
CAUGHT = Path(__file__).with_name("caught.txt")
_HEAD = "# Each mutant, and a search that catches it: scenario, pre-emptions, schedules needed.\n"


def limits_of(scenario: PipeScenario, preemptions: int | None) -> Limits:
    own = scenario.limits
    return Limits(preemptions, own.late, own.deaths, own.ticks)


def search(scenario: PipeScenario, preemptions: int | None, most: int | None = None) -> Result:
    return Search(scenario, limits_of(scenario, preemptions)).run(most)


# Where to look first for a mutant, or those of a module: parts of scenarios' names.
LIKELY = {
    "plug-again": ("write-sleeps-edge-half-2",),
    "arrived-ring": ("death-of-stranger",),
    "arrived-eat": ("death-of-strange-reader",),
    "strangers": ("death-of-stranger",),
    "read-settle": ("watch-drained",),
    "write-settle": ("watch-full", "watch-freed"),
    "read-look": ("read-sleeps",),
    "write-look": ("one-read",),
    "send-look": ("send-receive",),
    "recv-look": ("send-receive", "close-against-send"),
    "recv-copy-first": ("send-receive", "crowd-of-messages"),
    "recv-settle": ("watch-messages", "one-late"),
    "recv-wake": ("send-receive",),
    "recv-pass-on": ("one-late", "crowd-of-messages"),
    "send-disarm": ("send-receive",),
    "send-turn-over": ("gave-up-in-vain",),
    "late-pass-on": ("late-receive",),
    "poll-late-pass-on": ("late-poll",),
    "lend-late-pass-on": ("late-borrow",),
    "writer-abandon-settle": ("want-over-watched",),
    "resized-level": ("watch-resized-by-writer",),
    "resized-reader-rung": ("resize-by",),
    "resized-reader-wake": ("resize-by",),
    "resized-writer-wake": ("resize-by",),
    "resized-unplug": ("resize-by",),
    "want-over": ("want-over",),
    "left-first": ("close-of-two",),
    "other-mark": ("watch-after-death",),
    "even-asleep": ("take-over",),
    "close-open-last": ("death-of-closer",),
    "end-open": ("death-for-good",),
    "wait-clear": ("watch-messages",),
    "wait-pass-on": ("close-wakes-receivers",),
    "recv-disarm": ("one-late", "send-receive"),
    "reader-long": ("read-sleeps",),
    "writer-long": ("asleep-below-mark",),
    "writer-counted": ("one-read",),
    "writer-close": ("close-against-read",),
    "writer-left": ("close-wakes",),
    "writer-leave-wake": ("close-wakes",),
    "reader-leave-wake": ("close-wakes",),
    "publish-header-first": ("reserve",),
    "reserve-mark": ("reserve-twice",),
    "reserve-settle": ("reserve-watched",),
    "reserve-hangup": ("close-against-reserve",),
    "lend-turn": ("lend-and-receive", "reserve-and-send"),
    "lend-over-first": ("lend-twice", "reserve-twice"),
    "lend-turn-over-first": ("lend-twice", "reserve-twice"),
    "lend-wait-pass-on": ("lend-in-parts", "lend-late"),
    "lend-mark": ("lend-twice", "lend-and-grow"),
    "lend-settle": ("lend-to-watcher", "lend-late"),
    "lend-wake-last": ("lend-and-grow",),
    "lend-grow-wake": ("lend-and-let-grow",),
    "lend-wake": ("lend-full",),
    "lend-pass-on": ("lend-late",),
    "parts-wake": ("streamed",),
    "begin-open": ("death-for-good",),
    "owed-wakes": ("death-before",),
    "resized-reader-fence": ("resize-by",),
    "resized-writer-fence": ("resize-by",),
    "resized-rung": ("resize-by",),
    "resized-wake": ("resize-by",),
    "resized-open": ("resize-by",),
    "resized": ("resize-by",),
    "poll-pass-on": ("poll",),
    "began-look": ("death-of-collector",),
    "began-again": ("death-of-poller",),
    "began-first": ("death-of-loser",),
    "lost-last": ("death-of-loser",),
    "keeper-first": ("death-of-collector",),
    "part-taken-first": ("death-of-collector",),
    "parts-rearm": ("two-receivers",),
    "parts-pass-on": ("two-receivers",),
    "turn-pass-on": ("two-receivers",),
    "forget-look": ("close-by-thread-in-parts",),
    "recv-turn": ("close-by-thread-in-parts",),
    "recv-turn-over": ("two-receivers",),
    "send-turn": ("death-of-sender", "two-senders"),
    "send-close-dead": ("turn-taken-early",),
    "turn-look": ("turn-taken-over",),
    "hangup-first": ("death",),
    "recv-look-after-hangup": ("death",),
    "read-look-after-hangup": ("death-of-last",),
    "read-unlock": ("death",),
    "write-unlock": ("death",),
    "send-unlock": ("death",),
    "send-parts-unlock": ("death",),
    "recv-unlock": ("death-with-lock",),
    "writer-rearm": ("long-writer", "crowd", "two-writers"),
    "plugging-first": ("watch-both",),
    "plugging-fence": ("watch-both",),
    "plugging-look": ("watch-both",),
    "plugged-last": ("watch-both",),
    "stepped-turn": ("stepped-slowly",),
    "stepped-turn-over": ("stepped-and-reserve",),
    "stepped-settle": ("stepped-full",),
    "stepped-part-settle": ("stepped-full",),
    "stepped-unlock": ("death-of-stepped",),
    "stepped-part-unlock": ("death-of-stepped",),
    "stepped-open": ("death-of-stepped-for-good",),
    "stepped-end-open": ("death-of-stepped-for-good",),
    "stepped-close-dead": ("stepped-after-death",),
    "cancel-close": ("stepped-cancelled",),
    "cancel-wake": ("stepped-cancelled",),
    "cancel-settle": ("cancel-watched",),
    "stepping": ("stepped", "cancel"),
    "locking": ("seems-lost", "death-of-waiter", "take-over", "exclusion"),
    "ring": ("death-of-resizer", "resize"),
    "control": ("resize",),
    "lending": ("lend", "reserve", "loan", "borrower"),
    "bytering": ("send", "receive"),
    "sending": ("send", "parts", "stream"),
    "receiving": ("receive", "parts", "stream"),
    "collecting": ("receive", "parts", "stream"),
    "arrivals": ("receive", "late", "close"),
    "doorbell": ("watch",),
    "readers": ("one-read", "watch", "two"),
    "writers": ("one-read", "watch", "two"),
    "stream": ("one-read", "two", "death"),
}


def order(mutant: Mutant) -> Iterator[tuple[PipeScenario, int | None, int]]:
    """Which searches to try, for how many schedules."""
    parts = LIKELY.get(mutant.name) or LIKELY.get(mutant.module, ())
    likely = [one for name, one in SCENARIOS.items() if any(part in name for part in parts)]
    rest = [one for one in SCENARIOS.values() if one not in likely]
    for preemptions, most in ((0, 300), (1, 1000)):
        for scenario in likely:
            yield scenario, preemptions, most
    for scenario in rest:
        yield scenario, 0, 300
    for preemptions, most in ((2, 6000), (None, 6000), (3, 12_000)):
        for scenario in likely:
            yield scenario, preemptions, most
    for preemptions, most in ((1, 1000), (2, 6000)):
        for scenario in rest:
            yield scenario, preemptions, most


def hunt(mutant: Mutant, seconds: float) -> tuple[str, int | None, Result] | None:
    """A scenario that fails with the mutant, how many pre-emptions that took, and how it fails."""
    until = time.monotonic() + seconds
    for scenario, preemptions, most in order(mutant):
        if time.monotonic() > until:
            return None
        with applied(mutant):
            result = search(scenario, preemptions, most)
        if result.failure is not None:
            if search(scenario, preemptions, result.schedules).failure is not None:
                raise RuntimeError(f"{scenario.name} fails without a mutant, too")
            return scenario.name, preemptions, result
    return None


def fails_with(mutant: Mutant, how: How) -> Result:
    """The search that is known to catch a mutant, once more."""
    scenario, preemptions, schedules = how
    with applied(mutant):
        # A little more than it took: places turn out to be shared in another order.
        return search(SCENARIOS[scenario], preemptions, 2 * schedules + 100)


def caught() -> dict[str, How]:
    """By mutant, from the file."""
    found: dict[str, How] = {}
    if not CAUGHT.exists():
        return found
    for line in CAUGHT.read_text().splitlines():
        if not line.startswith("#"):
            name, scenario, preemptions, schedules = line.split()
            bound = None if preemptions == "all" else int(preemptions)
            found[name] = scenario, bound, int(schedules)
    return found


def write_caught(found: dict[str, How]) -> None:
    lines = []
    for name, (scenario, bound, schedules) in sorted(found.items()):
        lines.append(f"{name} {scenario} {'all' if bound is None else bound} {schedules}\n")
    CAUGHT.write_text(_HEAD + "".join(lines))


def known(mutants: list[Mutant]) -> Iterator[tuple[Mutant, How | None]]:
    table = caught()
    for mutant in mutants:
        yield mutant, table.get(mutant.name)
