"""Names and those who do not behave: who says nothing, dies, lies, or is somebody else."""

from __future__ import annotations

import contextlib
import dis
import errno
import gc
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import shmpipe
from shmpipe import naming, rendezvous

from .meeting import LIMIT, NOBODY, as_root, converse, echo, files, place, program, refusal
from .steps import Boom, at_step, boom, die
from .support import Child, ChildDied, Flag, eventually, run_child, run_thread

pytestmark = pytest.mark.usefixtures(place.__name__)

MODULES = ["naming", "rendezvous"]  # which are interpreted in both engines


# ---------------------------------------------------------------- silent, and gone


def test_who_says_nothing_keeps_nobody_waiting() -> None:
    with shmpipe.listen("open") as listener, contextlib.ExitStack() as stack:
        for _ in range(20):
            silent = stack.enter_context(contextlib.closing(naming.door()))
            silent.connect(listener.path)
        child = run_child(echo, "open")
        for _ in range(20):
            stack.enter_context(listener.accept(LIMIT))
        with listener.accept(LIMIT) as connection:
            converse(connection)
        child.join()


def test_who_has_gone_is_passed_over() -> None:
    with shmpipe.listen("gone") as listener:
        for _ in range(20):
            with contextlib.closing(naming.door()) as visitor:
                visitor.connect(listener.path)
        child = run_child(echo, "gone")
        with listener.accept(LIMIT) as connection:
            converse(connection)
        child.join()
        with pytest.raises(TimeoutError):
            listener.accept(0)


def test_who_goes_without_taking_the_answer_has_gone() -> None:
    with shmpipe.listen("rude") as listener:
        with contextlib.closing(naming.door()) as visitor:
            visitor.connect(listener.path)
            connection = listener.accept(LIMIT)
        with connection, pytest.raises(EOFError):
            connection.recv(timeout=LIMIT)


def test_a_crowd_of_silent_ones_ends_in_time() -> None:
    """Those who are turned away, or gone, do not stretch a time limit."""
    with shmpipe.listen("flood") as listener:

        def flood() -> None:
            while True:
                with contextlib.closing(naming.door()) as visitor, contextlib.suppress(OSError):
                    visitor.connect(listener.path)

        child = run_child(flood)
        with contextlib.suppress(TimeoutError):
            for _ in range(3):
                listener.accept(0.05).close()
        child.kill()


def test_no_descriptors_left() -> None:
    with shmpipe.listen("poor") as listener:
        connecting = run_thread(shmpipe.connect, "poor")
        connecting.wait_asleep()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = os.dup(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1, limits[1]))
        try:
            for _ in range(3):
                with pytest.raises(OSError, match="Too many open files") as caught:
                    listener.accept(1)
                assert caught.value.errno == errno.EMFILE
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            os.close(taken)
        with listener.accept(LIMIT) as ours, connecting.join() as theirs:
            ours.send(1)
            assert theirs.recv(timeout=LIMIT) == 1


# ---------------------------------------------------------------- killed


def killed_at_steps(
    act: Callable[[int, Flag], None], meet: Callable[[Child, Flag], Any]
) -> set[Any]:
    """What `meet` has seen of children that run `act(number, ready)`, until they are not killed.

    How many steps there are depends on who is faster, so a few more are tried than the first time
    that a child has lived.
    """
    seen, number, lived = set(), 0, 0
    while lived < 20:
        with Flag() as ready:
            child = run_child(act, number, ready)
            seen.add(meet(child, ready))
            if child.alive():
                lived += 1
                child.kill()
            with pytest.raises(ChildDied):
                child.join()
        number += 1
    return seen


@pytest.mark.slow
def test_killed_at_any_step_of_listening(place: Path) -> None:
    def take(number: int, ready: Flag) -> None:
        with at_step(number, die, MODULES):
            listener = shmpipe.listen("fragile")
        ready.set()
        assert not listener.closed
        signal.pause()

    def meet(child: Child, ready: Flag) -> int | None:
        eventually(lambda: ready.is_set() or not child.alive())
        return refusal("fragile")

    assert killed_at_steps(take, meet) == {0, errno.EADDRINUSE}
    assert refusal("fragile") == 0
    assert files(place) == []


@pytest.mark.slow
def test_killed_at_any_step_of_accepting() -> None:
    """Who has connected is not left waiting, and nor is the name."""

    def serve(number: int, ready: Flag) -> None:
        with shmpipe.listen("fragile") as listener:
            ready.set()
            select.select([listener], [], [])
            with at_step(number, die, MODULES):
                connection = listener.accept(LIMIT)
            connection.send("welcome")
            signal.pause()

    def meet(child: Child, ready: Flag) -> str:
        ready.wait()
        try:
            with shmpipe.connect("fragile", timeout=LIMIT) as connection:
                text: str = connection.recv(timeout=LIMIT)
                return text
        except (ConnectionResetError, EOFError) as error:
            eventually(lambda: not child.alive())
            assert refusal("fragile") == 0
            return type(error).__name__

    seen = killed_at_steps(serve, meet)
    assert seen == {"ConnectionResetError", "EOFError", "welcome"}


@pytest.mark.slow
def test_killed_at_any_step_of_connecting() -> None:
    def use(number: int, ready: Flag) -> None:
        with at_step(number, die, MODULES):
            connection = shmpipe.connect("sturdy")
        connection.send("hello")
        signal.pause()

    def meet(child: Child, ready: Flag) -> str | None:
        while True:
            over = not child.alive()
            try:
                with listener.accept(0.01) as connection:
                    text: str = connection.recv(timeout=LIMIT)
                    return text
            except TimeoutError:
                if over:
                    return None
            except EOFError:
                return "EOFError"

    with shmpipe.listen("sturdy") as listener:
        seen = killed_at_steps(use, meet)
    assert seen == {None, "EOFError", "hello"}


# ---------------------------------------------------------------- interrupted


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def same_descriptors(before: set[str]) -> bool:
    if descriptors() != before:
        gc.collect()  # cycles through a traceback are the interpreter's
    return descriptors() == before


class at_instruction(at_step):
    """Not counted are those before which no handler of a signal runs.

    (From Python 3.11 on, what is raised there costs the interpreter the exception that is handled.)
    """

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if name in ("PUSH_EXC_INFO", "POP_EXCEPT"):
                return self._stepped
        return super()._stepped(frame, event, arg)


def interrupted(call: Callable[[], Any], number: int) -> bool:
    """Whether `call` ended with what was raised at instruction `number` of it."""
    step = at_instruction(number, boom, MODULES, opcodes=True)
    try:
        with step:
            call().close()
    except Boom:
        return True
    # (One that was raised in a finalizer goes nowhere.)
    return step.reached


@pytest.mark.slow
@pytest.mark.timeout_s(200)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exception_at_any_step_of_listening(place: Path) -> None:
    number, before = 0, descriptors()
    while interrupted(lambda: shmpipe.listen("i"), number):
        number += 1
        assert same_descriptors(before), f"at step {number}"
        assert refusal("i") == 0, f"at step {number}"
    assert number > 300
    assert files(place) == []


@pytest.mark.slow
@pytest.mark.timeout_s(200)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("who", ["listener", "client"])
def test_exception_at_any_step_of_meeting(who: str) -> None:
    """One side is interrupted, the other one sees that it has gone."""

    def clients() -> None:
        while True:
            with contextlib.suppress(ConnectionResetError, EOFError), shmpipe.connect("i") as ours:
                ours.recv(timeout=LIMIT)

    def listeners() -> None:
        with shmpipe.listen("i") as listener:
            for connection in listener:
                with connection, contextlib.suppress(EOFError):
                    connection.recv(timeout=LIMIT)

    if who == "client":
        child = run_child(listeners)
        shmpipe.connect("i", wait=True, timeout=LIMIT).close()
        number, before = 0, descriptors()
        while interrupted(lambda: shmpipe.connect("i", timeout=LIMIT), number):
            number += 1
            assert same_descriptors(before), f"at step {number}"
    else:
        with shmpipe.listen("i") as listener:
            child = run_child(clients)
            listener.accept(LIMIT).close()
            number, before = 0, descriptors()
            while interrupted(lambda: listener.accept(LIMIT), number):
                number += 1
                assert same_descriptors(before), f"at step {number}"
            listener.accept(LIMIT).close()
            child.kill()
    child.kill()
    assert number > 100


# ---------------------------------------------------------------- liars


def answer(
    magic: bytes = rendezvous._MAGIC,
    status: int = 0,
    namespace: int | None = None,
    rings: tuple[int, int] = (1, 0),
) -> bytes:
    if namespace is None:
        namespace = rendezvous._pid_namespace()
    return rendezvous._ANSWER.pack(magic, status, namespace, *rings, nan)


def null(end: Any) -> list[int]:
    return [os.open(os.devnull, os.O_RDWR) for _ in range(2)]


def genuine(end: Any) -> list[int]:
    return [os.dup(end._segment.lend(end).fileno()), os.dup(end._bell.lend().fileno())]


def unsealed(end: Any) -> list[int]:
    copy, bell = os.memfd_create("copy"), genuine(end)
    size = os.fstat(bell[0]).st_size
    os.write(copy, os.pread(bell[0], size, 0))
    os.close(bell[0])
    return [copy, bell[1]]


def of_one_ring(end: Any) -> list[int]:
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(one) for one in shmpipe.Pipe(duplex=False)]
        return genuine(ends[0])


LIES: dict[str, tuple[bytes, Callable[[Any], list[int]], type[OSError], int]] = {
    "nothing": (b"", lambda _: [], ConnectionResetError, errno.ECONNRESET),
    "a word": (b"hello", lambda _: [], OSError, errno.EBADMSG),
    "too long": (b"hello" * 100, lambda _: [], OSError, errno.EBADMSG),
    "other version": (answer(b"shmpipe\x02"), genuine, OSError, errno.EBADMSG),
    "refused": (answer(status=errno.EACCES), lambda _: [], PermissionError, errno.EACCES),
    "elsewhere": (answer(namespace=1), genuine, OSError, errno.EXDEV),
    "no descriptors": (answer(), lambda _: [], OSError, errno.EBADMSG),
    "one descriptor": (answer(), lambda end: [os.dup(0)], OSError, errno.EBADMSG),
    "no segment": (answer(), null, OSError, errno.EBADMSG),
    "no memory": (answer(), lambda end: [os.dup(2), genuine_second(end)], OSError, errno.EINVAL),
    "swapped": (answer(), lambda end: genuine(end)[::-1], OSError, errno.EBADMSG),
    "no doorbell": (
        answer(),
        lambda end: [genuine_first(end), os.open(os.devnull, os.O_RDWR)],
        OSError,
        errno.EBADMSG,
    ),
    "not sealed": (answer(), unsealed, OSError, errno.EBADMSG),
    "no such rings": (answer(rings=(0, 0)), genuine, OSError, errno.EBADMSG),
    "rings far away": (answer(rings=(100, -128)), genuine, OSError, errno.EBADMSG),
    "fewer rings": (answer(), of_one_ring, OSError, errno.EBADMSG),
}


def genuine_first(end: Any) -> int:
    first, second = genuine(end)
    os.close(second)
    return first


def genuine_second(end: Any) -> int:
    first, second = genuine(end)
    os.close(first)
    return second


@pytest.mark.parametrize("lie", LIES)
def test_a_listener_that_lies(lie: str, place: Path) -> None:
    data, make, kind, number = LIES[lie]
    place.mkdir(mode=0o700)
    with contextlib.closing(naming.door()) as liar, contextlib.ExitStack() as stack:
        liar.bind(str(place / "liar"))
        liar.listen()
        ends = [stack.enter_context(end) for end in shmpipe.Pipe()]

        def lying() -> None:
            eventually(lambda: bool(rendezvous.poll_fd(liar.fileno(), rendezvous.POLLIN, 0)))
            (client,) = rendezvous._accepted(liar)
            numbers = make(ends[1])
            beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", numbers))]
            client.sendmsg([data], beside if numbers else [])
            for number in numbers:
                os.close(number)

        running = run_thread(lying)
        with pytest.raises(OSError) as caught:
            shmpipe.connect("liar", timeout=LIMIT)
        running.join()
        assert (type(caught.value), caught.value.errno) == (kind, number)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_of_another_kind(kind: int, place: Path) -> None:
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(place / "other"))
        if kind == socket.SOCK_STREAM:
            other.listen()
        with pytest.raises(OSError, match="other") as caught:
            shmpipe.connect("other", wait=True)
        assert caught.value.errno == errno.EPROTOTYPE
        assert refusal("other") == errno.EADDRINUSE
        other.setblocking(False)
        if kind == socket.SOCK_STREAM:
            with pytest.raises(BlockingIOError):
                other.accept()
    assert refusal("other") == 0


# ---------------------------------------------------------------- somebody else


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that all users may enter."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def as_nobody(call: Callable[..., Any], *args: Any) -> Any:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    return call(*args)


def exchange(path: Path, users: list[Any]) -> str:
    with shmpipe.connect(path, users=users, timeout=LIMIT) as connection:
        connection.send(os.geteuid())
        text: str = connection.recv(timeout=LIMIT)
        return text


@as_root
@pytest.mark.parametrize("user", [NOBODY, "nobody"])
def test_another_user_who_is_allowed(user: Any, shared: Path) -> None:
    with shmpipe.listen(shared / "name", users=[user]) as listener:
        child = run_child(as_nobody, exchange, shared / "name", [0])
        with listener.accept(LIMIT) as connection:
            assert connection.recv(timeout=LIMIT) == NOBODY
            connection.send("welcome")
            assert child.join() == "welcome"
        child = run_child(exchange, shared / "name", [])  # and one of the same user
        with listener.accept(LIMIT) as connection:
            assert connection.recv(timeout=LIMIT) == 0
            connection.send("welcome")
            assert child.join() == "welcome"


@as_root
def test_another_user_is_turned_away(shared: Path) -> None:
    # The permissions of the file say yes: it is the listener that says no.
    with shmpipe.listen(shared / "name", mode=0o666) as listener:
        accepting = run_thread(listener.accept)
        child = run_child(as_nobody, exchange, shared / "name", [0])
        with pytest.raises(PermissionError, match=f"does not accept user {NOBODY}"):
            child.join()
        accepting.wait_asleep()
    with pytest.raises(OSError, match="closed"):
        accepting.join()
    # And here they say no themselves.
    with shmpipe.listen(shared / "name"):
        child = run_child(as_nobody, exchange, shared / "name", [0])
        with pytest.raises(PermissionError, match="Permission denied"):
            child.join()


@as_root
def test_a_listener_of_another_user_is_not_trusted(shared: Path) -> None:
    with shmpipe.listen(shared / "name", users=[NOBODY]) as listener:
        child = run_child(as_nobody, exchange, shared / "name", [])
        with pytest.raises(PermissionError, match="the listener is user 0's"):
            child.join()
        with contextlib.suppress(TimeoutError):
            listener.accept(0).close()
        # Nor can others take the name while somebody has it, or put theirs in its place.
        child = run_child(as_nobody, refusal, shared / "name")
        assert child.join() == errno.EACCES


@pytest.mark.slow
def test_another_pid_namespace() -> None:
    """A container, say, that shares the directory of names."""
    command = ["unshare", "--pid", "--fork", "--mount-proc"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("there is no unshare(1) here, or it is not permitted")
    with shmpipe.listen("outside") as listener:
        process = program(
            "import shmpipe",
            "try: shmpipe.connect('outside', timeout=20)",
            "except OSError as error: raise SystemExit(error.errno)",
            before=command,
        )
        with listener.accept(LIMIT) as connection, pytest.raises(EOFError):
            connection.recv(timeout=LIMIT)
        assert process.wait(LIMIT) == errno.EXDEV
