"""Processes killed with SIGKILL, asleep or at work: the others notice, and go on.

Nothing here measures how quickly; whoever is not woken stays asleep until the test's hard limit.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from typing import Any

import pytest

from shmpipe.readers import ReaderSide

from .kinds import (
    POLICIES,
    asleep,
    both_kinds,
    both_runners,
    fill,
    page,
    pipe_of,
    policy_options,
    pure_only,
    set_nonblocking,
    start,
    unread,
)
from .records import SMALLEST, numbers_of, record, records
from .support import PAGE, Flag, eventually, run_child, run_thread, task_state


def hold(*_: Any) -> None:
    """Do nothing with whatever was inherited."""
    signal.pause()


def watch(end: Any, mask: int) -> bool:
    poller = select.poll()
    poller.register(end.fileno(), mask)
    return bool(poller.poll(30_000))


# ---------------------------------------------------------------- the only holder dies


@both_kinds
def test_reader_killed_in_read(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        reader = run_child(r.read, 10, close=[w])
        r.close()
        asleep(reader)
        reader.kill()
        with pytest.raises(BrokenPipeError):
            w.write(b"x")
        assert watch(w, 0)


@both_kinds
def test_write_right_after_the_readers_death(kind: str) -> None:
    for _ in range(10):
        with pipe_of(kind) as (r, w):
            reader = run_child(hold, close=[w])
            r.close()
            w.write(b"x")
            reader.kill()
            with pytest.raises(BrokenPipeError):
                w.write(b"x")


@both_kinds
def test_reader_killed_in_poll(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        reader = run_child(watch, r, select.POLLIN, close=[w])
        r.close()
        asleep(reader)
        reader.kill()
        with pytest.raises(BrokenPipeError):
            w.write(b"x")


@both_kinds
@both_runners
def test_writer_asleep_when_the_reader_is_killed(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        reader = run_child(hold, close=[w])
        writer = start(how, w.write, page(2), close=[r])
        r.close()
        asleep(reader, writer)
        reader.kill()
        with pytest.raises(BrokenPipeError):
            writer.join()


@both_kinds
@both_runners
def test_writer_asleep_half_way_when_the_reader_is_killed(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        reader = run_child(hold, close=[w])
        writer = start(how, w.write, bytes(20000), close=[r])
        r.close()
        asleep(reader, writer)
        reader.kill()
        assert writer.join() == 2 * PAGE
        with pytest.raises(BrokenPipeError):
            w.write(b"x")


@both_kinds
@both_runners
def test_watcher_of_a_full_write_end_when_the_reader_is_killed(kind: str, how: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        reader = run_child(hold, close=[w])
        watcher = start(how, watch, w, select.POLLOUT, close=[r])
        r.close()
        asleep(reader, watcher)
        reader.kill()
        assert watcher.join()


@both_kinds
@both_runners
@pytest.mark.parametrize("doing", ["nothing", "writing", "polling"])
def test_reader_asleep_when_the_writer_is_killed(kind: str, how: str, doing: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        action = {
            "nothing": (hold,),
            "writing": (w.write, bytes(20000)),
            "polling": (watch, w, select.POLLOUT),
        }[doing]
        writer = run_child(*action, close=[r])
        asleep(writer)
        # Freezing it first keeps it from filling or finding the space.
        os.kill(writer.pid, signal.SIGSTOP)
        eventually(lambda: (task_state(writer.pid, writer.pid) or " ")[0] == "T")
        assert len(r.read(1 << 20)) == 2 * PAGE
        reader = start(how, r.read, 1 << 20, close=[w])
        watcher = start(how, watch, r, select.POLLIN, close=[w])
        w.close()
        asleep(reader, watcher)
        writer.kill()
        assert reader.join() == b""
        assert watcher.join()
        assert r.read(1) == b""


@both_kinds
def test_pages_of_a_killed_write_stay_readable(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        writer = run_child(w.write, page(1) + page(2) + page(3) + page(4), close=[r])
        w.close()
        asleep(writer)
        writer.kill()
        assert r.read(1 << 20) == page(1) + page(2)
        assert r.read(1 << 20) == b""


# ---------------------------------------------------------------- others hold the same end


@both_kinds
def test_second_sleeping_reader_goes_on(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        victim = run_child(r.read, 10, close=[w])
        survivor = run_child(r.read, 10, close=[w])
        r.close()
        asleep(victim, survivor)
        victim.kill()
        asleep(survivor)
        assert w.write(b"data") == 4
        assert survivor.join() == b"data"


@both_kinds
def test_second_sleeping_writer_goes_on(kind: str) -> None:
    with pipe_of(kind, 1) as (r, w):
        fill(w, 1)
        victim = run_child(w.write, page(1), close=[r])
        survivor = run_child(w.write, page(2), close=[r])
        w.close()
        asleep(victim, survivor)
        victim.kill()
        asleep(survivor)
        assert r.read(PAGE) == page(0)
        assert survivor.join() == PAGE
        assert r.read(PAGE) == page(2)
        assert r.read(PAGE) == b""


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("kill_first", [True, False])
def test_wake_is_not_lost_with_a_killed_reader(kind: str, kill_first: bool) -> None:
    for _ in range(5):
        with pipe_of(kind) as (r, w):
            victim = run_child(r.read, 1, close=[w])
            asleep(victim)
            survivor = run_child(r.read, 1, close=[w])
            asleep(survivor)
            if kill_first:
                os.kill(victim.pid, signal.SIGKILL)
            w.write(b"x")
            victim.kill()
            # The victim took it along, or the survivor must wake for it.
            eventually(lambda: unread(w) == 0)
            w.write(b"y")
            assert survivor.join() in (b"x", b"y")


@pure_only
@pytest.mark.parametrize("policy", POLICIES)
def test_wake_is_not_lost_with_a_reader_killed_before_it_is_watched(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies where it has freed space and not told so, while the writer is on its semaphore; a
    reader that does nothing keeps the pipe from being broken.
    """

    def read_and_die() -> None:
        full.wait()
        monkeypatch.setattr(ReaderSide, "wake_writers", lambda *_: os._exit(0))
        r.read(3 * PAGE)

    with Flag() as full, pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        fill(w, 4)
        victim = run_child(read_and_die, close=[w])
        asleep(victim)
        writer = run_child(w.write, page(4), close=[r])
        eventually(lambda: w.stats().writer_sleeps == 1)
        full.set()
        assert writer.join() == PAGE


@pytest.mark.parametrize("policy", ["half", "edge-half"])
def test_who_comes_does_not_give_a_slot_to_a_sleeping_writer(policy: str) -> None:
    """One that sleeps watches processes: a second that comes, and a reader that was not there."""
    with pipe_of("shmpipe", 4, **policy_options(policy)) as (r, w):
        fill(w, 4)
        writers = []
        for number in range(2):
            writers.append(run_child(w.write, page(number), close=[r]))
            asleep(*writers)
        run_child(r.read, PAGE, close=[w]).join()
        asleep(*writers)
        assert w.stats().pages_used == 3
        r.read(3 * PAGE)
        assert [writer.join() for writer in writers] == [PAGE, PAGE]


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("kill_first", [True, False])
def test_wake_is_not_lost_with_a_killed_writer(kind: str, kill_first: bool) -> None:
    for _ in range(5):
        with pipe_of(kind, 1) as (r, w):
            fill(w, 1)
            victim = run_child(w.write, page(1), close=[r])
            asleep(victim)
            survivor = run_child(w.write, page(2), close=[r])
            asleep(survivor)
            if kill_first:
                os.kill(victim.pid, signal.SIGKILL)
            assert r.read(PAGE) == page(0)
            victim.kill()
            eventually(lambda: unread(r) == PAGE)
            if r.read(PAGE) == page(1):
                assert r.read(PAGE) == page(2)
            assert survivor.join() == PAGE


@both_kinds
def test_second_watcher_of_a_read_end_goes_on(kind: str) -> None:
    with pipe_of(kind) as (r, w):
        r.fileno()  # both watch the same descriptor
        victim = run_child(watch, r, select.POLLIN, close=[w])
        survivor = run_child(watch, r, select.POLLIN, close=[w])
        asleep(victim, survivor)
        victim.kill()
        asleep(survivor)
        w.write(b"x")
        assert survivor.join()
        assert r.read(1) == b"x"
        assert not select.select([r], [], [], 0)[0]


@both_kinds
def test_second_watcher_of_a_write_end_goes_on(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        fill(w, 2)
        victim = run_child(watch, w, select.POLLOUT, close=[r])
        survivor = run_child(watch, w, select.POLLOUT, close=[r])
        asleep(victim, survivor)
        victim.kill()
        asleep(survivor)
        r.read(PAGE)
        assert survivor.join()
        w.write(page(0))
        assert not select.select([], [w], [], 0)[1]


@both_kinds
def test_own_end_works_after_a_copy_was_killed_in_every_sleep(kind: str) -> None:
    with pipe_of(kind, 1) as (r, w):
        for call in (lambda: r.read(1), lambda: watch(r, select.POLLIN)):
            victim = run_child(call, close=[w])
            asleep(victim)
            victim.kill()
        fill(w, 1)
        for call in (lambda: w.write(b"x"), lambda: watch(w, select.POLLOUT)):
            victim = run_child(call, close=[r])
            asleep(victim)
            victim.kill()
        set_nonblocking(w)
        assert w.write(b"x") is None
        set_nonblocking(w, False)
        for number in range(1, 4):
            writer = run_thread(w.write, page(number))
            assert r.read(PAGE) == page(number - 1)
            assert writer.join() == PAGE


# ---------------------------------------------------------------- killed while busy


def write_for_ever(writer: Any, who: int, seed: int) -> None:
    chance = random.Random(seed)
    number = 0
    while True:
        writer.write(record(who, number, chance.randint(SMALLEST, PAGE)))
        number += 1


def write_records(writer: Any, who: int, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        writer.write(record(who, number, chance.randint(SMALLEST, PAGE)))


def read_for_ever(reader: Any, size: int) -> None:
    while reader.read(size):
        pass


def read_to_end(reader: Any, size: int) -> list[bytes]:
    parts = []
    while part := reader.read(size):
        parts.append(part)
    return parts


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("pages", [1, 16])
def test_writer_killed_at_work_leaves_whole_records(kind: str, pages: int) -> None:
    chance = random.Random(pages)
    for seed in range(12):
        with pipe_of(kind, pages) as (r, w):
            reader = run_thread(read_to_end, r, 20000)
            victim = run_child(write_for_ever, w, 1, seed, close=[r])
            survivor = run_child(write_records, w, 2, 150, -seed, close=[r])
            w.close()
            time.sleep(chance.uniform(0.0, 0.03))
            victim.kill()
            survivor.join()
            found = list(records(b"".join(reader.join())))
            assert numbers_of(2, found) == list(range(150))
            lives = numbers_of(1, found)
            assert lives == list(range(len(lives)))


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("pages", [1, 16])
def test_reader_killed_at_work_takes_only_what_it_took(kind: str, pages: int) -> None:
    chance = random.Random(pages)
    size, count = 64, 2000

    def write_all() -> None:
        for number in range(count):
            w.write(record(1, number, size))

    for _ in range(12):
        with pipe_of(kind, pages) as (r, w):
            victim = run_child(read_for_ever, r, size, close=[w])
            writer = run_child(write_all, close=[r])
            w.close()
            reader = run_thread(read_to_end, r, size)
            time.sleep(chance.uniform(0.0, 0.03))
            victim.kill()
            writer.join()
            parts = reader.join()
            # All reads and writes are of one size, so each read is one record.
            assert {len(part) for part in parts} <= {size}
            numbers = numbers_of(1, list(records(b"".join(parts))))
            assert numbers == sorted(set(numbers))
            assert unread(r) == 0
