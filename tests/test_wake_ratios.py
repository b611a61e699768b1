"""What the write size is for, as ratios of counts: they do not depend on how fast a machine is.

Other load disturbs single runs, so it is the median of several that counts, and the margins are
wide: at half of the pipe there are half as many waits as at one page, or fewer, and asked for are
three quarters.
"""

from __future__ import annotations

import statistics
import time
from functools import cache

import pytest

from shmpipe.commands import runs
from shmpipe.commands.pair import two_cpus
from shmpipe.commands.runs import Result

from .kinds import asleep, fill, page, pipe_of, unread
from .support import PAGE, context_switches, run_child

COUNT = 2_000_000  # numbers of seq: about 15 MB, 240 times a pipe
TRIES = 5
SIZE = 65536
IDLE = 0.5  # seconds


@cache
def tries() -> dict[str, list[Result]]:
    """All runs, in turns, so that a busy moment hits all kinds alike."""
    kinds = {
        "one page": ("write-size", PAGE),
        "half as write size": ("write-size", SIZE // 2),
        "half": ("half", PAGE),
        "edge-half": ("edge-half", PAGE),
    }
    found: dict[str, list[Result]] = {name: [] for name in kinds}
    for _ in range(TRIES):
        for name, (policy, write_size) in kinds.items():
            result = runs.run_shmpipe(COUNT, SIZE, write_size, policy, 0.0, two_cpus())
            assert result.problems() == []
            found[name].append(result)
    return found


def writer_waits(name: str) -> float:
    """How often the kernel saw the writer wait; what else runs does not count."""
    return statistics.median(result.writer.voluntary for result in tries()[name])


@pytest.mark.timeout_s(180)
@pytest.mark.parametrize("name", ["half as write size", "half", "edge-half"])
def test_half_of_the_pipe_takes_fewer_switches_than_a_page(name: str) -> None:
    assert writer_waits("one page") > 100  # or there would be nothing to compare
    assert writer_waits(name) <= 0.75 * writer_waits("one page")


@pytest.mark.timeout_s(180)
def test_wakes_are_withheld_where_there_is_a_threshold_only() -> None:
    withheld = {
        name: statistics.median(result.stats["writer_wakes_withheld"] for result in results)
        for name, results in tries().items()
        if all(result.stats for result in results)
    }
    # Not quite never: a writer may have filled the pipe again while the reader looked.
    assert withheld.pop("one page") < 20
    assert len(withheld) == 3
    assert min(withheld.values()) > 100


@pytest.mark.parametrize(
    ("policy", "write_size"), [("write-size", 8 * PAGE), ("half", PAGE), ("edge-half", PAGE)]
)
def test_a_writer_asleep_below_the_threshold_is_not_scheduled(policy: str, write_size: int) -> None:
    """Beside free pages, with a reader that goes on reading now and then."""
    with pipe_of("shmpipe", 16, write_size=write_size, wake=policy, spin=0) as (reader, writer):
        assert unread(reader) == 0  # a reader's first call has writers that sleep look again
        fill(writer, 16)
        child = run_child(writer.write, page(0), close=[reader])
        asleep(child)
        time.sleep(0.1)  # by now it polls its doorbell, without a time limit
        before = context_switches(child.pid)
        for _ in range(6):
            reader.read(PAGE)
            time.sleep(IDLE / 6)
        assert context_switches(child.pid) == before
        assert reader.stats().writer_wakes == 0
        assert reader.stats().writer_wakes_withheld == 6
        while reader.stats().writer_wakes == 0:
            reader.read(PAGE)
        assert child.join() == PAGE
