"""``listen()`` and ``connect()``: a connection between processes that are not related.

They meet at a socket in the file system (see ``naming``), and only meet there.  For each client the
listener makes a new ``Pipe()`` and hands one end over, in one message, the *answer* (see there).
Then both forget the socket.

The client says nothing.  So the listener never waits for one: whoever connects and does nothing
more gets a connection, of which nobody takes notice.  Who has gone before the answer is passed
over, and who goes after it, in whatever way, is a peer that has gone: the descriptors in the answer
are closed with it.  And a client whose listener goes before the answer sees that as an end of file.

Both sides ask the kernel who the other one is.  To receive is to unpickle, so that holds for the
client as well: anybody could listen at a path that anybody can write to.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from sys import is_finalizing
from typing import TYPE_CHECKING, Any

from . import answers
from .arguments import check_int
from .connection import Connection, Pipe
from .deadlines import deadline_of, remaining
from .naming import BACKLOG, Door, check_name, claim, door, give_up, kept_back, locate
from .peers import Users, ids_of, is_hidden, peer_of
from .primitives import POLLIN, poll_fd

if TYPE_CHECKING:
    from typing import Literal

    from .policies import WakePolicy

    Direction = Literal["both", "receive", "send"]

_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.05  # seconds between two tries to connect

DIRECTIONS = ("both", "receive", "send")

Name = str | os.PathLike[str]


def listen(
    name: Name,
    *,
    direction: Direction = "both",
    users: Users = (),
    mode: int | None = None,
    size: int = 4 << 20,
    write_size: int | None = None,
    max_size: int | None = None,
    spin: float | None = None,
    wake: WakePolicy = "write-size",
) -> Listener:
    """Take a name that unrelated processes can ``connect()`` to; they are accepted one by one.

    name: 1 to 64 ASCII letters, digits, "_", "-" and "." (not first "-" or "."), for processes of
        the same user; or an absolute path, whose directory exists.  (A path object is a path.)
        Neither ends in ".lock".  A name that was left behind by a listener that has died is taken
        over.
    direction: "both", or what the listener does: with "receive" it only receives and the clients
        only send, with "send" it only sends.
    users: user ids, or names of users, that may connect beside the user this process acts as.  Only
        with a path.
    mode: permissions of the socket's file, 0 to 0o777.  Default: 0o600, or 0o666 where there are
        ``users``.
    size, write_size, max_size, spin, wake: of every connection, as for ``Pipe()``: the listener
        decides for both ends.

    OSError EADDRINUSE: somebody listens on it already, or there is a file of another kind, or
    another user's socket that this one may not look at.  PermissionError: it was left behind by
    another user, and the directory lets nobody else remove it; or the directory for names is not
    this user's alone, or a path's directory does not let this user make files.  FileNotFoundError:
    a path's directory is not there.  OSError ENAMETOOLONG: the path is too long for a socket.
    ValueError: no such name, direction, user or mode; users without a path; and as for ``Pipe()``.
    Where an error has a ``filename``, that is the path of the socket (or the directory for names,
    if that is what is wrong).
    """
    sizes = {"size": size, "write_size": write_size, "max_size": max_size}
    return Listener(name, direction, users, mode, {**sizes, "spin": spin, "wake": wake})


def connect(
    name: Name, *, wait: bool = False, users: Users = (), timeout: float | None = None
) -> Connection:
    """The client's end of a new connection to whoever listens on ``name``.

    Waits until the listener accepts; with ``wait`` also until there is one, if nobody listens yet.

    name: as for ``listen()``.
    users: user ids, or names of users, whose listeners are trusted beside those of the user this
        process acts as.  Only with a path.
    timeout: seconds for all of it; None or infinity: without limit.

    FileNotFoundError: there is no such name.  ConnectionRefusedError: the name was left behind.
    ConnectionResetError: the listener has gone before it accepted.  (None of these with ``wait``.)
    TimeoutError: out of time.  OSError EMFILE: this process has no descriptors left, of which the
    end takes two, and two more while it connects.  PermissionError: the listener is another user's,
    or does not accept this one; or the directory for names is not this user's alone.  OSError
    EPROTOTYPE or EBADMSG: that is not a listener of shmpipe, or one of another version.  OSError
    EXDEV: the two processes do not see each other in /proc: another pid namespace (container), or
    another user's and /proc hides those; pipes do not work there.  ValueError: no such name, or no
    such user.
    """
    name = check_name(name)
    trusted = ids_of(users, name)
    deadline = deadline_of(timeout)
    pause = _FIRST_PAUSE
    while True:
        try:
            return answers.ask(name, trusted, deadline)
        except BlockingIOError as error:  # too many wait to be accepted
            failure: OSError = error
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError) as error:
            if not wait:
                raise
            failure = error
        try:
            left = remaining(deadline)
            if left is not None and left <= 0:
                there = not isinstance(failure, (FileNotFoundError, ConnectionRefusedError))
                what = "accepted as" if there else "begun to listen on"
                raise TimeoutError(f"nobody has {what} {name!r} in time") from failure
            time.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, _LAST_PAUSE)
        finally:
            del failure  # whose traceback has this frame


class Listener:
    """What ``listen()`` returns: has a name until it is closed, and accepts those who connect.

    Threads may share it.  It stays with its process: in a forked child it is closed, and the name
    remains the parent's.  ``with`` closes it; iterating over it gives connections until then.
    """

    _door: Door | None = None  # also for one whose construction failed

    def __init__(
        self, name: Name, direction: str, users: Users, mode: int | None, options: dict[str, Any]
    ) -> None:
        """See ``listen()``."""
        if direction not in DIRECTIONS:
            allowed = ", ".join(map(repr, DIRECTIONS))
            raise ValueError(f"direction is {direction!r}: allowed are {allowed}")
        self._direction = direction
        self._options = options
        for end in self._pipe():  # what is wrong with the options is to be known now
            end.close()
        self._name = check_name(name)
        self._users = ids_of(users, self._name)
        if mode is None:
            mode = 0o600 if len(self._users) == 1 else 0o666
        elif not 0 <= check_int("mode", mode) <= 0o777:
            raise ValueError(f"mode is {mode:#o}: allowed are 0 to 0o777")
        self._path = locate(self._name, make=True)
        mine = door()
        # Before it listens: a child that another thread forks meanwhile has to close it.
        kept_back.put(id(mine), mine)
        self._file = claim(self._path, mine, mode)
        self._door = mine

    # --- states ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """As it was given to ``listen()``."""
        return self._name

    @property
    def path(self) -> str:
        """The path of the socket's file."""
        return self._path

    @property
    def closed(self) -> bool:
        """True after ``close()``, and in a forked child."""
        mine = self._door
        return mine is None or mine.fileno() < 0

    def _open_door(self) -> Door:
        mine = self._door
        if mine is None or mine.fileno() < 0:
            raise OSError("listener is closed")
        return mine

    def fileno(self) -> int:
        """A descriptor that is readable when somebody wants to connect.

        For watching only.  Whoever it was may have gone, so use ``accept(0)`` and be prepared for
        TimeoutError.  OSError: the listener is closed.
        """
        return self._open_door().fileno()

    def close(self) -> None:
        """Give up the name; again: nothing.  Connections that were accepted go on.

        Those who wait to be accepted get ConnectionResetError, and a thread that waits in
        ``accept()`` OSError "listener is closed".
        """
        mine = self._door
        if mine is None:
            return
        if mine.fileno() >= 0:  # not so in a forked child, to which the name does not belong
            give_up(self._path, self._file)  # first: as long as we listen the file is ours
            try:
                mine.shutdown(socket.SHUT_RDWR)  # wakes those who wait in accept()
            except OSError:
                pass
        self._door = None  # closed with the last reference: a thread may be in a call

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:
            # When the interpreter ends, modules may be emptied first (see ``Connection``).
            if is_finalizing is not None and not is_finalizing():
                raise

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<{type(self).__module__}.{type(self).__qualname__} {self._name!r}{state}>"

    # --- accepting -------------------------------------------------------------------------------

    def accept(self, timeout: float | None = None) -> Connection:
        """This side's end of a connection with the next who wants one.

        timeout: seconds; None or infinity: without limit.  0: only who is waiting already.

        No client can make it wait: nothing is received from them here.  It does not return for
        those that are turned away (other users than ``users``, and processes that cannot be seen in
        /proc, see ``connect()``) or have gone meanwhile.

        TimeoutError: nobody came in time.  OSError "listener is closed": it is, perhaps since just
        now.  OSError EMFILE, ENFILE or ENOMEM: the system has nothing left for a connection; the
        listener can be used further.  ValueError: ``timeout`` is NaN.
        """
        deadline = deadline_of(timeout)
        in_vain = 0  # that were turned away, or had gone, when the time was up
        while True:
            mine = self._open_door()  # a handler may have closed it, or forked
            accepted = answers.accepted(mine)
            connection = self._for(accepted[0]) if accepted else None
            if connection is not None:
                return connection
            left = remaining(deadline)
            in_time = left is None or left > 0
            if not in_time and (not accepted or in_vain == BACKLOG):
                raise TimeoutError(f"nobody has connected to {self._name!r} in time")
            if not accepted:
                poll_fd(mine.fileno(), POLLIN, left)
            elif not in_time:
                in_vain += 1  # behind those that are none, one may be waiting

    def __iter__(self) -> Iterator[Connection]:
        """The connections accepted, until the listener is closed."""
        while True:
            try:
                connection = self.accept()
            except OSError:
                if self.closed:
                    return
                raise
            yield connection
            del connection  # or it would stay open until the next one comes

    def _pipe(self) -> tuple[Connection, Connection]:
        """The listener's end and the client's."""
        first, second = Pipe(self._direction == "both", **self._options)
        return (second, first) if self._direction == "send" else (first, second)

    def _for(self, client: Door) -> Connection | None:
        """The connection with a client; None: it is none of ours, or has gone."""
        process, user = peer_of(client)
        if user not in self._users:
            answers.answer(client, errno.EACCES)
            return None
        if is_hidden(process):
            answers.answer(client, errno.EXDEV)
            return None
        ours, theirs = self._pipe()
        kept_back.put(id(theirs), theirs)  # a child forked now would keep the client's end open
        try:
            handed = answers.answer(client, 0, theirs)
        finally:
            theirs.close()
        if handed:
            return ours
        ours.close()
        return None
