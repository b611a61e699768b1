"""Messages that are cut off in the middle: the sender or the receiver is killed.

A message larger than the ring goes through it in parts, so its sender is stopped for certain in
the middle of it as soon as nobody reads on. What is told apart: a message is there whole, or never.
"""

from __future__ import annotations

import random
import select
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from .kinds import asleep
from .links import (
    KiB,
    MiB,
    both_ways,
    check_message,
    link_of,
    message,
    numbered,
    numbers_of,
    receive_all,
    waiting_its_turn,
)
from .support import Child, Flag, eventually, run_child, run_thread, task_state

RING = 64 * KiB
LARGE = 5 * MiB
both_sizes = pytest.mark.parametrize("ring", [RING, MiB])


def freeze(child: Child) -> None:
    child.kill(signal.SIGSTOP)
    eventually(lambda: (task_state(child.pid, child.pid) or " ")[0] == "T")


def thaw(child: Child) -> None:
    child.kill(signal.SIGCONT)


def kill_frozen(child: Child) -> None:
    child.kill(signal.SIGKILL)


def hold(*_: Any) -> None:
    """Do nothing with whatever was inherited."""
    signal.pause()


def sending_half_way(sender: Any, receiver: Any, size: int = LARGE, before: int = 0) -> Child:
    """A child which has sent the first part of a large message, and some whole ones before it."""

    def send() -> None:
        for number in range(before):
            sender.send_bytes(numbered(number, 100))
        sender.send_bytes(message(1, 0, size))

    child = run_child(send, close=[receiver])
    asleep(child)
    return child


# ---------------------------------------------------------------- the only sender is killed


@both_ways
@both_sizes
@pytest.mark.parametrize("before", [0, 3])
def test_only_sender_killed_before_anybody_reads(duplex: bool, ring: int, before: int) -> None:
    with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
        victim = sending_half_way(sender, receiver, before=before)
        sender.close()
        victim.kill()
        assert [receiver.recv_bytes() for _ in range(before)] == [
            numbered(number, 100) for number in range(before)
        ]
        for _ in range(2):
            with pytest.raises(EOFError):
                receiver.recv_bytes()


@both_ways
@pytest.mark.parametrize("waits", [False, True], ids=["receives later", "waits already"])
def test_message_cut_off_by_end_of_file_is_counted(duplex: bool, waits: bool) -> None:
    with link_of("shmpipe", duplex, size=RING) as (receiver, sender):
        victim = sending_half_way(sender, receiver)
        sender.close()
        freeze(victim)
        receiving = run_thread(receive_all, receiver) if waits else None
        if waits:
            eventually(lambda: receiver.incoming.stats().bytes_read >= RING // 2)
        kill_frozen(victim)
        assert (receiving or run_thread(receive_all, receiver)).join() == []
        assert receive_all(receiver) == []
        assert receiver.incoming.stats().frames_dropped == 1


@both_ways
@both_sizes
@pytest.mark.parametrize("call", ["recv", "recv_bytes", "recv_bytes_into", "recv_many", "timeout"])
def test_only_sender_killed_in_front_of_a_waiting_receiver(
    duplex: bool, ring: int, call: str
) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "recv": lambda: receiver.recv(),
        "recv_bytes": lambda: receiver.recv_bytes(),
        "recv_bytes_into": lambda: receiver.recv_bytes_into(bytearray(LARGE)),
        "recv_many": lambda: receiver.recv_many(),
        "timeout": lambda: receiver.recv(timeout=60),
    }
    with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
        victim = sending_half_way(sender, receiver)
        sender.close()
        freeze(victim)
        receiving = run_thread(calls[call])
        # It has taken all there was, the ring is empty.
        eventually(lambda: receiver.incoming.stats().bytes_read >= ring // 2)
        kill_frozen(victim)
        with pytest.raises(EOFError):
            receiving.join()
        assert receiver.poll()


@both_ways
def test_iteration_ends_when_the_only_sender_is_killed(duplex: bool) -> None:
    def send() -> None:
        sender.send_many(range(5))
        sender.send(bytes(LARGE))

    with link_of("shmpipe", duplex, size=RING) as (receiver, sender):
        victim = run_child(send, close=[receiver])
        sender.close()
        asleep(victim)
        freeze(victim)
        iterating = run_thread(lambda: list(receiver))
        eventually(lambda: receiver.incoming.stats().reads >= 5)
        kill_frozen(victim)
        assert iterating.join() == list(range(5))


# ---------------------------------------------------------------- another sender is left


def after_a_large_one(sender: Any, go: Flag) -> None:
    go.wait()
    for number in range(5):
        sender.send_bytes(message(2, number, 1000))
    sender.send_bytes(message(2, 5, LARGE))
    sender.send_bytes(message(2, 6, 100))


@both_ways
@both_sizes
@pytest.mark.parametrize("read_first", [False, True], ids=["unread", "half read"])
@pytest.mark.parametrize("when", ["waits already", "sends later"])
def test_other_senders_messages_arrive(
    duplex: bool, ring: int, read_first: bool, when: str
) -> None:
    with link_of("shmpipe", duplex, size=ring) as (receiver, sender), Flag() as go:
        survivor = run_child(after_a_large_one, sender, go, close=[receiver])
        victim = sending_half_way(sender, receiver, before=2)
        sender.close()
        freeze(victim)
        receiving = None
        if when == "waits already":
            go.set()
            waiting_its_turn(survivor)
        if read_first:
            receiving = run_thread(receive_all, receiver)
            eventually(lambda: receiver.incoming.stats().bytes_read >= ring // 2)
        kill_frozen(victim)
        go.set()
        found = (receiving or run_thread(receive_all, receiver)).join()
        survivor.join()
        assert found[:2] == [numbered(0, 100), numbered(1, 100)]
        assert [check_message(data) for data in found[2:]] == [(2, n) for n in range(7)]
        assert receiver.incoming.stats().frames_dropped == 1


@both_ways
def test_one_after_another_is_killed(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=RING) as (receiver, sender):
        for number in range(5):
            victim = sending_half_way(sender, receiver)
            victim.kill()
            child = run_child(sender.send_bytes, message(2, number, LARGE), close=[receiver])
            assert check_message(receiver.recv_bytes()) == (2, number)
            child.join()
        assert receiver.incoming.stats().frames_dropped == 5
        assert not receiver.poll()


@both_ways
def test_nothing_is_ready_but_the_rest_of_a_dead_message(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=RING) as (receiver, sender):
        sending_half_way(sender, receiver).kill()
        # Somebody can still send, so this is no end of file; and there is nothing to receive.
        for call in (receiver.recv, receiver.recv_bytes):
            with pytest.raises(TimeoutError):
                call(timeout=0.2)
        assert receiver.try_recv_bytes() is None
        assert not receiver.poll()
        sender.send("next")
        assert receiver.recv() == "next"


def send_for_ever(sender: Any, who: int, seed: int) -> None:
    chance = random.Random(seed)
    number = 0
    while True:
        size = chance.choice((100, 1000, 30_000, 150_000, 600_000))
        sender.send_bytes(message(who, number, size))
        number += 1


def send_some(sender: Any, who: int, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        sender.send_bytes(message(who, number, chance.choice((100, 5000, 100_000, 300_000))))


@pytest.mark.slow
@both_ways
@both_sizes
def test_sender_killed_at_work(duplex: bool, ring: int) -> None:
    chance = random.Random(ring)
    for seed in range(12):
        with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
            receiving = run_thread(receive_all, receiver)
            victim = run_child(send_for_ever, sender, 1, seed, close=[receiver])
            survivor = run_child(send_some, sender, 2, 15, -seed, close=[receiver])
            sender.close()
            time.sleep(chance.uniform(0.0, 0.05))
            victim.kill()
            survivor.join()
            found = [check_message(data) for data in receiving.join()]
            assert numbers_of(2, found) == list(range(15))
            lives = numbers_of(1, found)
            assert lives == list(range(len(lives)))
            assert receiver.incoming.stats().frames_dropped <= 1


# ---------------------------------------------------------------- a receiver is killed


@both_ways
@both_sizes
def test_only_receiver_killed_half_way(duplex: bool, ring: int) -> None:
    with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
        sending = run_thread(sender.send_bytes, message(1, 0, LARGE))
        asleep(sending)
        victim = run_child(hold, close=[sender])
        receiver.close()
        victim.kill()
        with pytest.raises(BrokenPipeError):
            sending.join()
        with pytest.raises(BrokenPipeError):
            sender.send("x")


def join_sender(sending: Child, receiving: Child) -> None:
    """Join the sender; if the receiver ends before it, that one says what is wrong."""
    if sending not in select.select([sending, receiving], [], [], 30)[0]:
        receiving.join(1)
    sending.join(1)


@both_ways
@both_sizes
@pytest.mark.parametrize("waits", [False, True], ids=["receives later", "waits already"])
def test_other_receiver_gets_whole_messages(duplex: bool, ring: int, waits: bool) -> None:
    def send() -> None:
        sender.send_bytes(message(1, 0, LARGE))
        for number in range(1, 4):
            sender.send_bytes(message(1, number, 1000))
        sender.send_bytes(message(1, 4, LARGE))

    with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
        sending = run_child(send, close=[receiver])
        asleep(sending)
        freeze(sending)
        survivor = None
        taken = receiver.incoming.stats().bytes_read
        victim = run_child(receiver.recv_bytes, close=[sender])
        eventually(lambda: receiver.incoming.stats().bytes_read >= taken + ring // 2)
        if waits:
            survivor = run_child(receive_all, receiver, close=[sender])
            waiting_its_turn(survivor)
        victim.kill()
        if survivor is None:
            survivor = run_child(receive_all, receiver, close=[sender])
        sender.close()
        thaw(sending)
        join_sender(sending, survivor)
        found = [check_message(data) for data in survivor.join()]
        # The first one was half taken by the victim, so it is gone.
        assert found == [(1, number) for number in range(1, 5)]


def receive_for_ever(receiver: Any) -> None:
    while True:
        check_message(receiver.recv_bytes())


@pytest.mark.slow
@both_ways
@both_sizes
def test_receiver_killed_at_work(duplex: bool, ring: int) -> None:
    chance = random.Random(ring)
    for seed in range(12):
        with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
            victim = run_child(receive_for_ever, receiver, close=[sender])
            survivor = run_child(receive_all, receiver, close=[sender])
            senders = [
                run_child(send_some, sender, who, 20, seed * 10 + who, close=[receiver])
                for who in range(2)
            ]
            sender.close()
            time.sleep(chance.uniform(0.0, 0.05))
            victim.kill()
            for child in senders:
                join_sender(child, survivor)
            found = [check_message(data) for data in survivor.join()]
            for who in range(2):
                numbers = numbers_of(who, found)
                # What the victim took is missing; the rest is there once, and in order.
                assert numbers == sorted(set(numbers))
            assert receiver.incoming.stats().bytes_read == receiver.incoming.stats().bytes_written
