"""Threads on one connection: frames whole and once, also beside forks."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import Any

import pytest

import shmpipe
from shmpipe.primitives import ThreadLock

from .links import SMALLEST, both_ways, check_message, link_of, message, numbers_of
from .support import run_child, run_thread

THREADS = 8
SIZE = 1 << 16


def size_of(chance: random.Random) -> int:
    return int(SMALLEST + chance.random() ** 6 * 3 * SIZE)


@pytest.mark.parametrize("spin", [0, None])
def test_eight_threads_send_and_receive_on_one_connection(spin: float | None) -> None:
    """Half of them send, half receive; at the other end another eight do the same."""
    count = 150

    def send(end: Any, who: int) -> None:
        chance = random.Random(who)
        for number in range(count):
            end.send_bytes(message(who, number, size_of(chance)))

    def receive(end: Any) -> list[tuple[int, int]]:
        return [check_message(end.recv_bytes()) for _ in range(count)]

    half = THREADS // 2
    with link_of("shmpipe", True, size=SIZE, spin=spin) as (a, b):
        receiving = [run_thread(receive, end) for end in (a, b) for _ in range(half)]
        sending = [run_thread(send, (a, b)[who // half], who) for who in range(2 * half)]
        for thread in sending:
            thread.join(60)
        found = [thread.join(60) for thread in receiving]
    for senders, parts in ((range(half), found[half:]), (range(half, 2 * half), found[:half])):
        everything = Counter(item for part in parts for item in part)
        assert everything == Counter((who, number) for who in senders for number in range(count))
        for part in parts:
            for who in senders:
                numbers = numbers_of(who, part)
                assert numbers == sorted(numbers), f"messages of {who} out of order"


@both_ways
@pytest.mark.parametrize("ring", [SIZE, 4096])
def test_forks_while_threads_send_and_receive(duplex: bool, ring: int) -> None:
    """A child is whole whatever the threads were in the middle of: it sends, or receives, too."""
    stop = False

    def send(who: int) -> int:
        chance = random.Random(who)
        number = 0
        while not stop:
            sender.send_bytes(message(who, number, size_of(chance)))
            number += 1
        return number

    def receive() -> list[tuple[int, int]]:
        found = []
        while (data := receiver.recv_bytes()) != b"stop":
            found.append(check_message(data))
        return found

    def child(number: int) -> list[tuple[int, int]]:
        if number % 2:
            sender.send_bytes(message(100, number, 3 * SIZE if number % 3 == 0 else 200))
            return []
        return [check_message(receiver.recv_bytes())]

    with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
        receiving = [run_thread(receive) for _ in range(THREADS // 2)]
        sending = [run_thread(send, who) for who in range(THREADS // 2)]
        found: list[tuple[int, int]] = []
        children = []
        for number in range(40):
            children.append(run_child(child, number))
            if number % 4 == 3:
                found += [item for one in children for item in one.join()]
                children.clear()
        stop = True
        sent = [thread.join() for thread in sending]
        for _ in receiving:
            sender.send_bytes(b"stop")
        for thread in receiving:
            found += thread.join()
    expected = [(who, number) for who, count in enumerate(sent) for number in range(count)]
    expected += [(100, number) for number in range(1, 40, 2)]
    assert Counter(found) == Counter(expected)


def test_a_child_closes_what_threads_of_its_parent_are_asleep_in() -> None:
    with link_of("shmpipe", True, size=SIZE, spin=0) as (a, b):
        while a.try_send_bytes(bytes(1000)):
            pass
        receiving, sending = run_thread(a.recv_bytes), run_thread(a.send_bytes, bytes(1000))
        for pause in (0.0, 0.1):
            for thread in (receiving, sending):
                thread.wait_asleep()
            time.sleep(pause)

            def close() -> int:
                a.close()
                b.close()
                return os.getpid()

            run_child(close).join()
            assert receiving.alive() and sending.alive()
        b.send_bytes(b"there")
        assert receiving.join() == b"there"
        while b.poll(0.2):
            b.recv_bytes()
        sending.join()


def test_a_thread_that_takes_the_lock_again_and_again_lets_others_in() -> None:
    """It tries without waiting, and lets others run only while it has the lock."""
    for _ in range(60):
        with link_of("shmpipe", False, size=SIZE) as (receiver, sender):
            sending = run_thread(sender.send_bytes, bytes(5 << 20))
            while receiver.try_recv_bytes() is None:
                pass
            sending.join()


@pytest.mark.skipif(shmpipe.engine == "pure", reason="the lock is Python's own there")
def test_a_lock_is_promised_to_who_waits_for_it() -> None:
    lock = ThreadLock()
    assert lock.acquire(False)
    waiting = run_thread(lock.acquire, True, 30.0)
    waiting.wait_asleep()
    lock.release()
    assert not lock.acquire(False)
    assert waiting.join() is True


@pytest.mark.skipif(shmpipe.engine == "pure", reason="the lock is Python's own there")
def test_a_lock_whose_waiter_has_given_up_is_free() -> None:
    lock = ThreadLock()
    for _ in range(100):
        assert lock.acquire(False)
        waiting = run_thread(lock.acquire, True, 0.001)
        time.sleep(0.001)
        lock.release()
        if waiting.join():
            lock.release()  # (compiled, it does not ask which thread it is)
        assert lock.acquire(True, 1.0)
        lock.release()
