"""Watching and tuning connections: `multiprocessing.connection.wait`, the halves, the knobs."""

from __future__ import annotations

import multiprocessing
import os
import select
import selectors
import socket
import termios
from multiprocessing.connection import wait
from typing import Any

import pytest

import shmpipe

from .kinds import asleep
from .links import KiB, MiB, both_kinds, both_ways, fill_link, link_of, make_link, receive_all
from .support import eventually, run_child, run_process, run_thread

# ---------------------------------------------------------------- waiting for several at a time


@both_kinds
@both_ways
def test_wait(kind: str, duplex: bool) -> None:
    links = [make_link(kind, duplex) for _ in range(4)]
    receivers = [receiver for receiver, _ in links]
    assert wait([], 0) == []
    assert wait(receivers, 0) == []
    assert wait(receivers, timeout=0.01) == []
    waiting = run_thread(wait, receivers)
    asleep(waiting)
    links[2][1].send("x")
    assert waiting.join() == [receivers[2]]
    links[0][1].send("y")
    assert set(wait(receivers)) == {receivers[0], receivers[2]}
    assert receivers[2].recv() == "x"
    assert wait(receivers, -1) == [receivers[0]]
    links[3][1].close()
    assert set(wait(receivers, 0)) == {receivers[0], receivers[3]}
    assert receivers[0].recv() == "y"
    with pytest.raises(EOFError):
        receivers[3].recv()
    assert wait(receivers) == [receivers[3]]
    for ends in links:
        for end in ends:
            end.close()
    with pytest.raises(OSError, match="handle is closed"):
        wait(receivers[:1], 0)


@both_ways
def test_wait_with_everything_else_there_is(duplex: bool) -> None:
    left, right = socket.socketpair()
    read_fd, write_fd = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=int)
    with (
        left,
        right,
        link_of("shmpipe", duplex) as (ours, to_ours),
        link_of("stdlib", duplex) as (theirs, to_theirs),
        link_of("shmpipe") as (silent, _),
        shmpipe.pipe()[0] as end_of_pipe,
    ):
        assert wait([end_of_pipe], 0) == [end_of_pipe]  # nobody holds the other end
        everything = [ours, theirs, silent, left, read_fd]
        assert wait(everything, 0) == []
        process.start()
        process.join()
        assert wait([*everything, process.sentinel]) == [process.sentinel]
        ready = []
        for thing, make_ready in [
            (ours, lambda: to_ours.send(1)),
            (theirs, lambda: to_theirs.send(2)),
            (left, lambda: right.send(b"3")),
            (read_fd, lambda: os.write(write_fd, b"4")),
        ]:
            waiting = run_thread(wait, [thing, silent])
            asleep(waiting)
            make_ready()
            assert waiting.join() == [thing]
            ready.append(thing)
            assert set(wait(everything, 0)) == set(ready)
        assert (ours.recv(), theirs.recv(), left.recv(1)) == (1, 2, b"3")
        assert wait(everything, 0) == [read_fd]
    process.close()
    os.close(read_fd)
    os.close(write_fd)


@both_kinds
@both_ways
def test_wait_while_another_thread_receives(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender), link_of(kind) as (stop, stopper):
        seen = []

        def watch() -> None:
            while stop not in (ready := wait([receiver, stop])):
                seen.append(len(ready))

        watching = run_thread(watch)
        receiving = run_thread(receive_all, receiver)
        for _ in range(300):
            sender.send_bytes(b"x")
        eventually(lambda: not receiver.poll())
        asleep(watching, receiving)  # nothing to receive, so nothing may be reported
        stopper.send("stop")
        watching.join()
        sender.close()
        assert len(receiving.join()) == 300


@both_kinds
@both_ways
@pytest.mark.parametrize("size", [10, 200_000, 5 * MiB])
def test_loop_of_wait_and_receive_over_many_children(kind: str, duplex: bool, size: int) -> None:
    children, each = 6, 8

    def send(end: Any, number: int) -> None:
        for turn in range(each):
            end.send((number, turn, bytes(size)))

    def start(number: int) -> Any:
        receiver, sender = make_link(kind, duplex)
        senders.append(run_child(send, sender, number, close=[receiver]))
        sender.close()
        return receiver

    senders: list[Any] = []
    open_ends = {start(number): number for number in range(children)}
    found: dict[int, list[int]] = {number: [] for number in range(children)}
    while open_ends:
        for end in wait(list(open_ends)):
            try:
                number, turn, data = end.recv()
            except EOFError:
                del open_ends[end]
                end.close()
            else:
                assert data == bytes(size) and number == open_ends[end]
                found[number].append(turn)
    assert found == {number: list(range(each)) for number in range(children)}
    for child in senders:
        child.join()


@both_kinds
@pytest.mark.parametrize("poller", ["select", "poll", "epoll"])
def test_level_triggered_like_a_socket(kind: str, poller: str) -> None:
    make = {
        "select": selectors.SelectSelector,
        "poll": selectors.PollSelector,
        "epoll": selectors.EpollSelector,
    }[poller]
    with link_of(kind, False) as (receiver, sender), make() as selector:
        selector.register(receiver, selectors.EVENT_READ)
        assert selector.select(0) == []
        for count in (2, 1, 3):
            for _ in range(count):
                sender.send("x")
            for _ in range(count):
                assert len(selector.select(1)) == len(selector.select(0)) == 1
                receiver.recv()
            assert selector.select(0) == []
        sender.close()
        assert len(selector.select(1)) == len(selector.select(0)) == 1


# ---------------------------------------------------------------- the two halves


@both_ways
def test_halves(duplex: bool) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        assert receiver.incoming is not None and sender.outgoing is not None
        assert (receiver.outgoing is not None) is (sender.incoming is not None) is duplex
        sender.send_bytes(bytes(1000))
        for half in (receiver.incoming, sender.outgoing):
            stats = half.stats()
            assert 1000 <= stats.bytes_written <= 1016
            assert (stats.writes, stats.bytes_read, stats.frames_dropped) == (1, 0, 0)
            assert 1000 <= shmpipe.ioctl(half, termios.FIONREAD) <= 1016
        receiver.recv_bytes()
        assert sender.outgoing.stats().bytes_read == sender.outgoing.stats().bytes_written
        if duplex:
            assert sender.incoming.stats().bytes_written == 0
            receiver.send_bytes(b"x" * 50)
            assert sender.incoming.stats().writes == receiver.outgoing.stats().writes == 1
            assert shmpipe.ioctl(sender, termios.FIONREAD) == 0
            assert shmpipe.ioctl(receiver, termios.FIONREAD) >= 50


@both_ways
def test_knobs(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=128 * KiB, write_size=8192, max_size=MiB) as ends:
        receiver, sender = ends
        get, change = shmpipe.F_GETPIPE_SZ, shmpipe.F_SETPIPE_SZ
        for end in (*ends, receiver.incoming, sender.outgoing):
            assert shmpipe.fcntl(end, get) == 128 * KiB
            assert shmpipe.fcntl(end, shmpipe.F_GETPIPE_WRITE_SZ) == 8192
        assert shmpipe.fcntl(sender, change, 500 * KiB) == 512 * KiB
        assert shmpipe.fcntl(sender, shmpipe.F_SETPIPE_WRITE_SZ, 4096) == 4096
        # The connection stands for what it sends.
        assert shmpipe.fcntl(receiver.incoming, get) == 512 * KiB
        assert shmpipe.fcntl(receiver, get) == (128 if duplex else 512) * KiB
        assert sender.try_send_bytes(bytes(400 * KiB)) is True
        with pytest.raises(OSError):
            shmpipe.fcntl(receiver.incoming, change, 256 * KiB)
        assert receiver.recv_bytes() == bytes(400 * KiB)
        assert shmpipe.fcntl(receiver.incoming, change, 64 * KiB) == 64 * KiB
        with pytest.raises(PermissionError):
            shmpipe.fcntl(sender, change, 2 * MiB)
        with pytest.raises(OSError):
            shmpipe.fcntl(sender, 12345)
        with pytest.raises(OSError):
            shmpipe.ioctl(sender, termios.TIOCOUTQ)
        sender.close()
        for call in (
            lambda: shmpipe.fcntl(sender, get),
            lambda: shmpipe.ioctl(sender, termios.FIONREAD),
            lambda: sender.outgoing,
        ):
            with pytest.raises((OSError, ValueError), match="closed"):
                call()


def settings(end: Any) -> tuple[int, int]:
    return shmpipe.fcntl(end, shmpipe.F_GETPIPE_SZ), shmpipe.fcntl(end, shmpipe.F_GETPIPE_WRITE_SZ)


def test_settings_travel_with_the_end() -> None:
    with link_of("shmpipe", size=128 * KiB, write_size=16384) as (a, b):
        assert run_process("spawn", settings, b).join() == settings(a) == (128 * KiB, 16384)


def ready(fd: int, mask: int) -> bool:
    poller = select.poll()
    poller.register(fd, mask)
    return bool(poller.poll(0))


@both_ways
def test_outgoing_fileno_tells_when_a_send_would_not_block(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=64 * KiB, write_size=16 * KiB) as (receiver, sender):
        fd = sender.outgoing.fileno()
        assert ready(fd, select.POLLOUT)
        assert not ready(receiver.incoming.fileno(), select.POLLIN)
        count = fill_link(sender)
        assert not ready(fd, select.POLLOUT)
        assert ready(receiver.incoming.fileno(), select.POLLIN)
        assert receiver.fileno() == receiver.incoming.fileno()
        taken = 0
        while not ready(fd, select.POLLOUT):
            receiver.recv_bytes()
            taken += 1
        # Writable says that the write size is free.
        assert 15 <= taken <= 18
        sender.send_bytes(bytes(15 * KiB), timeout=0)
        for _ in range(count - taken):
            receiver.recv_bytes()
        assert receiver.recv_bytes() == bytes(15 * KiB)
        assert not ready(receiver.incoming.fileno(), select.POLLIN)
        receiver.close()
        assert ready(fd, select.POLLERR | select.POLLHUP | select.POLLOUT)


def test_repr() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        texts = {repr(receiver), repr(sender)}
        receiver.close()
        texts.add(repr(receiver))
        assert len(texts) == 3
        assert "closed" in repr(receiver) and "closed" not in repr(sender)


def test_closing_drops_only_this_process() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        child = run_child(receive_all, receiver, close=[sender])
        receiver.close()
        sender.send_bytes(b"still somebody there")
        sender.close()
        assert child.join() == [b"still somebody there"]
