"""A peer that overwrites what it likes: what has been found, each once; and the fuzzer itself.

See docs/security.md for what is promised.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import fcntl as real_fcntl
import mmap
import os
import re
import signal
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shmpipe
from shmpipe import (
    Connection,
    Pipe,
    control,
    fcntl,
    identity,
    ioctl,
    objects,
    pipe,
    segment,
    waiting,
)

from .hostile import calls, forging, guards, peer, runner
from .support import Flag, run_child
from .test_stopped import held

PAGE = segment.PAGE
SOURCES = sorted((Path(__file__).resolve().parent.parent / "shmpipe").glob("*.py"))
LIMIT = 0.05  # seconds
FULL = (1 << 64) - 1


def words_of(end: Any) -> memoryview:
    """The control words of the (first) ring, as the peer has them."""
    seg = end._segment if isinstance(end, Connection) else end._side.ring.segment
    words: memoryview = seg.words(0)
    return words


def publish(end: Connection, frames: bytes) -> None:
    """Frames that a hostile sender makes."""
    seg = end._segment
    words = seg.words(0)
    at = words[segment.WPOS]
    seg.data(0)[at : at + len(frames)] = frames
    words[segment.WPOS] = at + len(frames)


@contextmanager
def one_way(size: int = 4 * PAGE, **options: Any) -> Iterator[tuple[Connection, Connection]]:
    receiver, sender = Pipe(False, size=size, spin=0, **options)
    with receiver, sender:
        yield receiver, sender


@contextmanager
def bad_message() -> Iterator[None]:
    with pytest.raises(OSError) as caught:
        yield
    assert caught.value.errno == errno.EBADMSG


# --- semaphores and locks ------------------------------------------------------------------------


def wait_on_what_is_none(receiver: Connection, kind: int) -> str:
    words_of(receiver)[segment.RD_WAIT + 1] = kind
    try:
        receiver.recv_bytes(timeout=LIMIT)
    except TimeoutError:
        return "TimeoutError"
    except OSError:
        return "OSError"
    return "a message"


# 0x40: glibc ends the process; 5: it never comes back.
@pytest.mark.parametrize("kind", [0x40, 5, 0xFFFFFFFF])
def test_semaphore_of_another_kind(kind: int) -> None:
    with one_way() as (receiver, _sender):
        got = run_child(wait_on_what_is_none, receiver, kind).join(20)
        assert got == {"native": "TimeoutError", "pure": "OSError"}[shmpipe.engine]


def test_semaphore_that_is_never_empty() -> None:
    with one_way() as (receiver, _sender):
        words_of(receiver)[segment.RD_WAIT] = (1 << 31) - 1
        with pytest.raises(TimeoutError):
            receiver.recv_bytes(timeout=LIMIT)


def test_who_keeps_a_call_busy_does_not_do_so_for_ever() -> None:
    """Each round of a call that goes on without sleep asks whether its time is long over."""
    now = time.monotonic()
    waiting.go_on(None)
    waiting.go_on(now + LIMIT)
    waiting.go_on(now - waiting.LATE / 2)
    with pytest.raises(TimeoutError, match="gone again"):
        waiting.go_on(now - waiting.LATE)


def test_tokens_that_nobody_took_are_no_damage() -> None:
    """One who is counted as asleep, and does not come to run, is posted for any number of times."""
    with one_way() as (receiver, sender):
        side = receiver._receiver.side
        for _ in range(70_000):
            side.read_wait.release()
        with pytest.raises(TimeoutError):
            receiver.recv_bytes(timeout=0.05)
        sender.send_bytes(b"x")
        assert receiver.recv_bytes(timeout=10) == b"x"


def test_lock_that_is_free_twice() -> None:
    with one_way() as (receiver, sender):
        words_of(receiver)[segment.WR_LOCK] = 2
        with bad_message():
            sender.send_bytes(b"x")
        words_of(receiver)[segment.WR_LOCK] = 1
        sender.send_bytes(b"x")
        assert receiver.recv_bytes() == b"x"


def test_lock_that_nobody_gives_back() -> None:
    with one_way() as (receiver, sender):
        sender.send_bytes(b"x")
        words_of(receiver)[segment.RD_LOCK] = 0
        with pytest.raises(TimeoutError):
            receiver.recv_bytes(timeout=LIMIT)
        assert not receiver.poll(0)
        words_of(receiver)[segment.RD_LOCK] = 1
        assert receiver.recv_bytes(timeout=20) == b"x"


def test_file_lock_that_is_never_given_back() -> None:
    with one_way() as (receiver, _sender):
        path = f"/proc/self/fd/{receiver._segment.memory.fileno()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            real_fcntl.flock(descriptor, real_fcntl.LOCK_EX)
            with pytest.raises(TimeoutError):  # the first call of a process needs it
                receiver.recv_bytes(timeout=LIMIT)
        finally:
            os.close(descriptor)


@pytest.mark.slow
def test_calls_that_must_not_wait_do_not_wait_for_a_lock() -> None:
    reader, writer = pipe(flags=os.O_NONBLOCK)
    with reader, writer:
        writer.write(b"x")
        with held(reader._side.lock):
            assert reader.read(1) is None
            for call in (
                reader.fileno,
                lambda: fcntl(writer, control.F_SETPIPE_SZ, PAGE),
                lambda: ioctl(writer, termios.FIONREAD),
            ):
                with pytest.raises(TimeoutError):
                    call()
        assert reader.read(1) == b"x"


# --- words that keep a call busy -----------------------------------------------------------------


def test_ring_of_a_bell_that_nobody_asked_for() -> None:
    with one_way(PAGE) as (receiver, sender):
        sender.send_bytes(bytes(PAGE - 8))
        words_of(receiver)[segment.WR_RUNG] = 1 << 40
        with pytest.raises(TimeoutError):
            sender.send_bytes(b"x", timeout=LIMIT)


class Rang(Exception):
    pass


def write_until_it_rings(writer: Any) -> str:
    def ring(*_: Any) -> None:
        raise Rang

    words_of(writer)[segment.WR_RUNG] = 1 << 40
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        writer.write(b"x")
    except Rang:
        return "rang"
    return "written"


def test_blocked_write_can_be_interrupted() -> None:
    reader, writer = pipe(PAGE, spin=0)
    with reader, writer:
        writer.write(bytes(PAGE))
        assert run_child(write_until_it_rings, writer).join(20) == "rang"


def test_more_pages_to_come_than_the_segment_has() -> None:
    with one_way(max_size=4 * PAGE) as (receiver, sender):
        words_of(receiver)[segment.LIMIT] = 1 << 20
        sender.send_bytes(b"fits")
        for call in (
            lambda: sender.send_bytes(bytes(20 * PAGE), timeout=LIMIT),
            lambda: sender.try_send_bytes(b"x"),
            lambda: fcntl(sender, control.F_SETPIPE_SZ, 64 * PAGE),
            lambda: fcntl(sender, control.F_GETPIPE_SZ),
        ):
            with bad_message():
                call()


def test_pipe_does_not_outgrow_its_segment() -> None:
    reader, writer = pipe(4 * PAGE, max_size=4 * PAGE)
    with reader, writer:
        words_of(reader)[segment.LIMIT] = 1 << 20
        with pytest.raises(PermissionError):
            fcntl(writer, control.F_SETPIPE_SZ, 64 * PAGE)
        writer.write(b"x")
        assert reader.read(1) == b"x"


def test_named_as_keeper_without_a_part() -> None:
    with one_way() as (receiver, sender):
        sender.send_bytes(b"x")
        words_of(receiver)[segment.R_KEEPER] = identity.token
        assert receiver.recv_bytes(timeout=20) == b"x"


def test_message_without_an_end() -> None:
    with one_way() as (receiver, _sender):
        publish(receiver, forging.framed(forging.BEGIN_DATA, forging.word(1000)))
        with bad_message():
            receiver.recv_bytes(timeout=1)


@pytest.mark.skipif(shmpipe.engine == "native", reason="methods of compiled classes are fixed")
def test_parts_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes on sending does not keep a receiver for longer than its time."""
    with one_way() as (receiver, _sender):
        words = words_of(receiver)
        headers = receiver._segment.data(0)[: 4 * PAGE].cast("Q")
        publish(receiver, forging.framed(forging.BEGIN_DATA, forging.word(1 << 62)))
        until = time.monotonic() + 5

        def one_more(*_: Any) -> None:
            if time.monotonic() < until:
                at = words[segment.WPOS]
                left = (1 << 62) - (at - 16) // 24 * 8
                headers[at // 8 % len(headers)] = forging.PART << 56 | 16
                headers[(at // 8 + 1) % len(headers)] = left
                words[segment.WPOS] = at + 24

        monkeypatch.setattr(type(receiver._receiver.side), "wake_writers", one_more)
        one_more()
        with pytest.raises(TimeoutError):
            receiver.recv_bytes(timeout=LIMIT)
        assert time.monotonic() < until


# --- numbers that become addresses or lengths ----------------------------------------------------


@pytest.mark.parametrize("pages", [0, 3, 8, 1 << 52, FULL])
@pytest.mark.parametrize("kind", ["connection", "pipe"])
def test_pages_that_are_not_there(kind: str, pages: int) -> None:
    ends: Any = Pipe(False, size=4 * PAGE, max_size=4 * PAGE) if kind == "connection" else None
    reader, writer = ends or pipe(4 * PAGE, max_size=4 * PAGE)
    with reader, writer:
        words_of(reader)[segment.PAGES] = pages
        with bad_message():
            writer.send_bytes(b"x") if ends else writer.write(b"x")


@pytest.mark.parametrize("at", [1 << 63, FULL - 7])
@pytest.mark.parametrize("kind", ["connection", "pipe"])
def test_positions_at_the_end_of_numbers(kind: str, at: int) -> None:
    ends: Any = Pipe(False, size=4 * PAGE) if kind == "connection" else pipe(4 * PAGE)
    reader, writer = ends
    with reader, writer:
        words = words_of(reader)
        words[segment.RPOS] = words[segment.WPOS] = at
        with bad_message():
            writer.send_bytes(b"x") if kind == "connection" else writer.write(b"x")


COUNTERS = (
    *("W_BYTES", "WRITES", "R_BYTES", "READS", "R_SLEEPS", "R_SPINS", "R_WAKES"),
    *("RD_SLEEPERS", "RD_LONG", "RD_ARM"),
)


@pytest.mark.parametrize("name", COUNTERS)
def test_counters_come_round(name: str) -> None:
    with one_way() as (receiver, sender):
        words = words_of(receiver)
        words[getattr(segment, name)] = FULL
        with pytest.raises(TimeoutError):
            receiver.recv_bytes(timeout=LIMIT)
        for _ in range(2):
            sender.send_bytes(b"x")
            assert receiver.recv_bytes(timeout=20) == b"x"


def test_position_that_moves_while_bytes_are_lent() -> None:
    with one_way() as (receiver, sender):
        with sender.reserve(8, timeout=LIMIT):
            words_of(receiver)[segment.WPOS] = FULL - 7
        with bad_message():
            receiver.recv_bytes(timeout=LIMIT)
        words_of(receiver)[segment.RPOS] = words_of(receiver)[segment.WPOS] = 0
        sender.send_bytes(b"x")
        with bad_message(), receiver.recv_view(timeout=LIMIT):
            words_of(receiver)[segment.RPOS] = words_of(receiver)[segment.WPOS] = FULL - 7


def test_reading_position_ahead_of_the_writing_one() -> None:
    with one_way() as (receiver, sender):
        words_of(receiver)[segment.RPOS] = 1 << 40
        with pytest.raises(TimeoutError), sender.reserve(8, timeout=LIMIT):
            pass


def test_another_shape_of_the_same_size() -> None:
    """Handed over to a process that looks at the header anew."""
    ends = Pipe(size=4 * PAGE, max_size=4 * PAGE)
    with ends[0], ends[1]:
        header = ends[0]._segment.header
        assert header[3:5].tolist() == [2, 4]
        header[3], header[4], header[5] = 1, 8, 0
        with bad_message():
            calls.handed_over(ends[0])


@pytest.mark.skipif(shmpipe.engine == "native", reason="attributes of compiled classes are fixed")
def test_slots_that_change_between_two_looks() -> None:
    reader, writer = pipe(8 * PAGE)

    class Slots(list[int]):
        def __getitem__(self, index: Any) -> Any:
            return [0] if isinstance(index, slice) else PAGE

    with reader, writer:
        ring: Any = reader._side.ring
        ring.ends = Slots()
        assert ring._full_pages_after(0, 0, 4, 8 * PAGE, 8) == 3
        ring.ends = ring.segment.ends(0)


# --- claims about sizes --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [forging.BEGIN_DATA, forging.BEGIN_OBJECT])
@pytest.mark.parametrize("size", [1 << 40, 1 << 62, FULL])
def test_message_that_claims_to_be_enormous(kind: int, size: int) -> None:
    """It takes no memory before it comes."""
    with one_way() as (receiver, _sender):
        head = forging.word(1) + forging.word(2) + forging.word(size - 64) + b"N."
        words_of(receiver)[segment.W_OPEN] = 1
        publish(
            receiver,
            forging.framed(kind, forging.word(size))
            + forging.framed(forging.PART, forging.word(size) + head),
        )
        with pytest.raises((TimeoutError, OSError)):
            receiver.recv_bytes(timeout=LIMIT)


@pytest.mark.slow
def test_message_larger_than_what_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    if shmpipe.engine == "pure":
        monkeypatch.setattr(objects, "AT_ONCE", 1 << 16)
    else:
        monkeypatch.setattr(shmpipe.primitives, "AT_ONCE", 1 << 16)
        monkeypatch.setattr(objects, "AT_ONCE", 1 << 16)
    content = os.urandom(1 << 20)
    for message in (content, bytearray(content), [content, bytearray(content)]):
        receiver, sender = Pipe(False, size=8 * PAGE)
        with receiver, sender:
            child = run_child(sender.send, message)
            assert receiver.recv(timeout=30) == message
            child.join(20)
            child = run_child(sender.send_bytes, content)
            assert receiver.recv_bytes(timeout=30) == content
            child.join(20)


def test_more_buffers_than_fit() -> None:
    with one_way() as (receiver, _sender):
        content = forging.word(100) + forging.word(2) + forging.word(0) * 100 + b"N."
        publish(receiver, forging.framed(forging.OBJECT, content))
        with bad_message():
            receiver.recv_bytes(timeout=LIMIT)


PICKLES = {
    "two buffers where one was sent": b"\x80\x05\x97\x97\x86.",
    "an opcode that there is not": b"\x80\x05\x97\xfe.",
    "no end": b"\x80\x05\x97",
    "a string longer than all": b"\x80\x05\x97\x8e" + b"\xff" * 8 + b".",
    "a line without an end": b"\x80\x05\x97I123.",
}


@pytest.mark.parametrize("pickled", list(PICKLES.values()), ids=list(PICKLES))
def test_what_should_be_a_pickle_is_none(pickled: bytes) -> None:
    """``recv_bytes()`` looks at a pickle without following it."""
    buffer = bytes(8192)
    content = forging.word(1) + forging.word(len(pickled)) + forging.word(len(buffer) << 1)
    content += pickled
    content += bytes(-len(content) % 16) + buffer
    with one_way() as (receiver, _sender):
        publish(receiver, forging.framed(forging.OBJECT, content))
        with bad_message():
            receiver.recv_bytes(timeout=LIMIT)


# --- no such thing in the sources ----------------------------------------------------------------


def found(pattern: str, allowed: Callable[[str, str], bool]) -> list[str]:
    return [
        f"{path.name}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line) and not allowed(path.name, line)
    ]


@pytest.mark.once
def test_peer_knows_every_word() -> None:
    others = {"PAGE_SHIFT", "ALIGN", "LINE", "LINES", "FIRST_DOOR", "SECOND_DOOR"}
    others |= {"SEM_BYTES", "PLACE_BYTES", "EBADMSG"}
    words = {
        name
        for name, value in vars(segment).items()
        if name.isupper() and not name.startswith("_") and type(value) is int and value < 128
    }
    assert words - others == {*peer.CONTROL, *peer.SEMAPHORE_NAMES}


@pytest.mark.once
def test_every_counter_comes_round() -> None:
    """An interpreted ``+=`` on a word that the peer has set to its last value is ValueError."""
    assert found(r"(words|view|numbers)\[[^\]]+\] [-+]=", lambda name, line: False) == []


@pytest.mark.once
def test_sizes_are_read_where_they_are_checked() -> None:
    """``pages()`` and ``limit()`` load the word once and check what they have loaded."""

    def allowed(name: str, line: str) -> bool:
        return (
            name == "ring.py"
            or "pages = self.words[PAGES]" in line  # once, and compared with what was checked
            or " = pages" in line  # a store
            or "= min(pages" in line
            # Only to decide what to do next; nothing is reached by these.
            or "ready(" in line
            or "policy, pages = " in line
            or "spin and (self.want" in line
            or "words[PAGES] < words[LIMIT]" in line
        )

    assert found(r"\[(PAGES|LIMIT)\]", allowed) == []


# --- the segment itself --------------------------------------------------------------------------


def test_segment_cannot_be_cut_short() -> None:
    with one_way() as (receiver, _sender):
        fd = receiver._segment.memory.fileno()
        size = os.fstat(fd).st_size
        for other in (0, size - 1, size + PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, other)
        for seal in (real_fcntl.F_SEAL_WRITE, real_fcntl.F_SEAL_SHRINK, 0x10):
            with pytest.raises(PermissionError):
                real_fcntl.fcntl(fd, real_fcntl.F_ADD_SEALS, seal)
        assert os.fstat(fd).st_size == size


def test_growing_pipe_needs_no_larger_segment() -> None:
    reader, writer = pipe(PAGE, max_size=64 * PAGE)
    with reader, writer:
        fd = reader._side.ring.segment.memory.fileno()
        size = os.fstat(fd).st_size
        assert fcntl(writer, control.F_SETPIPE_SZ, 64 * PAGE) == 64 * PAGE
        assert os.fstat(fd).st_size == size


def test_segment_without_its_seals_is_refused() -> None:
    with one_way() as (receiver, _sender):
        whole = os.pread(receiver._segment.memory.fileno(), 1 << 30, 0)
        bare = segment.owned(os.memfd_create, "bare", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(bare.fileno(), whole)
        with bad_message():
            segment.Segment.attach(bare, OSError)


def open_as_another_user(path: str) -> str:
    os.setgid(65534)
    os.setuid(65534)
    try:
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        return "refused"
    return "opened"


@pytest.mark.once
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_segment_cannot_be_opened_by_another_user() -> None:
    with one_way() as (receiver, sender):
        path = f"/proc/{os.getpid()}/fd/{receiver._segment.memory.fileno()}"
        child = run_child(open_as_another_user, path, close=[receiver, sender])
        assert child.join(20) == "refused"


def test_segment_has_no_name() -> None:
    with one_way() as (receiver, sender):
        sender.send_bytes(bytes(3 * PAGE))
        status = os.fstat(receiver._segment.memory.fileno())
        assert status.st_nlink == 0
        shared = Path("/dev/shm")
        names = list(shared.iterdir()) if shared.is_dir() else []
        inodes = set()
        for name in names:
            try:
                inodes.add((name.lstat().st_dev, name.lstat().st_ino))
            except FileNotFoundError:
                pass  # another program's, gone again
        assert (status.st_dev, status.st_ino) not in inodes
        maps = Path("/proc/self/maps").read_text()
        assert "/memfd:shmpipe" in maps
        mine = [line for line in maps.splitlines() if "/memfd:shmpipe" in line]
        assert not [line for line in mine if "/dev/shm" in line]


# --- the fuzzer ----------------------------------------------------------------------------------


def fuzzed(first: int, sequences: int, together: bool) -> None:
    failures: list[str] = []
    figures = runner.run(first, sequences, None, together, tell=failures.append)
    assert figures.sequences == sequences and sum(figures.done.values()) > sequences
    assert not failures, f"{failures[0]}\n(tools/fuzz --seed S --replay)"


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["between the calls", "all the time"])
def test_hostile_peer(together: bool) -> None:
    fuzzed(1, 20, together)


@pytest.mark.slow
@pytest.mark.timeout_s(300)
@pytest.mark.parametrize("together", [False, True], ids=["between the calls", "all the time"])
def test_hostile_peer_for_longer(together: bool) -> None:
    fuzzed(int(time.time()), 60, together)


def test_guards_stand_on_both_sides() -> None:
    """A read beyond the segment is the end of a victim, so that the fuzzer would see it."""

    def step_out(side: int) -> None:
        faulthandler.disable()
        guards.install()
        receiver, _sender = Pipe(False)
        seg = receiver._segment
        at = seg.address - 1 if side < 0 else seg.address + len(seg.map)
        ctypes.string_at(at, 1)

    for side in (-1, 1):
        child = run_child(step_out, side)
        with pytest.raises(Exception, match="exit code -11"):
            child.join(20)


assert mmap.PAGESIZE == PAGE


def keep_telling(sender: Connection, ready: Any) -> None:
    """Hold the writers' lock, and say all the time that somebody is ringing."""
    part: Any = sender._sender
    words = words_of(sender)
    part.lock.enter()
    ready.set()
    while True:
        words[segment.TELLS] |= 1


def test_who_says_that_he_rings_for_ever_is_waited_for_once_in_a_while() -> None:
    """Not by every call, and not several times in one.  (With waiting it would take a minute.)"""
    with one_way() as (receiver, sender), Flag() as ready:
        receiver.fileno()
        sender.send_bytes(b"message")
        child = run_child(keep_telling, sender, ready, close=[receiver])
        ready.wait()
        side: Any = receiver._receiver.side  # type: ignore[union-attr]
        waits = 0
        before = side.in_vain
        assert receiver.recv_bytes(timeout=LIMIT) == b"message"
        until = time.monotonic() + 1
        calls_made = 0
        while time.monotonic() < until:
            assert not receiver.poll()
            assert receiver.try_recv_bytes() is None
            calls_made += 1
            waits += side.in_vain != before
            before = side.in_vain
        assert calls_made > 3 and waits <= 2
        child.kill()
