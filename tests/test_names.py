"""Names for processes that are not related: `listen()` and `connect()`."""

from __future__ import annotations

import contextlib
import errno
import pickle
import select
import signal
from pathlib import Path
from typing import Any

import pytest

import shmpipe
from shmpipe import naming

from .meeting import LIMIT, converse, echo, echo_at, files, leave_behind, place, program, refusal
from .support import (
    context_switches,
    eventually,
    run_child,
    run_process,
    run_thread,
)

pytestmark = pytest.mark.usefixtures(place.__name__)

PACKAGE = Path(shmpipe.__file__).parent
ECHO = (
    "import shmpipe",
    f"with shmpipe.connect('apart', timeout={LIMIT}) as connection:",
    "    for thing in connection:",
    "        connection.send(thing)",
)


# ---------------------------------------------------------------- meeting


@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))],
)
def test_processes_meet(method: str, place: Path) -> None:
    with shmpipe.listen("meet") as listener:
        child = run_process(method, echo_at, str(place.parent), "meet")
        with listener.accept(LIMIT) as connection:
            converse(connection)
        assert child.join() == 2
        assert files(place) == ["meet"]
    assert files(place) == []


@pytest.mark.parametrize("engine", ["same", "other"])
def test_a_program_of_its_own_meets_us(engine: str) -> None:
    name = shmpipe.engine
    if engine == "other":
        if not any(PACKAGE.glob("primitives.*.so")):
            pytest.skip("there is only one engine here")
        name = {"native": "pure", "pure": "native"}[name]
    with shmpipe.listen("apart") as listener:
        process = program(*ECHO, SHMPIPE_ENGINE=name)
        try:
            with listener.accept(LIMIT) as connection:
                converse(connection)
        finally:
            assert process.wait(LIMIT) == 0


def test_the_listener_need_not_be_first() -> None:
    child = run_child(echo, "later", True)
    eventually(lambda: context_switches(child.pid) > 3)
    with shmpipe.listen("later") as listener, listener.accept(LIMIT) as connection:
        converse(connection)
    assert child.join() == 2


def test_at_a_path(place: Path) -> None:
    path = place.parent / "here"
    with shmpipe.listen(path) as listener:
        child = run_child(echo, str(path))
        with listener.accept(LIMIT) as connection:
            converse(connection)
        child.join()
        assert listener.path == listener.name == str(path)
    assert not path.exists()
    assert not place.exists()


@pytest.mark.parametrize(
    ("direction", "ours", "theirs"),
    [
        ("both", (True, True), (True, True)),
        ("receive", (True, False), (False, True)),
        ("send", (False, True), (True, False)),
    ],
)
def test_directions(direction: str, ours: tuple[bool, bool], theirs: tuple[bool, bool]) -> None:
    with shmpipe.listen("way", direction=direction) as listener:
        connecting = run_thread(shmpipe.connect, "way")
        with listener.accept(LIMIT) as mine, connecting.join() as other:
            assert (mine.readable, mine.writable) == ours
            assert (other.readable, other.writable) == theirs
            for source, target in ((mine, other), (other, mine)):
                if source.writable:
                    source.send(source.readable)
                    assert target.recv(timeout=LIMIT) is source.readable


def test_the_listener_decides_the_options() -> None:
    options: dict[str, Any] = {"size": 1 << 16, "write_size": 1 << 13, "wake": "half", "spin": 0.25}
    with shmpipe.listen("options", **options) as listener:
        connecting = run_thread(shmpipe.connect, "options")
        with listener.accept(LIMIT) as ours, connecting.join() as theirs:
            for end in (ours, theirs):
                assert shmpipe.fcntl(end, shmpipe.F_GETPIPE_SZ) == 1 << 16
                assert shmpipe.fcntl(end, shmpipe.F_GETPIPE_WRITE_SZ) == 1 << 13
                assert end._spin == 0.25
            ours.send_bytes(b"x" * 1000)
            with theirs.recv_view(timeout=LIMIT) as view:
                assert view == b"x" * 1000


def test_names_do_not_mix() -> None:
    with shmpipe.listen("one") as one, shmpipe.listen("two") as two:
        connecting = run_thread(shmpipe.connect, "two")
        with two.accept(LIMIT) as ours, connecting.join() as theirs:
            with pytest.raises(TimeoutError):
                one.accept(0)
            theirs.send(2)
            assert ours.recv() == 2


@pytest.mark.slow
def test_three_hundred_at_once() -> None:
    """All are open at the same time, and each talks to its own partner."""
    each, children, threads = 100, 3, 3

    def clients(who: int) -> list[Any]:
        ends = [shmpipe.connect("crowd", wait=True, timeout=LIMIT) for _ in range(each)]
        for number, end in enumerate(ends):
            end.send((who, number))
        return [end.recv(timeout=LIMIT) for end in ends]

    started = [run_child(clients, who) for who in range(children)]
    accepted: list[Any] = []

    def accept() -> None:
        for _ in range(each * children // threads):
            accepted.append(listener.accept(LIMIT))

    with shmpipe.listen("crowd", size=4096, max_size=4096) as listener:
        for thread in [run_thread(accept) for _ in range(threads)]:
            thread.join()
        for end in accepted:
            end.send(end.recv(timeout=LIMIT))
        for who, child in enumerate(started):
            assert child.join() == [(who, number) for number in range(each)]
        for end in accepted:
            with pytest.raises(EOFError):
                end.recv(timeout=LIMIT)
            end.close()


# ---------------------------------------------------------------- waiting


def test_nobody_there(place: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(place)):
        shmpipe.connect("nobody")
    assert not place.exists()
    with shmpipe.listen("other"), pytest.raises(FileNotFoundError, match="nobody"):
        shmpipe.connect("nobody", timeout=5)
    leave_behind(place, "nobody")
    with pytest.raises(ConnectionRefusedError, match="nobody"):
        shmpipe.connect("nobody")


def test_out_of_time(place: Path) -> None:
    with pytest.raises(TimeoutError, match="'nobody'"):
        shmpipe.connect("nobody", wait=True, timeout=0.03)
    leave_behind(place, "nobody")
    with pytest.raises(TimeoutError, match="'nobody'"):
        shmpipe.connect("nobody", wait=True, timeout=0.03)
    with shmpipe.listen("busy") as listener:
        for wait in (False, True):
            with pytest.raises(TimeoutError, match="'busy'"):
                shmpipe.connect("busy", wait=wait, timeout=0.03)
        for limit in (0, 0.03, -1):
            with pytest.raises(TimeoutError, match="'busy'"):
                listener.accept(limit)  # the two have gone
        with pytest.raises(ValueError, match="NaN"):
            listener.accept(float("nan"))
        with pytest.raises(TypeError):
            listener.accept("1")  # type: ignore[arg-type]


def test_more_wait_than_the_kernel_lets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "BACKLOG", 1)
    with shmpipe.listen("full") as listener, contextlib.ExitStack() as stack:
        for _ in range(2):  # one more than its backlog, in Linux
            waiting = stack.enter_context(contextlib.closing(naming.door()))
            waiting.connect(listener.path)
        with contextlib.closing(naming.door()) as waiting, pytest.raises(BlockingIOError):
            waiting.connect(listener.path)
        with pytest.raises(TimeoutError):
            shmpipe.connect("full", timeout=0.03)
        connecting = run_thread(shmpipe.connect, "full")
        stack.pop_all().close()
        with listener.accept(LIMIT) as ours, connecting.join() as theirs:
            theirs.send(1)
            assert ours.recv() == 1


def test_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with shmpipe.listen("watched") as listener:
        poller = select.poll()
        poller.register(listener, select.POLLIN)
        assert poller.poll(0) == []
        connecting = run_thread(shmpipe.connect, "watched")
        assert poller.poll(LIMIT * 1000) == [(listener.fileno(), select.POLLIN)]
        with listener.accept(0), connecting.join():
            assert poller.poll(0) == []


def test_interrupted_while_waiting() -> None:
    def interrupted(call: Any, *args: Any) -> bool:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            call(*args)
        except KeyboardInterrupt:
            return True
        return False

    with shmpipe.listen("never") as listener:
        for call, argument in ((listener_of, "mine"), (shmpipe.connect, "never")):
            child = run_child(interrupted, call, argument)
            child.wait_asleep()
            child.kill(signal.SIGINT)
            assert child.join() is True
        with pytest.raises(TimeoutError):
            listener.accept(0)


def listener_of(name: str) -> None:
    with shmpipe.listen(name) as listener:
        listener.accept()


# ---------------------------------------------------------------- closing


def test_a_closed_listener() -> None:
    listener = shmpipe.listen("gone")
    assert repr(listener) == "<shmpipe.rendezvous.Listener 'gone'>"
    assert not listener.closed
    listener.close()
    listener.close()
    assert listener.closed and listener.name == "gone"
    assert repr(listener) == "<shmpipe.rendezvous.Listener 'gone' closed>"
    for call in (listener.accept, listener.fileno):
        with pytest.raises(OSError, match="listener is closed"):
            call()
    assert list(listener) == []


def test_closed_while_others_wait(place: Path) -> None:
    listener = shmpipe.listen("gone")
    accepting, iterating = run_thread(listener.accept), run_thread(list, listener)
    accepting.wait_asleep()
    iterating.wait_asleep()
    listener.close()
    with pytest.raises(OSError, match="listener is closed"):
        accepting.join()
    assert iterating.join() == []
    listener = shmpipe.listen("gone")
    connecting = run_thread(shmpipe.connect, "gone")
    waiting_on = run_thread(echo, "gone", True)
    eventually(lambda: select.select([listener], [], [], 0)[0])
    connecting.wait_asleep()
    waiting_on.wait_asleep()
    listener.close()
    with pytest.raises(ConnectionResetError):
        connecting.join()
    # With `wait`, the next one will do.
    with shmpipe.listen("gone") as listener, listener.accept(LIMIT) as connection:
        converse(connection)
    waiting_on.join()


def test_closed_by_a_handler() -> None:
    listener = shmpipe.listen("handler")
    before = signal.signal(signal.SIGALRM, lambda *_: listener.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        assert list(listener) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_dropped_without_being_closed(place: Path) -> None:
    listener = shmpipe.listen("dropped")
    assert files(place) == ["dropped"]
    del listener
    assert files(place) == []


def test_at_the_end_of_a_program(place: Path) -> None:
    assert program("import shmpipe", "listener = shmpipe.listen('end')").wait(LIMIT) == 0
    assert files(place) == []


def test_who_has_gone_does_not_hide_who_waits() -> None:
    with shmpipe.listen("strings") as listener:
        for _ in range(3):
            with contextlib.closing(naming.door()) as gone:
                gone.connect(listener.path)
        connecting = run_thread(shmpipe.connect, "strings")
        connecting.wait_asleep()
        with listener.accept(timeout=0) as ours, connecting.join() as theirs:
            ours.send("here")
            assert theirs.recv() == "here"
        with pytest.raises(TimeoutError):
            listener.accept(timeout=0)


def test_iteration_keeps_nothing_open() -> None:
    with shmpipe.listen("loop") as listener:
        connecting = run_thread(shmpipe.connect, "loop")
        for connection in listener:
            connection.close()
            break
        with connecting.join() as end, pytest.raises(EOFError):
            end.recv(timeout=LIMIT)
        connecting = run_thread(shmpipe.connect, "loop")
        connections = iter(listener)
        next(connections)
        run = run_thread(next, connections, None)
        with connecting.join() as end, pytest.raises(EOFError):
            end.recv(timeout=LIMIT)
        listener.close()
        run.join()


def test_connections_outlive_the_listener() -> None:
    with shmpipe.listen("outlived") as listener:
        child = run_child(echo, "outlived", close=[])
        connection = listener.accept(LIMIT)
    with connection:
        converse(connection)
    child.join()


def test_a_listener_is_not_for_other_processes() -> None:
    with shmpipe.listen("mine") as listener, pytest.raises(TypeError):
        pickle.dumps(listener)


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-x", "a b", "a/b", "./a", "ä", "a\n", "x" * 65, "a.lock", "a\0b"]
    + ["/", "/tmp/", "/tmp/.", "/tmp/..", "/tmp/a\0b", "/tmp/a.lock"],
)
def test_no_names(name: str) -> None:
    for call in (shmpipe.listen, shmpipe.connect):
        with pytest.raises(ValueError, match=r"name|path|\.lock"):
            call(name)


@pytest.mark.parametrize("path", ["a", "./a", "a/b"])
def test_a_path_object_is_a_path(path: str) -> None:
    """ "./a" and "a" are the same to it, so it does not mean a name where a string is none."""
    for call in (shmpipe.listen, shmpipe.connect):
        with pytest.raises(ValueError, match="relative"):
            call(Path(path))


def test_out_of_time_says_what_was_waited_for(place: Path) -> None:
    for _ in range(2):
        with pytest.raises(TimeoutError, match="nobody has begun to listen on 'nobody'"):
            shmpipe.connect("nobody", wait=True, timeout=0.01)
        leave_behind(place, "nobody")
    with shmpipe.listen("busy"), pytest.raises(TimeoutError, match="'busy' has not accepted"):
        shmpipe.connect("busy", wait=True, timeout=0.01)


@pytest.mark.parametrize("user", [-5, 2**32 - 1])
def test_no_users(user: int, tmp_path: Path) -> None:
    for call in (shmpipe.listen, shmpipe.connect):
        with pytest.raises(ValueError, match=f"users: {user} is no user id"):
            call(tmp_path / "name", users=[user])


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"/tmp/bytes"


@pytest.mark.parametrize(
    ("name", "kind"), [(b"bytes", "bytes"), (3, "int"), (None, "NoneType"), (BytesPath(), "bytes")]
)
def test_no_strings(name: Any, kind: str) -> None:
    for call in (shmpipe.listen, shmpipe.connect):
        with pytest.raises(TypeError, match=rf"must be a string, or a path .* not {kind}$"):
            call(name)


@pytest.mark.parametrize("name", ["a", "_", "7", "x" * 64, "camera-2.raw", "a.b_c-d"])
def test_good_names(name: str) -> None:
    assert refusal(name) == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"direction": "out"}, ValueError),
        ({"wake": "never"}, ValueError),
        ({"spin": 2}, ValueError),
        ({"size": -1}, OSError),
        ({"size": 4096, "write_size": 8192}, OSError),
        ({"size": "1"}, TypeError),
        ({"users": [1]}, ValueError),
        ({"users": ["no such user"]}, ValueError),
        ({"users": "root"}, TypeError),
        ({"users": [1.5]}, TypeError),
        ({"users": 1}, TypeError),
        ({"users": b"root"}, TypeError),
        ({"users": None}, TypeError),
        ({"mode": "0600"}, TypeError),
        ({"mode": 0o600 + 0.0}, TypeError),
        ({"mode": -1}, ValueError),
        ({"mode": 0o1777}, ValueError),
        ({"mode": 1 << 40}, ValueError),
    ],
)
def test_bad_options_are_known_at_once(
    options: dict[str, Any], error: type[Exception], place: Path
) -> None:
    name = next(iter(options))
    with pytest.raises(error, match=rf"\b{name.rstrip('s')}"):
        shmpipe.listen("bad", **options)
    assert not place.exists()


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100)
    for call in (shmpipe.listen, shmpipe.connect):
        with pytest.raises(OSError, match=r"107 bytes") as caught:
            call(path)
        assert caught.value.errno == errno.ENAMETOOLONG


def test_a_path_without_a_directory(tmp_path: Path) -> None:
    """The error names what the caller has given, not the lock beside it."""
    path = tmp_path / "none" / "name"
    with pytest.raises(FileNotFoundError, match=f"no directory '{path.parent}'") as caught:
        shmpipe.listen(path)
    assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as caught:
        shmpipe.connect(path)
    assert caught.value.filename == str(path)


def test_a_path_in_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "file" / "name"
    path.parent.touch()
    with pytest.raises(NotADirectoryError, match=f"'{path.parent}' is not a directory") as caught:
        shmpipe.listen(path)
    assert caught.value.filename == str(path)


def test_a_path_without_space_for_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "name"
    (tmp_path / "name.lock").mkdir()
    with pytest.raises(IsADirectoryError, match=r"for the file 'name\.lock' beside it") as caught:
        shmpipe.listen(path)
    assert caught.value.filename == str(path)


def test_a_path_where_there_are_no_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that has none: the socket's own error names no file."""

    def refuse(mine: naming.Door, path: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(naming.Door, "bind", refuse)
    with pytest.raises(PermissionError) as caught:
        shmpipe.listen(tmp_path / "name")
    assert caught.value.filename == str(tmp_path / "name")
    assert files(tmp_path) == []


def test_a_name_before_there_are_any(place: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        shmpipe.connect("nobody")
    assert caught.value.filename == str(place / "nobody")
    assert not place.exists()
