"""Where a name lies in the file system, and who may have it.

A name is the file of a socket that somebody listens on.  Whether somebody does is what the kernel
says: a file that no process has the socket of was left behind, and may be replaced.  Nothing else
tells so: a lock file that a listener would hold is deleted by those who clean up directories, and a
process id in it comes round again.

Between the look and the replacement another process could do the same, and one would remove the
other's fresh socket.  So both happen under a lock, a file beside the name that exists for as long.
**Invariant: a socket file is removed only by who listens on it, or, under the lock, while nobody
does.**  Thus who gives a name up needs no lock: as long as it listens, the file is its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import tempfile
import time
from typing import Any

from .descriptors import Descriptor, owned
from .doorbell import Socket
from .living import Living

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_LOCK = ".lock"
_LONGEST_PATH = 107  # bytes; the kernel's limit for a socket
BACKLOG = 4096  # connections that wait for accept(); the kernel lowers it to its somaxconn
_PATIENCE = 1.0  # seconds for a lock that is held for a few system calls
_PAUSE = 0.001  # seconds between two tries

FileId = tuple[int, int]  # device and inode

kept_back: Living[Any] = Living()
"""What a forked child closes, by id: a name belongs to the process that listens on it."""


class Door(Socket):
    """A socket of the rendezvous: what is sent arrives whole, and no call on it waits."""

    __slots__ = ("__weakref__",)


def door() -> Door:
    """An unconnected one."""
    made = Door(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


# --- names and paths -----------------------------------------------------------------------------


def check_name(name: str | os.PathLike[str]) -> str:
    """A plain name, or an absolute path, as a string.

    TypeError: neither a string nor a path.  ValueError: neither of the two forms.
    """
    text: Any = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(text, str):
        kind = type(text).__name__
        raise TypeError(f"a name must be a string, or a path (os.PathLike) of one, not {kind}")
    if text.endswith(_LOCK):
        raise ValueError(f"{text!r} ends in {_LOCK!r}, as the file does that guards a name")
    if not os.path.isabs(text):
        if text is not name:  # what "./name" is for a string is "name" for a path object
            raise ValueError(f"{name!r} is relative: a path has to be absolute, a name a string")
        if not _NAME.fullmatch(text):
            raise ValueError(
                f"{text!r} is no name: allowed are 1 to 64 ASCII letters, digits, '_', '.' and "
                "'-', not beginning with '.' or '-'; or an absolute path"
            )
        return text
    if "\0" in text or os.path.basename(text) in ("", ".", ".."):
        raise ValueError(f"{text!r} is not the path of a file")
    return text


def named(number: int | None, path: str, why: str = "") -> OSError:
    """An error that names the caller's path, where the system's own one names another or none."""
    return OSError(number, why or os.strerror(number or 0), path)


def is_plain(name: str) -> bool:
    """Whether it is a name in the private directory."""
    return not os.path.isabs(name)


def locate(name: str, make: bool = False) -> str:
    """The path of the socket that a checked name means; ``make`` the private directory if needed.

    FileNotFoundError: there is no such directory.  PermissionError: it is not private.
    OSError ENAMETOOLONG: no socket can have that path.
    """
    path = os.path.join(_private_directory(name, make), name) if is_plain(name) else name
    if len(os.fsencode(path)) > _LONGEST_PATH:
        why = f"the path of a socket may have {_LONGEST_PATH} bytes"
        raise OSError(errno.ENAMETOOLONG, why, path)
    return path


def _private_directory(name: str, make: bool) -> str:
    user = os.geteuid()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if _is_own_directory(runtime, user):
        path = os.path.join(runtime, "shmpipe")
    else:
        path = os.path.join(tempfile.gettempdir(), f"shmpipe-{user}")
    if make:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
    # Not through a link, which whoever may write to the temporary directory could have put there.
    try:
        status = os.lstat(path)
    except FileNotFoundError:  # nobody has listened on any name yet
        raise named(errno.ENOENT, os.path.join(path, name)) from None
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(errno.EACCES, "not a directory, which names need here", path)
    if status.st_uid != user:
        why = f"names need a directory of user {user}, and this is user {status.st_uid}'s"
        raise PermissionError(errno.EACCES, why, path)
    if status.st_mode & 0o077:
        why = f"names need a directory for its owner alone, and this has mode {status.st_mode:o}"
        raise PermissionError(errno.EACCES, why, path)
    return path


def _is_own_directory(path: str, user: int) -> bool:
    """Not so under ``sudo``, say, which may keep another user's environment."""
    if not os.path.isabs(path):
        return False
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == user


# --- having a name -------------------------------------------------------------------------------


def claim(path: str, mine: Door, mode: int) -> FileId:
    """Listen on ``path`` with a new socket, whose file gets the permissions ``mode``.

    OSError EADDRINUSE: somebody listens there, or there is a file of another kind.  Whatever comes
    in between, no file is left that would say otherwise.
    """
    guard = _lock(path)
    bound = False
    try:
        _remove_what_was_left(path)
        try:
            mine.bind(path)
        except OSError as error:
            raise named(error.errno, path) from None
        bound = True
        os.chmod(path, mode)  # before listen(): until then every connection is refused
        mine.listen(BACKLOG)
        return _id(os.stat(path))
    except BaseException:
        if bound:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise
    finally:
        try:
            os.unlink(path + _LOCK)
        except OSError:
            pass  # somebody has removed it, the directory perhaps
        fcntl.flock(guard, fcntl.LOCK_UN)  # a child may have a copy that it has not closed yet
        guard.close()


def give_up(path: str, file: FileId) -> None:
    """Remove the file that ``claim`` has made, whose socket still listens."""
    try:
        if _id(os.stat(path)) == file:
            os.unlink(path)
    except OSError:
        pass  # somebody has cleaned up before us, the directory perhaps


def _remove_what_was_left(path: str) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.EADDRINUSE, "there is a file, which is no socket", path)
    try:
        if _is_in_use(path):
            raise OSError(errno.EADDRINUSE, "somebody listens there already", path)
    except PermissionError:
        why = f"there is a socket of user {status.st_uid}, which this user may not look at"
        raise OSError(errno.EADDRINUSE, why, path) from None
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # its listener has ended just now
    except PermissionError as error:
        why = f"left behind by user {status.st_uid}, and this user may not remove it"
        raise named(error.errno, path, why) from None


def _is_in_use(path: str) -> bool:
    """Whether some process has the socket whose file this is.  PermissionError: cannot be told."""
    # Of a kind that does not fit, so that no listener takes this for a client.
    door = Door(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        door.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except PermissionError:
        raise
    except OSError:  # EPROTOTYPE mostly
        return True
    return True


def _lock(path: str) -> Descriptor:
    """The lock beside a path; it is a lock while it has that name."""
    lock = path + _LOCK
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            guard = owned(os.open, lock, flags, 0o600)
        except OSError as error:
            raise _no_lock(error, path) from None
        kept_back.put(id(guard), guard)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _id(os.fstat(guard.fileno())) == _id(os.stat(lock)):
                return guard
        except FileNotFoundError:
            pass  # who had it has removed it since we have opened it
        except BlockingIOError:
            # Not for ever: a holder may be stopped, or be the call that this handler interrupts.
            if time.monotonic() > until:
                why = "somebody else is about to listen there"
                raise OSError(errno.EADDRINUSE, why, path) from None
            time.sleep(_PAUSE)
        guard.close()


def _no_lock(error: OSError, path: str) -> OSError:
    directory, file = os.path.split(path)
    if error.errno == errno.ENOENT and not os.path.exists(directory):
        why = f"there is no directory {directory!r}"
    elif error.errno == errno.ENOTDIR:
        why = f"{directory!r} is not a directory"
    else:
        why = f"{error.strerror} (for the file {file + _LOCK!r} beside it)"
    return named(error.errno, path, why)


def _id(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def _after_fork() -> None:
    for thing in kept_back.all():
        thing.close()


os.register_at_fork(after_in_child=_after_fork)
