"""Who is at the other end of a rendezvous, which is asked of the kernel: a user, and a process.

The user has to be this one, or one that the caller names.  The process has to be seen in /proc, by
which the holders of a pipe's locks are known to live.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable

from . import identity
from .arguments import check_int
from .descriptors import owned
from .naming import Door, is_plain
from .primitives import POLLIN, poll_fd

_CREDENTIALS = struct.Struct("iII")  # the kernel's struct ucred: pid, uid, gid

_LAST_ID = 2**32 - 2  # the one behind it means nobody to the kernel

Users = Iterable[int | str]


def ids_of(users: Users, name: str) -> set[int]:
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
        number = check_int("a user that is not named", user)
        if not 0 <= number <= _LAST_ID:
            raise ValueError(f"users: {number} is no user id: allowed are 0 to {_LAST_ID}")
        found.add(number)
    if len(found) > 1 and is_plain(name):
        raise ValueError(f"{name!r} is in a directory of this user alone: others need a path")
    return found


def peer_of(peer: Door) -> tuple[int, int]:
    """Process and user that have connected, or begun to listen; no process: 0."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


def is_hidden(process: int) -> bool:
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
