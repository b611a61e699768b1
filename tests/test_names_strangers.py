"""Names and those who do not behave: who says nothing, dies, lies, or is somebody else."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Iterator
from math import nan
from pathlib import Path
from typing import Any

import pytest

import shmpipe
from shmpipe import answers, naming

from .meeting import (
    LIMIT,
    NOBODY,
    as_root,
    converse,
    echo,
    leave_behind,
    place,
    program,
    refusal,
)
from .support import eventually, run_child, run_thread

pytestmark = pytest.mark.usefixtures(place.__name__)


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


def connect_with_few(spare: int) -> Any:
    """Connect with so many descriptors left; what is received, or the errno."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    hoard = []
    with contextlib.suppress(OSError):
        while True:
            hoard.append(os.dup(0))
    for number in hoard[len(hoard) - spare :]:
        os.close(number)
    try:
        with shmpipe.connect("few", timeout=LIMIT) as connection:
            return connection.recv(timeout=LIMIT)
    except OSError as error:
        return error.errno


def test_a_client_with_few_descriptors_left() -> None:
    """However many are missing, it is told so; and the listener sees that it has gone."""
    with shmpipe.listen("few") as listener:

        def serve() -> None:
            for connection in listener:
                with contextlib.suppress(BrokenPipeError):
                    connection.send("welcome")

        serving = run_thread(serve)
        found = [run_child(connect_with_few, spare).join() for spare in range(6)]
        listener.close()
        serving.join()
    assert found[0] == errno.EMFILE and found[-1] == "welcome"
    assert set(found) == {errno.EMFILE, "welcome"}


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


# ---------------------------------------------------------------- liars


def answer(
    magic: bytes = answers._MAGIC, status: int = 0, rings: tuple[int, int] = (1, 0)
) -> bytes:
    return answers._ANSWER.pack(magic, status, *rings, nan)


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
    "unseen": (answer(status=errno.EXDEV), lambda _: [], OSError, errno.EXDEV),
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
            eventually(lambda: bool(answers.poll_fd(liar.fileno(), answers.POLLIN, 0)))
            (client,) = answers.accepted(liar)
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


@as_root
@pytest.mark.parametrize(
    ("mode", "number", "why"),
    [
        (0o600, errno.EADDRINUSE, "a socket of user 0, which this user may not look at"),
        (0o666, errno.EPERM, "left behind by user 0, and this user may not remove it"),
    ],
)
def test_what_another_user_has_left(mode: int, number: int, why: str, shared: Path) -> None:
    """In a directory as /tmp is."""
    os.chmod(shared, 0o1777)
    path = shared / "name"
    leave_behind(shared, str(path), mode)
    child = run_child(as_nobody, shmpipe.listen, path)
    with pytest.raises(OSError, match=why) as caught:
        child.join()
    assert (caught.value.errno, caught.value.filename) == (number, str(path))


@pytest.fixture
def inside(tmp_path: Path) -> Callable[..., list[str]]:
    """Makes a command that runs in namespaces of its own, with a /proc of its own."""

    def command(*options: str, proc: str = "") -> list[str]:
        mount = f"mount -t proc -o rw{proc} proc /proc"
        found = ["unshare", "--mount", *options, "sh", "-c", f'{mount} && exec "$@"', "sh"]
        if (
            not shutil.which("unshare")
            or subprocess.run([*found, "true"], capture_output=True, check=False).returncode
        ):
            pytest.skip("there is no unshare(1) here, or it is not permitted")
        return found

    return command


CONNECT = (
    "import os, shmpipe, sys",
    "if AS_NOBODY: os.setgroups([]); os.setgid(65534); os.setuid(65534)",
    "try: shmpipe.connect(NAME, timeout=20, users=[0] if AS_NOBODY else [])",
    "except OSError as error: raise SystemExit(error.errno)",
)


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["client", "listener"])
def test_another_pid_namespace(inner: str, inside: Callable[..., list[str]], place: Path) -> None:
    """A container, say, that shares the directory of names."""
    command = inside("--pid", "--fork")
    if inner == "client":
        with shmpipe.listen("apart") as listener:
            process = program("AS_NOBODY, NAME = 0, 'apart'", *CONNECT, before=command)
            assert process.wait(LIMIT) == errno.EXDEV
            with pytest.raises(TimeoutError):
                listener.accept(0)
        return
    process = program(
        "import shmpipe",
        "with shmpipe.listen('apart') as listener:",
        "    try: listener.accept(20)",
        "    except OSError: pass",
        before=command,
    )
    with pytest.raises(OSError, match="does not see this process") as caught:
        shmpipe.connect("apart", wait=True, timeout=LIMIT)
    assert caught.value.errno == errno.EXDEV
    process.terminate()
    for pid in pids_below(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait(LIMIT)


def pids_below(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@as_root
@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["noaccess", "invisible"])
def test_a_proc_that_hides_other_users(
    hidden: str, shared: Path, inside: Callable[..., list[str]]
) -> None:
    path = shared / "name"
    with shmpipe.listen(path, users=[NOBODY]) as listener:
        lines = f"AS_NOBODY, NAME = 1, {str(path)!r}", *CONNECT
        process = program(*lines, before=inside(proc=f",hidepid={hidden}"))
        assert process.wait(LIMIT) == errno.EXDEV
        with pytest.raises(TimeoutError):
            listener.accept(0)
