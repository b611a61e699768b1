"""Processes without a descriptor to spare: what can go on goes on, and no message is lost."""

from __future__ import annotations

import errno
import select
import signal
import sys
from typing import Any

import numpy
import pytest

import shmpipe
from shmpipe.locking import SideLock

from .kinds import pure_only
from .links import link_of
from .support import eventually, no_descriptors, run_child


def test_objects_are_received_as_bytes() -> None:
    """(The module that makes one plain pickle of one and its buffers is not imported only then.)"""
    array = numpy.arange(100_000)

    def receive() -> int:
        assert receiver.recv() == "first"
        sys.modules.pop("pickletools", None)
        with no_descriptors():
            data = receiver.recv_bytes()
        return len(data)

    with link_of("shmpipe", False) as (receiver, sender):
        child = run_child(receive, close=[sender])
        sender.send("first")
        sender.send(array)
        assert child.join() > array.nbytes


@pytest.mark.parametrize("long", [False, True])
def test_calls_sleep_and_wake(long: bool) -> None:
    def echo() -> None:
        here.send_bytes(here.recv_bytes())
        with no_descriptors():
            for _ in range(5):
                here.send_bytes(here.recv_bytes())

    with link_of("shmpipe", True, spin=0) as (here, there):
        child = run_child(echo, close=[there])
        for number in range(6):
            if long:
                child.wait_asleep(settle=0.05)
            there.send_bytes(b"%d" % number)
            assert there.recv_bytes(timeout=20) == b"%d" % number
        child.join()


def test_a_death_is_seen() -> None:
    """Without a descriptor to watch the other process with."""

    def receive() -> str:
        with no_descriptors():
            try:
                while True:
                    receiver.recv_bytes()
            except EOFError:
                return "ended"

    with link_of("shmpipe", False, spin=0) as (receiver, sender):
        sender.send_bytes(b"first")
        victim = run_child(signal.pause, close=[receiver])
        child = run_child(lambda: (receiver.recv_bytes(), receive())[1], close=[sender])
        sender.close()
        child.wait_asleep(settle=0.1)
        victim.kill()
        assert child.join() == "ended"


def test_no_descriptor_for_what_needs_one() -> None:
    """A clear error; with a descriptor again the call works."""

    def ask() -> list[int]:
        here.recv_bytes()
        found = []
        with no_descriptors():
            for call in (here.fileno, shmpipe.Pipe, shmpipe.pipe, lambda: here.incoming.fileno()):
                with pytest.raises(OSError) as error:
                    call()
                found.append(error.value.errno)
            here.send_bytes(b"still here")
        assert select.select([here], [], [], 0)[0]
        return found

    with link_of("shmpipe", True) as (here, there):
        there.send_bytes(b"first")
        there.send_bytes(b"second")
        child = run_child(ask, close=[there])
        assert there.recv_bytes(timeout=20) == b"still here"
        assert child.join() == [errno.EMFILE] * 4


@pure_only
def test_message_is_not_lost_when_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What frees space has to tell those who watch for it, and finds the lock taken."""
    receiver, sender = shmpipe.Pipe(False, size=4096, write_size=4096)
    with receiver, sender:
        fd = sender.outgoing.fileno()  # type: ignore[union-attr]
        sent = 0
        while sender.try_send_bytes(bytes([sent & 255])):
            sent += 1

        def writable() -> bool:
            return bool(select.select([], [fd], [], 0)[1])

        assert not writable()
        entered = 0
        enter = SideLock.enter

        def enter_once(self: Any, deadline: float | None = None) -> None:
            nonlocal entered
            if self is receiver._receiver.lock:  # type: ignore[union-attr]
                entered += 1
                if entered % 2 == 0:
                    raise OSError(errno.EMFILE, "no descriptor")
            enter(self, deadline)

        monkeypatch.setattr(SideLock, "enter", enter_once)
        for number in range(sent):
            assert receiver.recv_bytes()[0] == number & 255
            entered = 0
        monkeypatch.undo()
        assert not receiver.poll(0)
        eventually(writable)
