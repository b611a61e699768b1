"""``listen()`` and ``connect()``: a connection between processes that are not related.

They meet at a socket in the file system (see ``naming``), and only meet there.  For each client the
listener makes a new ``Pipe()`` and hands one end over: one message, the *answer*, with the ends'
two descriptors.  Then both forget the socket.

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
import stat
import struct
import time
from array import array
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from math import isnan, nan
from operator import itemgetter
from sys import is_finalizing
from typing import Any

from . import identity
from .arguments import check_int
from .connection import Connection, Pipe
from .descriptors import Descriptor, owned
from .doorbell import Doorbell, adopted
from .ends import closed_handle
from .messages import deadline_of
from .naming import Door, check_name, claim, door, give_up, is_plain, kept_back, locate, named
from .primitives import POLLIN, poll_fd
from .segment import Segment

# The answer: magic and version, an errno or 0, the numbers of the ring that the client reads from
# and of the one it writes to (-1: none), seconds to spin (NaN: None).
_ANSWER = struct.Struct("<8sibb2xd")
_MAGIC = b"shmpipe\x01"
_RINGS = {(1, 0), (0, -1), (-1, 0)}
_CREDENTIALS = struct.Struct("iII")  # the kernel's struct ucred: pid, uid, gid
_SPACE = socket.CMSG_SPACE(2 * array("i").itemsize)
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.05  # seconds between two tries to connect

DIRECTIONS = ("both", "receive", "send")

Users = Iterable[int | str]
Name = str | os.PathLike[str]


def listen(
    name: Name,
    *,
    direction: str = "both",
    users: Users = (),
    mode: int | None = None,
    size: int = 4 << 20,
    write_size: int | None = None,
    max_size: int | None = None,
    spin: float | None = None,
    wake: str = "write-size",
) -> Listener:
    """Take a name that unrelated processes can ``connect()`` to; they are accepted one by one.

    name: 1 to 64 ASCII letters, digits, "_", "-" and "." (not first "-" or "."), for processes of
        the same user; or an absolute path, whose directory exists.  Neither ends in ".lock".  A
        name that was left behind by a listener that has died is taken over.
    direction: "both", or what the listener does: with "receive" it only receives and the clients
        only send, with "send" it only sends.
    users: user ids, or names of users, that may connect beside the user this process acts as.  Only
        with a path.
    mode: permissions of the socket's file, 0 to 0o777.  Default: 0o600, or 0o666 where there are
        ``users``.
    size, write_size, max_size, spin, wake: of every connection, as for ``Pipe()``: the listener
        decides for both ends.

    OSError EADDRINUSE: somebody listens on it already, or there is a file of another kind.
    PermissionError: the directory for names is not this user's alone, or a path's directory does
    not let this user make files.  FileNotFoundError: a path's directory is not there.  OSError
    ENAMETOOLONG: the path is too long for a socket.  ValueError: no such name, direction, user or
    mode; users without a path; and as for ``Pipe()``.  Where an error has a ``filename``, that is
    the path of the socket (or the directory for names, if that is what is wrong).
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
    TimeoutError: out of time.  PermissionError: the listener is another user's, or does not accept
    this one; or the directory for names is not this user's alone.  OSError EPROTOTYPE or EBADMSG:
    that is not a listener of shmpipe, or one of another version.  OSError EXDEV: the two
    processes do not see each other in /proc: another pid namespace (container), or another user's
    and /proc hides those; pipes do not work there.  ValueError: no such name or user.
    """
    name = check_name(name)
    trusted = _ids(users, name)
    deadline = deadline_of(timeout)
    pause = _FIRST_PAUSE
    while True:
        try:
            return _end_from(*_ask(name, trusted, deadline))
        except BlockingIOError as error:  # too many wait to be accepted
            failure: OSError = error
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError) as error:
            if not wait:
                raise
            failure = error
        left = _left(deadline)
        if left is not None and left <= 0:
            raise TimeoutError(f"nobody has accepted as {name!r} in time") from failure
        time.sleep(pause if left is None else min(pause, left))
        pause = min(2 * pause, _LAST_PAUSE)
        del failure


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
        self._users = _ids(users, self._name)
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
        while True:
            mine = self._open_door()  # a handler may have closed it, or forked
            connection = self._next(mine)
            if connection is not None:
                return connection
            left = _left(deadline)
            if left is not None and left <= 0:
                raise TimeoutError(f"nobody has connected to {self._name!r} in time")
            poll_fd(mine.fileno(), POLLIN, left)

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

    def _next(self, mine: Door) -> Connection | None:
        """The connection with the next client; None: there is none, or it is none of ours."""
        accepted = _accepted(mine)
        if not accepted:
            return None
        (client,) = accepted
        process, user = _peer_of(client)
        if user not in self._users:
            _answer(client, errno.EACCES)
            return None
        if _is_hidden(process):
            _answer(client, errno.EXDEV)
            return None
        ours, theirs = self._pipe()
        kept_back.put(id(theirs), theirs)  # a child forked now would keep the client's end open
        try:
            handed = _answer(client, 0, theirs)
        finally:
            theirs.close()
        if handed:
            return ours
        ours.close()
        return None


# --- who is there --------------------------------------------------------------------------------


def _ids(users: Users, name: str) -> set[int]:
    """The user ids that are allowed, this process's own among them."""
    if isinstance(users, (str, bytes)) or not isinstance(users, Iterable):
        raise TypeError(f"users must be several users, as in [1000, 'name'], not {users!r}")
    found = {os.geteuid()}
    for user in users:
        if isinstance(user, str):
            import pwd

            try:
                user = pwd.getpwnam(user).pw_uid
            except KeyError:
                raise ValueError(f"there is no user {user!r}") from None
        found.add(check_int("a user that is not named", user))
    if len(found) > 1 and is_plain(name):
        raise ValueError(f"{name!r} is in a directory of this user alone: others need a path")
    return found


def _peer_of(peer: Door) -> tuple[int, int]:
    """Process and user that have connected, or begun to listen; no process: 0."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


def _is_hidden(process: int) -> bool:
    """Whether another process runs but cannot be seen to, which the locks of a pipe rest on.

    It cannot from another pid namespace, unless that is below ours; then it does not see us.  Nor
    can it, if it is another user's, where /proc hides those.
    """
    if process <= 0:
        return True
    if identity._start_time(process) is not None or identity._start_time("self") is None:
        return False
    try:
        running = owned(os.pidfd_open, process)
    except ProcessLookupError:
        return False  # it has just ended, as will show elsewhere
    return not poll_fd(running.fileno(), POLLIN, 0)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


# --- the answer ----------------------------------------------------------------------------------

# Descriptors that arrive get their owners inside of one call of a C function (see ``descriptors``).


def _accepted(mine: Door) -> tuple[Door, ...]:
    """The next client, if there is one."""
    accept: Any = mine._accept  # type: ignore[attr-defined]
    numbers = map(itemgetter(0), islice(iter(accept, None), 1))
    unix, kind = repeat(int(socket.AF_UNIX)), repeat(int(socket.SOCK_SEQPACKET))
    try:
        return tuple(map(Door, unix, kind, repeat(0), numbers))
    except (BlockingIOError, ConnectionAbortedError):
        return ()
    except OSError as error:
        if error.errno == errno.EINVAL:  # it was closed while we were waiting
            return ()
        raise


def _answer(client: Door, status: int, end: Connection | None = None) -> bool:
    """Send an answer, with an end unless it is a refusal; whether there was somebody to get it."""
    rings: tuple[int, int] = (-1, -1)
    spin, beside = nan, []
    if end is not None:
        rings = end._rings
        spin = nan if end._spin is None else end._spin
        # References, as long as the numbers are in use.
        memory, bell = end._segment.lend(end), end._bell.lend()
        numbers = array("i", [memory.fileno(), bell.fileno()])
        beside.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers))
    data = _ANSWER.pack(_MAGIC, status, *rings, spin)
    try:
        client.sendmsg([data], beside, _SEND)
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):
        return False
    return True


def _ask(
    name: str, trusted: set[int], deadline: float | None
) -> tuple[tuple[int, int], float | None, Descriptor, Descriptor]:
    """What an answer says: the rings, the time to spin, the segment and the doorbell."""
    path = locate(name)
    server = door()
    try:
        server.connect(path)
    except OSError as error:
        raise named(error.errno, path) from None
    process, user = _peer_of(server)
    if user not in trusted:
        raise PermissionError(errno.EACCES, f"the listener is user {user}'s", path)
    if _is_hidden(process):
        raise OSError(errno.EXDEV, "this process does not see the listener's in /proc", path)
    buffer = bytearray(_ANSWER.size)
    while True:
        try:
            descriptors = _received(server, buffer)
            break
        except BlockingIOError:
            left = _left(deadline)
            if left is not None and left <= 0:
                raise TimeoutError(f"the listener on {name!r} has not accepted in time") from None
            poll_fd(server.fileno(), POLLIN, left)
    if not any(buffer):
        raise ConnectionResetError(errno.ECONNRESET, "the listener has gone", path)
    magic, status, inward, outward, spin = _ANSWER.unpack(buffer)
    if magic != _MAGIC:
        why = "that is not an answer of shmpipe, or one of another version"
        raise OSError(errno.EBADMSG, why, path)
    if status == errno.EXDEV:
        raise OSError(status, "the listener does not see this process in /proc", path)
    if status:
        raise OSError(status, f"the listener does not accept user {os.geteuid()}", path)
    if len(descriptors) != 2 or (inward, outward) not in _RINGS:
        raise OSError(errno.EBADMSG, "the answer is damaged", path)
    memory, bell = descriptors
    if not stat.S_ISSOCK(os.fstat(bell.fileno()).st_mode):
        raise OSError(errno.EBADMSG, "the answer has something else for a doorbell", path)
    return (inward, outward), None if isnan(spin) else spin, memory, bell


def _received(server: Door, buffer: bytearray) -> tuple[Descriptor, ...]:
    """Receive a message, of which nothing stays in the buffer at an end of file."""
    receive = partial(server.recvmsg_into, [buffer], _SPACE, _RECEIVE)
    beside = chain.from_iterable(map(itemgetter(1), islice(iter(receive, None), 1)))
    numbers = map(partial(array, "i"), map(itemgetter(2), beside))
    return tuple(map(Descriptor, chain.from_iterable(numbers)))


def _end_from(
    rings: tuple[int, int], spin: float | None, memory: Descriptor, bell: Descriptor
) -> Connection:
    segment = Segment.attach(memory, closed_handle)
    if segment.rings <= max(rings):
        raise OSError(errno.EBADMSG, "damaged shmpipe segment: it has not the rings it should have")
    doorbell = Doorbell(adopted(partial(os.dup, bell.fileno())), closed_handle)
    connection = Connection(segment, doorbell, *rings, spin)
    segment.keep(memory)
    return connection
