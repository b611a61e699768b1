"""Many senders and receivers on one link: whole messages, none lost, none twice.

The standard library tears messages here, so nothing of this can be proved with it; that a torn,
lost or doubled message would be noticed is tested first.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from .kinds import start
from .links import (
    SMALLEST,
    KiB,
    MiB,
    both_ways,
    check_message,
    link_of,
    message,
    numbers_of,
    receive_all,
)
from .support import run_child, run_process, run_thread

Found = list[tuple[int, int]]


def sizes(who: int, count: int, largest: int) -> list[int]:
    """Sizes of one sender's messages, from the smallest to the largest, all orders of magnitude."""
    chance = random.Random(who)
    span = numpy.log(largest / SMALLEST)
    return [int(SMALLEST * numpy.exp(chance.random() * span)) for _ in range(count - 1)] + [largest]


def send_messages(end: Any, who: int, count: int, largest: int, how: str = "send_bytes") -> None:
    for number, size in enumerate(sizes(who, count, largest)):
        data = message(who, number, size)
        if how == "send_bytes":
            end.send_bytes(data)
        elif how == "send":
            end.send(numpy.frombuffer(data, numpy.uint8))
        else:
            while not end.try_send_bytes(data):
                pass


def receive_messages(end: Any, how: str = "recv_bytes") -> Found:
    found = []
    buffer = bytearray(8 * MiB)
    while True:
        try:
            if how == "recv_bytes":
                data: Any = end.recv_bytes()
            elif how == "recv":
                data = end.recv().tobytes()
            else:
                data = memoryview(buffer)[: end.recv_bytes_into(buffer)]
        except EOFError:
            return found
        found.append(check_message(data))


def check_all(parts: list[Found], senders: int, count: int) -> None:
    everything = Counter(item for part in parts for item in part)
    assert everything == Counter((who, number) for who in range(senders) for number in range(count))
    for part in parts:
        for who in range(senders):
            numbers = numbers_of(who, part)
            assert numbers == sorted(numbers), f"messages of {who} out of order"


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda data: data[:-1], "came as"),
        (lambda data: data[:10], "torn"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged"),
        (lambda data: data[:30] + message(2, 0, len(data))[30:], "damaged"),
    ],
)
def test_check_notices(spoil: Callable[[bytes], bytes], complaint: str) -> None:
    good = message(1, 0, 1000)
    assert check_message(good) == (1, 0)
    with pytest.raises(AssertionError, match=complaint):
        check_message(spoil(good))
    with pytest.raises(AssertionError):
        check_all([[(0, 0), (0, 0)]], 1, 1)
    with pytest.raises(AssertionError):
        check_all([[(0, 0)]], 1, 2)
    with pytest.raises(AssertionError):
        check_all([[(0, 1), (0, 0)]], 1, 2)


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize("size", [64 * KiB, MiB])
@pytest.mark.parametrize(
    ("sending", "receiving"),
    [("send_bytes", "recv_bytes"), ("send", "recv"), ("send_bytes", "recv_bytes_into")],
)
def test_eight_senders_and_four_receivers(
    duplex: bool, size: int, sending: str, receiving: str
) -> None:
    senders, receivers, count = 8, 4, 12
    with link_of("shmpipe", duplex, size=size) as (receiver, sender):
        # Half of each are threads of this process.
        receiving_ones = [
            start(how, receive_messages, receiver, receiving, close=[sender])
            for how in ("child", "thread") * (receivers // 2)
        ]
        sending_ones = [
            start(how, send_messages, sender, who, count, 5 * MiB, sending, close=[receiver])
            for who, how in enumerate(("child", "thread") * (senders // 2))
        ]
        for one in sending_ones:
            one.join(60)
        sender.close()
        check_all([one.join(60) for one in receiving_ones], senders, count)


@both_ways
@pytest.mark.parametrize("largest", [10 + SMALLEST, 3000])
def test_small_messages_of_a_crowd(duplex: bool, largest: int) -> None:
    count = 300
    with link_of("shmpipe", duplex, size=16 * KiB) as (receiver, sender):
        receivers = [run_child(receive_messages, receiver, close=[sender]) for _ in range(3)]
        senders = [
            run_child(send_messages, sender, who, count, largest, close=[receiver])
            for who in range(4)
        ]
        for one in senders:
            one.join()
        sender.close()
        check_all([one.join() for one in receivers], 4, count)


@both_ways
def test_large_and_small_senders_do_not_mix(duplex: bool) -> None:
    """One streams messages larger than the ring, others send, or try to, what fits at once."""
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        senders = [
            run_child(send_messages, sender, 0, 10, 5 * MiB, close=[receiver]),
            run_child(send_messages, sender, 1, 400, 100, close=[receiver]),
            run_child(send_messages, sender, 2, 400, 20_000, "try", close=[receiver]),
        ]
        sender.close()
        found = receive_messages(receiver)
        for one in senders:
            one.join()
    assert [numbers_of(who, found) for who in range(3)] == [
        list(range(count)) for count in (10, 400, 400)
    ]


def both_directions(end: Any, me: int, count: int, largest: int) -> Found:
    """Send, and meanwhile receive what two senders at the other end send."""
    sending = run_thread(send_messages, end, me, count, largest)
    found = [check_message(end.recv_bytes()) for _ in range(2 * count)]
    sending.join()
    return found


@pytest.mark.slow
def test_both_directions_at_a_time() -> None:
    count = 15
    with link_of("shmpipe", size=64 * KiB) as (a, b):
        both = [run_child(both_directions, end, who, count, MiB) for who, end in enumerate((a, b))]
        senders = [run_child(send_messages, end, who, count, MiB) for who, end in ((2, a), (3, b))]
        for one in senders:
            one.join()
        from_b, from_a = (child.join() for child in both)
    for found, expected in ((from_b, (1, 3)), (from_a, (0, 2))):
        assert Counter(found) == Counter((who, n) for who in expected for n in range(count))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_crowd_of_started_processes(method: str) -> None:
    count, largest = 10, 5 * MiB
    with link_of("shmpipe", False) as (receiver, sender):
        receivers = [run_process(method, receive_messages, receiver) for _ in range(2)]
        senders = [
            run_process(method, send_messages, sender, who, count, largest) for who in range(2)
        ]
        senders.append(run_thread(send_messages, sender, 2, count, largest))
        receiver.close()
        for one in senders:
            one.join()
        sender.close()
        check_all([one.join() for one in receivers], 3, count)


@both_ways
def test_batches_of_a_crowd(duplex: bool) -> None:
    def send(who: int) -> None:
        sender.send_many((who, number, "x" * (number % 200)) for number in range(500))

    def receive() -> list[Any]:
        found = []
        while True:
            try:
                found += receiver.recv_many(20)
            except EOFError:
                return found

    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        receivers = [run_child(receive, close=[sender]) for _ in range(2)]
        receivers.append(run_child(lambda: list(receiver), close=[sender]))
        senders = [run_child(send, who, close=[receiver]) for who in range(3)]
        for one in senders:
            one.join()
        sender.close()
        parts = [[item[:2] for item in one.join()] for one in receivers]
    check_all(parts, 3, 500)


@both_ways
def test_crowd_of_threads(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        receivers = [run_thread(receive_messages, receiver) for _ in range(3)]
        senders = [run_thread(send_messages, sender, who, 40, 200_000) for who in range(3)]
        for one in senders:
            one.join()
        sender.close()
        check_all([one.join() for one in receivers], 3, 40)
        assert receive_all(receiver) == []


@pytest.mark.slow
@pytest.mark.parametrize("side", ["sending", "receiving"])
def test_threads_wait_long_for_their_turn(side: str) -> None:
    """Longer than it takes until somebody looks whether the one whose turn it is still lives."""
    threads, count, size = 16, 12, 5 * MiB
    total = count * threads
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):

        def send(who: int) -> None:
            for number in range(each_sends):
                sender.send_bytes(message(who, number, size))

        each_sends = count if side == "sending" else total
        if side == "sending":
            receivers = [run_child(receive_messages, receiver, close=[sender])]
            senders = [run_thread(send, who) for who in range(threads)]
        else:
            senders = [run_child(send, 0, close=[receiver])]
            receivers = [run_thread(receive_messages, receiver) for _ in range(threads)]
            sender.close()
        for each in senders:
            each.join(50)
        sender.close()
        check_all([each.join(50) for each in receivers], total // each_sends, each_sends)
