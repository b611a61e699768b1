"""The answer: one message, by which a listener hands one end of a new pipe over to a client.

It says which rings the end reads from and writes to, and has the descriptors of the segment and of
the doorbell beside it; or it says why there is no end.  The client believes nothing of it: whoever
listens there may be another program, or another version of this one.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from array import array
from functools import partial
from itertools import chain, islice, repeat, tee
from math import isnan, nan
from operator import itemgetter
from typing import Any

from .connection import Connection
from .deadlines import remaining
from .descriptors import Descriptor
from .doorbell import Doorbell, adopted
from .ends import closed_handle
from .naming import Door, door, locate, named
from .peers import is_hidden, peer_of
from .primitives import POLLIN, poll_fd
from .segment import Segment

# Magic and version, an errno or 0, the numbers of the ring that the client reads from and of the
# one it writes to (-1: none), seconds to spin (NaN: None).
_ANSWER = struct.Struct("<8sibb2xd")
_MAGIC = b"shmpipe\x01"
_RINGS = {(1, 0), (0, -1), (-1, 0)}
_SPACE = socket.CMSG_SPACE(2 * array("i").itemsize)
_SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_RECEIVE = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC

# Descriptors that arrive get their owners inside of one call of a C function (see ``descriptors``).


def accepted(mine: Door) -> tuple[Door, ...]:
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


def answer(client: Door, status: int, end: Connection | None = None) -> bool:
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


def ask(name: str, trusted: set[int], deadline: float | None) -> Connection:
    """The end that whoever listens on ``name`` hands over.  Errors as ``connect()``."""
    path = locate(name)
    server = door()
    try:
        server.connect(path)
    except OSError as error:
        raise named(error.errno, path) from None
    process, user = peer_of(server)
    if user not in trusted:
        raise PermissionError(errno.EACCES, f"the listener is user {user}'s", path)
    if is_hidden(process):
        raise OSError(errno.EXDEV, "this process does not see the listener's in /proc", path)
    buffer = bytearray(_ANSWER.size)
    while True:
        try:
            descriptors, flags = _received(server, buffer)
            break
        except BlockingIOError:
            left = remaining(deadline)
            if left is not None and left <= 0:
                raise TimeoutError(f"the listener on {name!r} has not accepted in time") from None
            poll_fd(server.fileno(), POLLIN, left)
    if not any(buffer):
        raise ConnectionResetError(errno.ECONNRESET, "the listener has gone", path)
    return _end_in(buffer, descriptors, flags, path)


def _received(server: Door, buffer: bytearray) -> tuple[tuple[Descriptor, ...], int]:
    """Receive a message, of which nothing stays in the buffer at an end of file; with its flags."""
    receive = partial(server.recvmsg_into, [buffer], _SPACE, _RECEIVE)
    first, again = tee(islice(iter(receive, None), 1))
    beside = chain.from_iterable(map(itemgetter(1), first))
    numbers = map(partial(array, "i"), map(itemgetter(2), beside))
    descriptors = tuple(map(Descriptor, chain.from_iterable(numbers)))
    return descriptors, next(map(itemgetter(2), again))


def _end_in(
    buffer: bytearray, descriptors: tuple[Descriptor, ...], flags: int, path: str
) -> Connection:
    """What an answer gives.  OSError: a refusal, or not what an answer has to be."""
    magic, status, inward, outward, spin = _ANSWER.unpack(buffer)
    if magic != _MAGIC:
        why = "that is not an answer of shmpipe, or one of another version"
        raise OSError(errno.EBADMSG, why, path)
    if status == errno.EXDEV:
        raise OSError(status, "the listener does not see this process in /proc", path)
    if status:
        raise OSError(status, f"the listener does not accept user {os.geteuid()}", path)
    if len(descriptors) < 2 and flags & socket.MSG_CTRUNC:  # the kernel could not hand them over
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
    if len(descriptors) != 2 or (inward, outward) not in _RINGS:
        raise OSError(errno.EBADMSG, "the answer is damaged", path)
    memory, bell = descriptors
    if not stat.S_ISSOCK(os.fstat(bell.fileno()).st_mode):
        raise OSError(errno.EBADMSG, "the answer has something else for a doorbell", path)
    segment = Segment.attach(memory, closed_handle)
    if segment.rings <= max(inward, outward):
        raise OSError(errno.EBADMSG, "damaged shmpipe segment: it has not the rings it should have")
    doorbell = Doorbell(adopted(partial(os.dup, bell.fileno())), closed_handle, True)
    connection = Connection(segment, doorbell, inward, outward, None if isnan(spin) else spin)
    segment.keep(memory)
    return connection
