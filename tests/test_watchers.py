"""Event loops on both ends, between processes, for as long as it takes to lose an edge."""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import multiprocessing.connection
import random
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import shmpipe
from shmpipe.segment import WR_WANT

from .kinds import asleep, both_kinds, fill, make_pipe, page, pipe_of, set_nonblocking
from .pollers import by_poll
from .records import numbers_of, record, records
from .streams import (
    BLOB,
    LOST,
    expected_digest,
    now_and_then,
    pausing_reader,
    pausing_writer,
)
from .support import PAGE, START_METHODS, run_child, run_process, run_thread
from .tasks import eventually

# ---------------------------------------------------------------- readers


def read_until_blocked(r: Any, digest: Any) -> bool:
    """Whether end of file was reached."""
    while (data := r.read(10000)) is not None:
        if not data:
            return True
        digest.update(data)
    return False


def read_by_epoll(r: Any, flags: int) -> str:
    digest = hashlib.sha1()
    with select.epoll() as poller:
        poller.register(r, select.EPOLLIN | flags)
        while True:
            assert poller.poll(LOST), "an edge was lost"
            if read_until_blocked(r, digest):
                return digest.hexdigest()


def read_by_epoll_edge(r: Any) -> str:
    return read_by_epoll(r, select.EPOLLET)


def read_by_epoll_level(r: Any) -> str:
    return read_by_epoll(r, 0)


def read_by_level_in_sips(r: Any) -> str:
    """One read for each event: the level has to stay up while anything is left."""
    digest = hashlib.sha1()
    with selectors.DefaultSelector() as selector:
        selector.register(r, selectors.EVENT_READ)
        while True:
            assert selector.select(LOST), "readiness was lost"
            data = r.read(3000)
            if data == b"":
                return digest.hexdigest()
            # None would be spurious; that is allowed, though not often.
            digest.update(data or b"")


def read_by_asyncio(r: Any) -> str:
    digest = hashlib.sha1()

    async def read() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        busy = asyncio.Event()

        def ready() -> None:
            busy.set()
            if read_until_blocked(r, digest):
                done.set()

        loop.add_reader(r, ready)
        while not done.is_set():
            busy.clear()
            await asyncio.wait_for(busy.wait(), LOST)
        loop.remove_reader(r)

    asyncio.run(read())
    return digest.hexdigest()


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize(
    "read",
    [read_by_epoll_edge, read_by_epoll_level, read_by_level_in_sips, read_by_asyncio],
    ids=lambda read: read.__name__,
)
@pytest.mark.parametrize("pages", [1, 16])
def test_reader_gets_every_byte_of_a_pausing_writer(
    kind: str, read: Callable[[Any], str], pages: int
) -> None:
    total = 2_000_000
    with pipe_of(kind, pages) as (r, w):
        set_nonblocking(r)
        writer = run_child(pausing_writer, w, total, pages, close=[r])
        w.close()
        assert read(r) == expected_digest(total)
        writer.join()


# ---------------------------------------------------------------- several at once


@both_kinds
@pytest.mark.parametrize("method", START_METHODS)
def test_watcher_in_another_process_sleeps_and_wakes(kind: str, method: str) -> None:
    with pipe_of(kind, 1) as (r, w):
        watcher = run_process(method, by_poll, r, False, LOST)
        asleep(watcher)
        w.write(b"x")
        assert watcher.join()
        assert r.read(1) == b"x"
        fill(w, 1)
        watcher = run_process(method, by_poll, w, True, LOST)
        asleep(watcher)
        r.read(PAGE)
        assert watcher.join()


@both_kinds
def test_one_thread_reads_while_another_watches(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        stop = threading.Event()

        def watch() -> int:
            count = 0
            while not stop.is_set():
                count += by_poll(r, False, 0.005)
            return count

        def read() -> int:
            total = 0
            while data := r.read(1000):
                total += len(data)
            return total

        def write() -> None:
            chance = random.Random(3)
            for _ in range(300):
                w.write(bytes(chance.randrange(1, 5000)))
                if chance.random() < 0.05:
                    time.sleep(0.002)

        watcher, reader = run_thread(watch), run_thread(read)
        writer = run_child(write, close=[r])
        writer.join()
        asleep(reader)
        # All is read: whatever the two did to each other, the level is right again.
        assert not by_poll(r, False)
        w.write(b"x")
        asleep(reader)
        assert not by_poll(r, False)
        w.close()
        assert reader.join() > 0
        assert by_poll(r, False)
        stop.set()
        watcher.join()


@both_kinds
def test_one_thread_writes_while_another_watches(kind: str) -> None:
    with pipe_of(kind, 2) as (r, w):
        stop = threading.Event()

        def watch() -> int:
            count = 0
            while not stop.is_set():
                count += by_poll(w, True, 0.005)
            return count

        watcher = run_thread(watch)
        reader = run_child(pausing_reader, r, 5, close=[w])
        writer = run_thread(lambda: [w.write(BLOB[:size]) for size in (4096, 300_000, 20_000)])
        assert writer.join() == [4096, 300_000, 20_000]
        assert by_poll(w, True, LOST)
        stop.set()
        watcher.join()
        r.close()
        w.close()
        reader.join()


@both_kinds
def test_wait_takes_pipes_sockets_connections_and_sentinels_together(kind: str) -> None:
    left, right = socket.socketpair()
    connection, other = multiprocessing.Pipe()
    stay = multiprocessing.get_context("fork").Event()
    process = multiprocessing.get_context("fork").Process(target=stay.wait)
    process.start()
    with pipe_of(kind) as (r, w), left, right, connection, other:
        everything = [r, left, connection, process.sentinel]
        wait = multiprocessing.connection.wait
        assert wait(everything, 0) == []
        w.write(b"x")
        assert wait(everything, 0) == [r]
        right.send(b"x")
        assert wait(everything, 0) == [r, left]
        r.read(1)
        assert wait(everything, 0) == [left]
        other.send(1)
        w.write(b"x")
        assert wait(everything, 0) == [r, left, connection]
        assert r.read(5) == b"x"
        left.recv(1)
        connection.recv()
        waiter = run_thread(wait, everything)
        asleep(waiter)
        w.write(b"y")
        assert waiter.join() == [r]
        r.read(1)
        waiter = run_thread(wait, everything)
        asleep(waiter)
        stay.set()
        assert waiter.join() == [process.sentinel]
        process.join()
        w.close()
        assert wait(everything, 0) == [r, process.sentinel]
    process.close()


@both_kinds
def test_many_pipes_in_one_selector(kind: str) -> None:
    pipes = [make_pipe(kind, 1) for _ in range(50)]
    chance = random.Random(9)
    with selectors.DefaultSelector() as readers, selectors.DefaultSelector() as writers:
        for number, (r, w) in enumerate(pipes):
            readers.register(r, selectors.EVENT_READ, number)
            writers.register(w, selectors.EVENT_WRITE, number)
        full: set[int] = set()
        for _ in range(60):
            for number in chance.sample(range(50), 5):
                r, w = pipes[number]
                if number in full:
                    r.read(PAGE)
                else:
                    w.write(page(number))
                full ^= {number}
            assert {key.data for key, _ in readers.select(0)} == full
            assert {key.data for key, _ in writers.select(0)} == set(range(50)) - full
    for ends in pipes:
        for end in ends:
            end.close()


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("pages", [1, 16])
def test_several_watching_processes_share_each_end(kind: str, pages: int) -> None:
    size, count = 512, 1500

    def write(who: int) -> None:
        for number in range(count):
            data = record(who, number, size)
            while w.write(data) is None:
                assert by_poll(w, True, LOST), "readiness was lost"

    def read(seed: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        chance = random.Random(seed)
        while True:
            assert by_poll(r, False, LOST), "readiness was lost"
            data = r.read(size * chance.choice([1, 3, 100]))
            if data == b"":
                return found
            # None: another one was quicker.
            found += records(data or b"")
            now_and_then(chance)

    r, w = make_pipe(kind, pages, nonblocking=True)
    with r, w:
        r.fileno(), w.fileno()
        readers = [run_child(read, seed, close=[w]) for seed in range(3)]
        writers = [run_child(write, who, close=[r]) for who in range(3)]
        w.close()
        r.close()
        for writer in writers:
            writer.join()
        found = [reader.join() for reader in readers]
    for who in range(3):
        for part in found:
            assert numbers_of(who, part) == sorted(numbers_of(who, part))
        everything = sorted(number for part in found for number in numbers_of(who, part))
        assert everything == list(range(count))


def test_a_killed_sender_wants_no_space() -> None:
    """It waited for more than the write size: so much was still waited for on its behalf."""
    receiver, sender = shmpipe.Pipe(duplex=False, size=2 * PAGE, write_size=PAGE)
    with receiver, sender:
        for _ in range(2):
            sender.send_bytes(bytes(PAGE - 8))
        child = run_child(sender.send_bytes, bytes(2 * PAGE - 8))
        words = sender._sender.ring.view
        eventually(lambda: words[WR_WANT])
        child.kill()
        poller = select.poll()
        poller.register(sender.outgoing, select.POLLOUT)
        assert not poller.poll(0)
        receiver.recv_bytes()
        assert poller.poll(2000)


# ---------------------------------------------------------------- select, then receive


def put_when_told(put: Callable[[bytes], Any], told: Any, data: bytes, rounds: int) -> None:
    for _ in range(rounds):
        put(data)
        assert told.read(1)


def readiness_left(
    r: Any, w: Any, put: Any, take: Callable[[], int], size: int, rounds: int
) -> int:
    """How often the reading end is shown ready although all that was put has been taken.

    (Before writers looked once more before they rang, some of these rounds did that.)
    """
    with pipe_of("kernel") as (told, tell):
        child = run_child(put_when_told, put, told, b"x" * size, rounds)
        w.close()
        poller = select.poll()  # (fileno() itself would take a readiness too many back)
        poller.register(r, select.POLLIN)
        left = 0
        for _ in range(rounds):
            got = 0
            while got < size:
                got += take()
            left += bool(poller.poll(0.1))
            tell.write(b"x")
        child.join()
    return left


@both_kinds
@pytest.mark.parametrize("size", [1, PAGE])
def test_a_read_that_took_all_leaves_no_readiness(kind: str, size: int) -> None:
    """Whoever selected, and then read, would be left there: the writer had rung for the bytes when
    a reader that was not asleep had taken them.
    """
    with pipe_of(kind) as (r, w):
        assert readiness_left(r, w, w.write, lambda: len(r.read(PAGE)), size, 1500) == 0


@pytest.mark.parametrize("size", [1, 1 << 16, 1 << 20])
def test_a_receive_that_took_all_leaves_no_readiness(size: int) -> None:
    """As above.  An executor's manager receives when multiprocessing.connection.wait() says so, and
    nobody sent it anything: the wake for the next task was in another pipe.
    """
    r, w = shmpipe.Pipe(False, size=1 << 20)

    def take() -> int:
        data = r.recv_bytes()
        assert len(data) == size
        return len(data)

    with r, w:
        rounds = 1500 if size < 1 << 20 else 200
        assert readiness_left(r, w, w.send_bytes, take, size, rounds) == 0
