"""Who has a name: one listener at a time, whatever others leave behind, and no forked child."""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

import shmpipe
from shmpipe import answers, naming

from .meeting import LIMIT, NOBODY, as_root, converse, echo, files, leave_behind, place, refusal
from .support import Flag, eventually, run_child, run_thread

pytestmark = pytest.mark.usefixtures(place.__name__)


# ---------------------------------------------------------------- having a name


def test_a_name_has_one_listener(place: Path) -> None:
    with shmpipe.listen("one") as listener:
        assert refusal("one") == errno.EADDRINUSE
        assert run_child(refusal, "one").join() == errno.EADDRINUSE
        assert run_thread(refusal, "one").join() == errno.EADDRINUSE
        assert select.select([listener], [], [], 0)[0] == []  # who only looks is no client
        child = run_child(echo, "one")
        with listener.accept(LIMIT) as connection:
            converse(connection)
        child.join()
        assert files(place) == ["one"]
    assert refusal("one") == 0


def test_a_name_that_was_left_behind_is_taken_over(place: Path) -> None:
    leave_behind(place, "old")
    assert files(place) == ["old"]
    (place / "old.lock").touch()  # of one that was killed while it looked
    with shmpipe.listen("old") as listener:
        child = run_child(echo, "old")
        with listener.accept(LIMIT) as connection:
            converse(connection)
        child.join()
    assert files(place) == []


@pytest.mark.slow
def test_one_of_many_takes_it_over(place: Path) -> None:
    """Whoever has it is the one that can be reached."""
    count = 6

    def compete(start: Flag, end: Flag) -> bool:
        start.wait()
        try:
            listener = shmpipe.listen("old")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        with listener, listener.accept(LIMIT) as connection:
            connection.send(os.getpid())
            end.wait()
        return True

    for _ in range(15):
        leave_behind(place, "old")
        with Flag() as start, Flag() as end:
            children = [run_child(compete, start, end) for _ in range(count)]
            start.set()
            with shmpipe.connect("old", wait=True, timeout=LIMIT) as connection:
                winner = connection.recv(timeout=LIMIT)
            losers = [child for child in children if child.pid != winner]
            assert [child.join() for child in losers] == [False] * (count - 1)
            end.set()
            assert [child.join() for child in children if child.pid == winner] == [True]
        assert files(place) == []


def test_other_files_stay(place: Path, tmp_path: Path) -> None:
    place.mkdir(mode=0o700)
    (place / "file").write_text("kept")
    (place / "link").symlink_to(tmp_path / "elsewhere")
    (place / "directory").mkdir()
    for name in ("file", "link", "directory"):
        assert refusal(name) == errno.EADDRINUSE
    assert (place / "file").read_text() == "kept"
    assert files(place) == ["directory", "file", "link"]
    assert not (tmp_path / "elsewhere").exists()


def test_one_that_is_replaced_leaves_the_name_alone() -> None:
    """As after somebody has tidied up the directory."""
    with shmpipe.listen("tidied") as old:
        os.unlink(old.path)
        with shmpipe.listen("tidied") as new:
            old.close()
            child = run_child(echo, "tidied")
            with new.accept(LIMIT) as connection:
                converse(connection)
            child.join()


def test_directory_that_is_removed(place: Path) -> None:
    with shmpipe.listen("a"):
        os.unlink(place / "a")
        place.rmdir()


def test_another_that_looks_holds_nobody_up_for_long(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(naming, "_PATIENCE", 0.05)
    place.mkdir(mode=0o700)
    guard = naming._lock(str(place / "held"))
    assert refusal("held") == errno.EADDRINUSE
    guard.close()
    assert refusal("held") == 0


def test_a_lock_that_is_removed_is_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder removes it between our opening and our locking it, and another makes a new one."""
    place.mkdir(mode=0o700)
    path, flock, files_seen = place / "held.lock", naming.fcntl.flock, []

    def removing(guard: Any, how: int) -> None:
        if not files_seen:
            path.unlink()
            path.touch()
        files_seen.append(os.fstat(guard.fileno()).st_ino)
        flock(guard, how)

    monkeypatch.setattr(naming.fcntl, "flock", removing)
    guard = naming._lock(str(place / "held"))
    assert os.fstat(guard.fileno()).st_ino == path.stat().st_ino
    assert len(set(files_seen)) == len(files_seen) == 2
    guard.close()


# ---------------------------------------------------------------- the private directory


def test_the_directory_is_private(place: Path) -> None:
    before = os.umask(0)
    try:
        with shmpipe.listen("a") as listener:
            assert stat.S_IMODE(place.stat().st_mode) == 0o700
            assert stat.S_IMODE(os.stat(listener.path).st_mode) == 0o600
        os.umask(0o777)
        with shmpipe.listen(place.parent / "b", mode=0o660) as listener:
            assert stat.S_IMODE(os.stat(listener.path).st_mode) == 0o660
    finally:
        os.umask(before)


def refused(place: Path) -> None:
    for call in (shmpipe.listen, shmpipe.connect):
        with pytest.raises(PermissionError, match=str(place)):
            call("a")


def test_a_directory_that_others_may_use(place: Path) -> None:
    for mode in (0o750, 0o701, 0o777):
        place.mkdir()
        place.chmod(mode)
        refused(place)
        place.rmdir()


def test_a_directory_that_is_none(place: Path) -> None:
    elsewhere = place.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)
    refused(place)
    assert list(elsewhere.iterdir()) == []
    place.unlink()
    place.touch()
    refused(place)


@as_root
def test_a_directory_of_somebody_else(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, NOBODY, NOBODY)
    refused(place)


@pytest.mark.parametrize("runtime", ["", "relative", "/dev/null", "/does/not/exist", "nobody's"])
def test_without_a_runtime_directory(
    runtime: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is in the directory for temporary files, and has the user's number in its name."""
    if runtime == "nobody's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        runtime = tempfile.mkdtemp(dir=place.parent)
        os.chown(runtime, NOBODY, NOBODY)
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setattr(tempfile, "tempdir", str(place.parent))
    with shmpipe.listen("a") as listener:
        assert listener.path == str(place.parent / f"shmpipe-{os.geteuid()}" / "a")


# ---------------------------------------------------------------- forks


def test_a_forked_child_has_no_listener(place: Path) -> None:
    with shmpipe.listen("parents") as listener:

        def child() -> tuple[bool, str, bool]:
            closed = listener.closed
            try:
                listener.accept()
            except OSError as error:
                text = str(error)
            listener.close()
            return closed, text, list(listener) == []

        assert run_child(child).join() == (True, "listener is closed", True)
        running = run_child(echo, "parents")
        with listener.accept(LIMIT) as connection:
            converse(connection)
        running.join()
    assert files(place) == []


def test_a_child_does_not_keep_its_parents_name() -> None:
    """The parent is killed; the child, which had nothing to do with it, lives on."""
    with Flag() as ready, Flag() as end:

        def parent() -> None:
            with shmpipe.listen("inherited"):
                if os.fork() == 0:
                    ready.set()
                    end.wait()
                    os._exit(0)
                signal.pause()

        child = run_child(parent)
        ready.wait()
        assert refusal("inherited") == errno.EADDRINUSE
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: refusal("inherited") == 0)
        end.set()


def test_a_server_that_forks() -> None:
    """A process for each connection, as socketserver's ForkingMixIn does it."""

    def serve(connection: Any) -> None:
        with connection:
            for thing in connection:
                connection.send((os.getpid(), thing))

    with shmpipe.listen("forking") as listener:
        clients = [run_child(ask_once, "forking", number) for number in range(4)]
        servers = []
        for _ in clients:
            with listener.accept(LIMIT) as connection:
                servers.append(run_child(serve, connection))
        answers = [client.join() for client in clients]
        for server in servers:
            server.join()
    assert [answer[1] for answer in answers] == [0, 1, 2, 3]
    assert {answer[0] for answer in answers} == {server.pid for server in servers}


def ask_once(name: str, thing: Any) -> Any:
    with shmpipe.connect(name, wait=True, timeout=LIMIT) as connection:
        connection.send(thing)
        return connection.recv(timeout=LIMIT)


def test_forked_in_the_middle_of_a_hand_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another thread: the child must not keep the client's end open."""
    answer, children = answers.answer, []

    def forking(*args: Any) -> bool:
        children.append(run_child(signal.pause))
        return answer(*args)

    monkeypatch.setattr(answers, "answer", forking)
    with shmpipe.listen("middle") as listener:
        connecting = run_thread(shmpipe.connect, "middle")
        with listener.accept(LIMIT) as ours:
            connecting.join().close()
            with pytest.raises(EOFError):
                ours.recv(timeout=LIMIT)
            for child in children:
                assert child.alive()
                child.kill()
    assert children
