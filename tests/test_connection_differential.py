"""The random run of calls on two kinds of links, small; and that it would notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from multiprocessing import BufferTooShort
from multiprocessing.connection import Connection
from typing import Any

import pytest

from . import connection_differential, connection_subjects
from .connection_differential import Run, run_steps
from .connection_subjects import Link

OPS = 15_000


def test_no_difference() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    found = Run(OPS, seed).all()
    assert found is None, found.report()


def test_no_difference_between_stdlib_and_itself() -> None:
    found = Run(OPS // 2, 1, "stdlib").all()
    assert found is None, found.report()


class Faulty(Connection):
    """A connection with a fault; subclasses say which."""


class PollsTooEarly(Faulty):
    def poll(self, timeout: Any = 0.0) -> bool:
        super().poll(timeout)
        return True


class StaysReadable(Faulty):
    def recv_bytes(self, maxlength: Any = None) -> bytes:
        try:
            return super().recv_bytes(maxlength)
        except OSError:
            self._readable = True  # type: ignore[attr-defined]
            raise


class TruncatesLongMessages(Faulty):
    def recv_bytes(self, maxlength: Any = None) -> bytes:
        return super().recv_bytes(maxlength)[: 1 << 19]


class CountsItems(Faulty):
    def send_bytes(self, buf: Any, offset: Any = 0, size: Any = None) -> None:
        item = memoryview(buf).itemsize
        super().send_bytes(buf, offset * item, size)


class ForgetsTheMessage(Faulty):
    def recv_bytes_into(self, buf: Any, offset: Any = 0) -> int:
        try:
            return super().recv_bytes_into(buf, offset)
        except BufferTooShort:
            raise BufferTooShort from None


class SaysSomethingElse(Faulty):
    def fileno(self) -> int:
        if self.closed:
            raise OSError("the connection is closed")
        return super().fileno()


class LosesWhatDoesNotUnpickle(Faulty):
    def recv(self) -> Any:
        try:
            return super().recv()
        except ValueError:
            return None


class AnswersAfterClose(Faulty):
    def poll(self, timeout: Any = 0.0) -> bool:
        return False if self.closed else super().poll(timeout)


class ReadsOnlyArrays(Faulty):
    def recv(self) -> Any:
        value = super().recv()
        if hasattr(value, "setflags"):
            value.setflags(write=False)
        return value


class ChecksTheSizeFirst(Faulty):
    def send_bytes(self, buf: Any, offset: Any = 0, size: Any = None) -> None:
        if size is not None and size < 0:
            raise ValueError("size is negative")
        super().send_bytes(buf, offset, size)


@pytest.mark.parametrize("fault", Faulty.__subclasses__(), ids=lambda fault: fault.__name__)
def test_planted_fault_is_found_and_shortened(
    monkeypatch: pytest.MonkeyPatch, fault: type[Any]
) -> None:
    def make(kind: str, duplex: bool, **options: Any) -> Any:
        ends = original("stdlib", duplex)
        if kind == "stdlib":
            return ends
        for end in ends:
            # The same descriptor, so that the end is still closed once and no more.
            end.__class__ = fault
        return ends

    original: Callable[..., Any] = connection_subjects.make_link
    monkeypatch.setattr(connection_subjects, "make_link", make)
    found = Run(OPS, 5).all()
    assert found is not None
    assert len(found.steps) <= 8
    # The short replay shows a difference on its own, and its report names the episode.
    again = run_steps("shmpipe", found.setup, found.steps)
    assert again is not None and again.steps == found.steps
    assert found.report().startswith("seed 5 episode ")


def test_call_that_would_block_is_left_out() -> None:
    for kind in ("stdlib", "shmpipe"):
        link = Link(kind, True, {})
        for step in [
            ("recv", "a"),
            ("recv_bytes", "a", None),
            ("recv_bytes_into", "a", "bytearray", 5, 0),
            ("poll", "a", None),
        ]:
            assert link.do(step) == ("would block",)
        sent = 0
        while link.do(("send_bytes", "a", "bytes", 16_000, 0, None, False)) != ("would block",):
            sent += 1
        assert sent >= 2
        assert link.do(("recv", "b"))[0] != "would block"
        link.dispose()


def test_module_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["connection_differential", "--ops", "300", "--seed", "7"]
    monkeypatch.setattr("sys.argv", arguments)
    assert connection_differential.main() == 0
    assert "no difference" in capsys.readouterr().out
