"""Walks on ``Pipe()``: messages that fit, that wait, and that go in parts."""

from __future__ import annotations

import errno
import select
import time
from collections.abc import Callable
from typing import Any

import shmpipe

from .actors import Hand, Run
from .content import Torn, check, content
from .walks import Walk

PAGE = 4096
PATIENCE = 0.03  # seconds that a message is offered where it may be refused


def send(hand: Hand, size: int, how: Callable[..., Any] | None = None) -> bool:
    """Send one message until it is sent; False: nobody can receive it any more."""
    end = hand.ends["end"]
    number = hand.take_numbers()
    data = content(hand.who, number, size)
    hand.log("begin", hand.who, number, 1)
    limit = hand.timeout
    while True:
        try:
            hand.timed(how or end.send_bytes, data, timeout=limit)
            break
        except TimeoutError:
            hand.log("again")
            # On a busy machine what is short may be too short for a large message, every time.
            limit = limit and min(2 * limit, 1.0)
        except BrokenPipeError:
            hand.log("broken")
            return False
    hand.log("sent", hand.who, number, 1)
    hand.pause()
    return True


def offer(hand: Hand, size: int, seconds: float) -> bool:
    """Offer one message for so long; False: nobody can receive it any more."""
    number = hand.take_numbers()
    hand.log("begin", hand.who, number, 1)
    try:
        hand.timed(hand.ends["end"].send_bytes, content(hand.who, number, size), timeout=seconds)
        hand.log("sent", hand.who, number, 1)
    except TimeoutError:
        hand.log("refused", hand.who, number)
    except BrokenPipeError:
        hand.log("broken")
        return False
    return True


def receive(hand: Hand, how: Callable[..., Any] | None = None) -> bool:
    """Receive one message; False: that was the end."""
    while True:
        try:
            data = hand.timed(how or hand.ends["end"].recv_bytes)
            break
        except TimeoutError:
            pass
        except EOFError:
            hand.log("eof")
            return False
    took(hand, data)
    hand.pause()
    return True


def took(hand: Hand, data: Any) -> None:
    try:
        hand.log("got", *check(data))
    except Torn as error:
        hand.log("torn", str(error))


def tune(hand: Hand, end: Any, command: int, arg: int) -> None:
    try:
        hand.insist(shmpipe.fcntl, end, command, arg)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EINVAL):
            raise


class Messages(Walk):
    """Messages that fit the ring, and some that are larger."""

    name = "messages"
    size = 2 * PAGE
    sizes: tuple[int, ...] = (100, 20_000, 3000, 12_000)
    options: dict[str, Any] = {"spin": 0}  # noqa: RUF012

    def make(self, run: Run) -> tuple[Any, Any, Any]:
        reader, writer = shmpipe.Pipe(False, size=self.size, **self.options)
        return reader, writer, reader.incoming._side.ring.view

    def write(self, hand: Hand) -> None:
        for size in self.sizes:
            if not self.send(hand, size):
                return
        while self.endless and self.send(hand, 500):
            pass
        hand.log("done")

    def read(self, hand: Hand) -> None:
        if self.endless:
            for _ in self.sizes:
                self.receive(hand)
            hand.log("enough")
            return
        while self.receive(hand):
            pass

    def send(self, hand: Hand, size: int) -> bool:
        return send(hand, size)

    def receive(self, hand: Hand) -> bool:
        return receive(hand)


class Brief(Messages):
    """Calls so short that whoever waits is always on its semaphore."""

    name = "brief"

    def make(self, run: Run) -> tuple[Any, Any, Any]:
        run.timeout = 0.015
        return super().make(run)


class Stepped(Messages):
    """Messages that are sent in steps, between which others have their turn."""

    name = "stepped"

    def send(self, hand: Hand, size: int) -> bool:
        end = hand.ends["end"]

        def in_steps(data: bytes, timeout: float | None) -> None:
            until = None if timeout is None else time.monotonic() + timeout
            with end.begin_send_bytes(data) as sending:
                while not sending.step():
                    if until is not None and time.monotonic() >= until:
                        raise TimeoutError
                    poller = select.poll()
                    poller.register(hand.insist(end.outgoing.fileno), select.POLLOUT)
                    poller.poll(20 if timeout is None else min(20, timeout * 1000))

        return send(hand, size, in_steps)


class HastyStepped(Stepped):
    """The same, with too little time for what is large, so that it is given up in the middle."""

    name = "hasty-stepped"
    sizes = (20_000, 100, 20_000)

    def make(self, run: Run) -> tuple[Any, Any, Any]:
        run.timeout = 0.02
        return super().make(run)

    def read(self, hand: Hand) -> None:
        hand.pause(0.1)
        super().read(hand)


class Large(Messages):
    """None that fits the ring."""

    name = "large"
    sizes = (20_000, 12_000)


class Growing(Messages):
    """A ring that starts small and grows."""

    name = "growing"
    size = 128 * 1024
    sizes = (30_000, 100, 60_000, 100_000, 200_000)
    options = {"spin": None}  # noqa: RUF012


class SpinningMessages(Messages):
    """Those who wait look for a moment before they sleep."""

    name = "spinning-messages"
    options = {"spin": 0.01}  # noqa: RUF012


class SleepingMessages(Messages):
    """Both sides keep each other waiting, for longer than a short sleep lasts."""

    name = "sleeping-messages"
    sizes = (3000, 3000, 20_000)

    def write(self, hand: Hand) -> None:
        hand.pause(0.03)
        send(hand, 5000)
        hand.pause(0.03)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        receive(hand)
        receive(hand)
        hand.pause(0.04)
        super().read(hand)


class Refused(Messages):
    """Messages that are given up, some in the middle; receivers that look before they take."""

    name = "refused"
    sizes = (100, 20_000)

    def write(self, hand: Hand) -> None:
        for size in (8000, 3000, 20_000):
            if not offer(hand, size, PATIENCE):
                return
        hand.pause(0.05)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        end = hand.ends["end"]
        hand.timed(end.poll, timeout=0.03)
        hand.pause(0.06)
        receive(hand)
        hand.pause(0.06)
        super().read(hand)

    def receive(self, hand: Hand) -> bool:
        end = hand.ends["end"]
        while not hand.timed(end.poll, timeout=0.03):
            pass
        return receive(hand)


class Dripping(Messages):
    """Small messages, one after the other, for receivers with little time."""

    name = "dripping"
    sizes = (100,) * 12

    def make(self, run: Run) -> tuple[Any, Any, Any]:
        run.timeout = 0.1  # less than it takes to find a lock lost, more than a short sleep
        return super().make(run)

    def send(self, hand: Hand, size: int) -> bool:
        hand.pause(0.004)
        return send(hand, size)


class Leaving(Messages):
    """Receivers that do not wait for long, and leave in the middle of a message."""

    name = "leaving"
    sizes = (20_000, 12_000)

    def read(self, hand: Hand) -> None:
        for _ in range(10):
            try:
                took(hand, hand.timed(hand.ends["end"].recv_bytes, timeout=0.03))
            except TimeoutError as error:
                if hasattr(error, "kept"):
                    hand.log("enough")
                    return
            except EOFError:
                break
        super().read(hand)


class LeavingForGood(Stepped):
    """A receiver that surely leaves in the middle of a message; another one goes on behind it."""

    name = "leaving-for-good"
    sizes = (100, 20_000)
    victims = ("reader",)

    def write(self, hand: Hand) -> None:
        end = hand.ends["end"]
        number = hand.take_numbers()
        hand.log("begin", hand.who, number, 1)
        try:
            with end.begin_send_bytes(content(hand.who, number, 20_000)) as sending:
                sending.step()
                hand.pause(0.3)
                while not sending.step():
                    hand.pause(0.001)
        except BrokenPipeError:
            hand.log("broken")
            return
        hand.log("sent", hand.who, number, 1)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        if hand.who == 0:
            while True:
                try:
                    took(hand, hand.timed(hand.ends["end"].recv_bytes, timeout=0.03))
                except shmpipe.PartlyReceived:
                    hand.log("leaves")
                    break
                except TimeoutError:
                    pass
            if self.endless:
                hand.log("enough")
            return
        hand.wait_until_ended(self.crowd)  # the first reader
        super().read(hand)


class PolledDripping(Dripping):
    """The same, looked at before it is taken."""

    name = "polled-dripping"

    def receive(self, hand: Hand) -> bool:
        while not hand.timed(hand.ends["end"].poll, timeout=0.03):
            pass
        return receive(hand)


class LatePoll(Refused):
    """Receivers that come late, and look before they take."""

    name = "late-poll"
    sizes = (20_000, 3000)

    def write(self, hand: Hand) -> None:
        Messages.write(self, hand)

    def read(self, hand: Hand) -> None:
        hand.pause(0.3)
        Messages.read(self, hand)


class Objects(Messages):
    """Objects, whose buffers travel beside their pickles, and messages into the caller's room."""

    name = "objects"
    size = 16 * PAGE
    sizes = (100, 9000, 150_000, 20_000)

    def send(self, hand: Hand, size: int) -> bool:
        return send(hand, size, hand.ends["end"].send)

    def receive(self, hand: Hand) -> bool:
        return receive(hand, hand.ends["end"].recv)


class Rooms(Messages):
    """Messages received into the caller's own memory."""

    name = "rooms"

    def receive(self, hand: Hand) -> bool:
        room = bytearray(20_000)

        def into(timeout: float | None) -> bytes:
            return bytes(room[: hand.ends["end"].recv_bytes_into(room, timeout=timeout)])

        return receive(hand, into)


class Loans(Messages):
    """Messages that are written, and read, where they lie."""

    name = "loans"
    size = 16 * PAGE
    sizes = (100, 30_000, 40_000, 5000, 60_000)

    def send(self, hand: Hand, size: int) -> bool:
        def reserved(data: bytes, timeout: float | None) -> None:
            with hand.ends["end"].reserve(len(data), timeout=timeout) as view:
                view[:] = data

        return send(hand, size, reserved)

    def receive(self, hand: Hand) -> bool:
        def lent(timeout: float | None) -> bytes:
            with hand.ends["end"].recv_view(timeout=timeout) as view:
                return bytes(view)

        return receive(hand, lent)


class LateLoans(Loans):
    """Loans for which there is little time."""

    name = "late-loans"
    sizes = (100,) * 6

    def make(self, run: Run) -> tuple[Any, Any, Any]:
        run.timeout = 0.03
        return super().make(run)

    def send(self, hand: Hand, size: int) -> bool:
        hand.pause(0.05)
        return super().send(hand, size)


class SleepingLoans(Loans):
    """The same with waiting: a loan keeps the ring from growing."""

    name = "sleeping-loans"
    sizes = (30_000, 30_000, 60_000)

    def receive(self, hand: Hand) -> bool:
        def lent(timeout: float | None) -> bytes:
            with hand.ends["end"].recv_view(timeout=timeout) as view:
                hand.pause(0.03)
                return bytes(view)

        return receive(hand, lent)

    def write(self, hand: Hand) -> None:
        hand.pause(0.03)
        hand.insist(hand.ends["end"].fileno)
        super().write(hand)


class WatchedMessages(Messages):
    """Everybody asks the descriptors first."""

    name = "watched-messages"
    sizes = (3000, 3000, 20_000)

    def write(self, hand: Hand) -> None:
        hand.pause(0.03)
        super().write(hand)

    def send(self, hand: Hand, size: int) -> bool:
        self._ready(hand, hand.ends["end"].outgoing, select.POLLOUT)
        return send(hand, size)

    def receive(self, hand: Hand) -> bool:
        self._ready(hand, hand.ends["end"].incoming, select.POLLIN)
        return receive(hand)

    def _ready(self, hand: Hand, half: Any, events: int) -> None:
        poller = select.poll()
        poller.register(hand.insist(half.fileno), events)
        poller.poll(100)


class TunedMessages(Messages):
    """Both sides change the pipe's size while messages go through it."""

    name = "tuned-messages"
    sizes = (3000, 20_000, 100)

    def write(self, hand: Hand) -> None:
        end = hand.ends["end"].outgoing
        send(hand, 3000)
        send(hand, 3000)
        tune(hand, end, shmpipe.F_SETPIPE_SZ, 4 * PAGE)
        send(hand, 6000)
        tune(hand, end, shmpipe.F_SETPIPE_WRITE_SZ, PAGE)
        tune(hand, end, shmpipe.F_SETPIPE_SZ, 2 * PAGE)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        end = hand.ends["end"].incoming
        receive(hand)
        tune(hand, end, shmpipe.F_SETPIPE_SZ, 8 * PAGE)
        receive(hand)
        hand.pause(0.03)
        tune(hand, end, shmpipe.F_SETPIPE_SZ, 2 * PAGE)
        super().read(hand)


WALKS: list[type[Walk]] = [
    Messages,
    Stepped,
    HastyStepped,
    Large,
    Growing,
    SpinningMessages,
    SleepingMessages,
    Refused,
    Dripping,
    LeavingForGood,
    Objects,
    Rooms,
    Loans,
    LateLoans,
    SleepingLoans,
    WatchedMessages,
    TunedMessages,
]
