"""Walks on ``pipe()``: records of a page each, or bytes of any number."""

from __future__ import annotations

import errno
import os
import select
import termios
from typing import Any

import shmpipe

from .actors import Hand, Run
from .content import Torn, check, content, stream
from .promises import Played, check_survivors
from .walks import Walk

PAGE = 4096
MANY = 1000  # more than anybody writes who is not killed meanwhile


def put(hand: Hand, pages: int) -> bool:
    """Write so many records at once; False: nobody can read them any more."""
    first = hand.take_numbers(pages)
    hand.log("begin", hand.who, first, pages)
    data = memoryview(b"".join(content(hand.who, first + n, PAGE) for n in range(pages)))
    while data:
        try:
            count = hand.ends["end"].write(data)
        except BrokenPipeError:
            hand.log("broken")
            return False
        if count is None:
            ready(hand, select.POLLOUT)
        else:
            data = data[count:]
    hand.log("sent", hand.who, first, pages)
    hand.pause()
    return True


def get(hand: Hand) -> bool:
    """Read one record; False: that was the end."""
    while True:
        data = hand.ends["end"].read(PAGE)
        if data is not None:
            break
        ready(hand, select.POLLIN)
    if not data:
        hand.log("eof")
        return False
    try:
        hand.log("got", *check(data))
    except Torn as error:
        hand.log("torn", str(error))
    hand.pause()
    return True


def ready(hand: Hand, events: int) -> None:
    """Wait for that, but not for ever: who is killed before he rings leaves watchers alone."""
    poller = select.poll()
    poller.register(hand.insist(hand.ends["end"].fileno), events)
    poller.poll(100)


def tune(hand: Hand, command: int, arg: int) -> None:
    try:
        hand.insist(shmpipe.fcntl, hand.ends["end"], command, arg)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EINVAL):
            raise


class Traffic(Walk):
    """Writes that fit and writes that wait, one after the other."""

    name = "traffic"
    pages = 2
    sizes: tuple[int, ...] = (1, 3, 1, 2)
    options: dict[str, Any] = {"spin": 0}  # noqa: RUF012

    def make(self, run: Run) -> tuple[Any, Any, Any]:
        reader, writer = shmpipe.pipe(self.pages * PAGE, **self.options)
        return reader, writer, reader._side.ring.view

    def write(self, hand: Hand) -> None:
        for size in self.sizes:
            if not put(hand, size):
                return
        while self.endless and put(hand, 1):
            pass
        hand.log("done")

    def read(self, hand: Hand) -> None:
        if self.endless:
            for _ in range(sum(self.sizes)):
                get(hand)
            hand.log("enough")
            return
        while get(hand):
            pass


class Spinning(Traffic):
    """The same, where those who wait look for a moment before they sleep."""

    name = "spinning"
    pages = 1
    options = {"spin": 0.01}  # noqa: RUF012


class Sleeping(Traffic):
    """Both sides keep each other waiting, for longer than a short sleep lasts."""

    name = "sleeping"
    pages = 1

    def write(self, hand: Hand) -> None:
        hand.pause(0.03)
        put(hand, 1)
        hand.pause(0.03)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        get(hand)
        get(hand)
        hand.pause(0.04)
        super().read(hand)


class Watching(Traffic):
    """Nobody sleeps in a call: all ask the descriptor, and then do not wait."""

    name = "watching"
    pages = 1
    sizes = (1, 2, 1)

    def write(self, hand: Hand) -> None:
        tune(hand, shmpipe.F_SETFL, os.O_NONBLOCK)
        ready(hand, select.POLLOUT)
        hand.pause(0.01)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        tune(hand, shmpipe.F_SETFL, os.O_NONBLOCK)
        ready(hand, select.POLLIN)
        get(hand)
        hand.pause(0.01)
        super().read(hand)


class WatchedSleep(Sleeping):
    """Descriptors are watched beside calls that sleep."""

    name = "watched-sleep"

    def write(self, hand: Hand) -> None:
        hand.insist(hand.ends["end"].fileno)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        hand.insist(hand.ends["end"].fileno)
        super().read(hand)


class Withheld(Sleeping):
    """A policy that passes over reads, with watchers."""

    name = "edge-half"
    pages = 4
    sizes = (4, 1, 4, 2, 1)
    options = {"spin": 0, "wake": "edge-half"}  # noqa: RUF012

    def write(self, hand: Hand) -> None:
        hand.insist(hand.ends["end"].fileno)
        super().write(hand)


class Tuning(Traffic):
    """Both sides resize the pipe, and move the mark for writers, while it is used."""

    name = "tuning"
    sizes = (1, 3, 2)

    def write(self, hand: Hand) -> None:
        put(hand, 1)
        put(hand, 1)
        tune(hand, shmpipe.F_SETPIPE_SZ, 4 * PAGE)
        put(hand, 1)
        tune(hand, shmpipe.F_SETPIPE_WRITE_SZ, 2 * PAGE)
        tune(hand, shmpipe.F_SETPIPE_SZ, 2 * PAGE)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        get(hand)
        tune(hand, shmpipe.F_SETPIPE_SZ, 8 * PAGE)
        hand.insist(shmpipe.ioctl, hand.ends["end"], termios.FIONREAD)
        get(hand)
        hand.pause(0.03)
        tune(hand, shmpipe.F_SETPIPE_SZ, 2 * PAGE)
        tune(hand, shmpipe.F_SETPIPE_WRITE_SZ, PAGE)
        super().read(hand)


class WatchedTuning(Tuning):
    """The same, with everybody's descriptor being watched."""

    name = "watched-tuning"

    def write(self, hand: Hand) -> None:
        hand.insist(hand.ends["end"].fileno)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        hand.insist(hand.ends["end"].fileno)
        super().read(hand)


class Bytes(Traffic):
    """Bytes in any number, which merge into pages: no gap before the point of death."""

    name = "bytes"
    crowds = (1,)
    writes = (1, 100, 4096, 5000, 3192, 10_000, 7, 12_288, 900, 4095)
    reads = (1, 50, 4096, 5000, 300, 10_000)

    def write(self, hand: Hand) -> None:
        end, done = hand.ends["end"], 0
        for size in self.writes * (MANY if self.endless else 2):
            hand.log("begin", done + size)
            data = memoryview(stream(done, size))
            while data:
                try:
                    count = end.write(data)
                except BrokenPipeError:
                    hand.log("broken")
                    return
                done += count
                data = data[count:]
            hand.log("sent", done)
            hand.pause()
        hand.log("done")

    def read(self, hand: Hand) -> None:
        end, done = hand.ends["end"], 0
        for number in range(sum(self.writes) if self.endless else MANY * MANY):
            size = self.reads[number % len(self.reads)]
            if number % 2:
                data = end.read(size)
            else:
                room = bytearray(size)
                data = bytes(room[: end.readinto(room)])
            if not data:
                hand.log("eof")
                return
            if data != stream(done, len(data)):
                hand.log("torn", done, len(data))
            done += len(data)
            hand.log("got", done)
            hand.pause()
            if self.endless and done > sum(self.writes):
                break
        hand.log("enough")

    def check(self, played: Played) -> None:
        check_survivors(played)
        writer, reader = played.run.processes
        torn = reader.log_of("torn")
        played.holds("none torn", not torn, torn)
        if reader.log_of("eof"):
            got = ([0], *reader.log_of("got"))[-1][0]
            sent = ([0], *writer.log_of("sent"))[-1][0]
            begun = ([0], *writer.log_of("begin"))[-1][0]
            played.holds("no gap before the end", sent <= got <= begun, (sent, got, begun))


class Drained(Bytes):
    """The reader empties the pipe in the middle of a page, which is then left; and resizes."""

    name = "drained"
    writes = (100, 4096, 100, 6000, 4095, 3)

    def write(self, hand: Hand) -> None:
        end, done = hand.ends["end"], 0
        for number, size in enumerate(self.writes * (MANY if self.endless else 2)):
            for _ in range(20):
                if not hand.insist(shmpipe.ioctl, end, termios.FIONREAD):
                    break
                hand.pause(0.001)
            hand.log("begin", done + size)
            data = memoryview(stream(done, size))
            while data:
                try:
                    count = end.write(data)
                except BrokenPipeError:
                    hand.log("broken")
                    return
                done += count
                data = data[count:]
            hand.log("sent", done)
            tune(hand, shmpipe.F_SETPIPE_SZ, (4, 2)[number % 2] * PAGE)
        hand.log("done")


class Relief(Traffic):
    """One writer resizes the pipe while another one sleeps on it."""

    name = "relief"
    crowds = (2,)
    pages = 1

    def write(self, hand: Hand) -> None:
        if hand.who:
            put(hand, 4)
        else:
            hand.pause(0.008)
            tune(hand, shmpipe.F_SETPIPE_SZ, 2 * PAGE)
            hand.pause(0.04)
            tune(hand, shmpipe.F_SETPIPE_SZ, 4 * PAGE)
        super().write(hand)

    def read(self, hand: Hand) -> None:
        hand.pause(0.06)
        super().read(hand)


WALKS: list[type[Walk]] = [
    Drained,
    Relief,
    Traffic,
    Spinning,
    Sleeping,
    Watching,
    WatchedSleep,
    Withheld,
    Tuning,
    WatchedTuning,
    Bytes,
]
