"""The fd rule: an end's readiness as a real file descriptor, and the other end's death.

A pipe has one AF_UNIX stream socketpair, a socket per end.  No data goes through it.

Hang-up.  When the last process that holds one socket is gone, however it went, the kernel tells
the other one.  That is EOF and EPIPE.

Tokens.  Single bytes that writers send and readers eat.  With the send buffer at its minimum

    none unread    reader's socket not readable    writer's socket writable
    one            readable                        writable
    a few          readable                        not writable (the writer is *plugged*)

which are the three states of a pipe.  A token says what it was sent for, so that a reader eats
exactly those that no longer mean anything:

* a *ring* carries the low bits of the readers' ticket (RD_ARM) that it answers;
* a *plug* carries PLUGGED and the low bits of the writers' plug number (PLUG).

Rules, each with what would go wrong otherwise:

1. A reader that finds the ring empty takes a new ticket, fences, looks again, and only if it is
   still empty eats the tokens that do not answer the new ticket.  Eating first would eat the token
   of a write that came in between, and a watcher in another process would sleep beside data.
2. A writer announces a plug (PLUG), sends its tokens, fences, and looks for space again.  A reader
   frees space, fences (it unlocks), and looks at PLUG.  So one of the two sees the other: the
   reader eats the plug, or the writer opens its own socket by raising the send buffer (which works
   because only the writer's kernel buffer decides what is writable).  Both may do it: harmless.
3. A reader unplugs only up to the plug number it saw before it looked at the space, so a newer
   plug stays in.
4. While data is left, a reader that eats plugs leaves one token, so that the ring stays readable
   for every process that watches it.

What remains possible is a *spurious* readiness (a token or an open socket a moment too long), which
one call on the end puts right; never one that is missing.

The reader's fd is an epoll instance over {its socket, a private eventfd}: the eventfd lets a
process that starts to watch with data already there declare itself readable (readers cannot send
tokens to themselves).  The writer's fd is its socket.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import weakref
from collections.abc import Sequence

from .primitives import POLLERR, POLLHUP, POLLOUT, poll_fd

PLUGGED = 0x80
_NUMBER = 0x7F
_MOST_TOKENS = 64  # far more than a minimal send buffer takes
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_PEEK = socket.MSG_DONTWAIT | socket.MSG_PEEK
_SMALL, _LARGE = 1, 1 << 16  # send buffers, in bytes; the kernel raises 1 to its minimum


def doorbells() -> tuple[Doorbell, Doorbell]:
    """A connected pair."""
    left, right = socket.socketpair()
    return Doorbell.adopt(left.detach()), Doorbell.adopt(right.detach())


class _Socket(socket.socket):
    """A socket that closes without a warning when an end is found in garbage, as ends do."""

    __slots__ = ()

    def __del__(self) -> None:
        self.close()


class Doorbell:
    """One end's socket, and what is made from it when somebody watches."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        # Whatever socket.setdefaulttimeout() says; every call below is non-blocking by itself.
        sock.setblocking(True)
        self.narrow()
        self._epoll: select.epoll | None = None
        self._bell = -1
        self._bell_rung = False
        self._shared = False  # with a forked process: what this one knows of it may be wrong
        self._users = threading.RLock()  # reentrant: a signal handler may close the end
        self._holds = 0
        self._closing: bool = False
        _bells.add(self)

    @classmethod
    def adopt(cls, fd: int) -> Doorbell:
        """From the descriptor of a connected socket, which is the doorbell's to close."""
        return cls(_Socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd))

    def fileno(self) -> int:
        return self.sock.fileno()

    # --- hang-up ---------------------------------------------------------------------------------

    def hung_up(self) -> bool:
        """Whether no process holds the other end any more (one system call)."""
        try:
            self.sock.send(b"", _FLAGS)
        except (BrokenPipeError, ConnectionResetError):
            return True
        except BlockingIOError:
            pass
        return False

    # --- the readers' side -----------------------------------------------------------------------

    def eat(self, plug: int, ticket: int | None = None) -> None:
        """Eat the tokens in front of the first one that still means something.

        That is a plug newer than ``plug`` (rule 3), and, where the ring was seen empty after taking
        ``ticket``, a ring that answers it (rule 1).  Without a ticket there is data, and one token
        is left for it (rule 4).
        """
        try:
            queue = self.sock.recv(_MOST_TOKENS, _PEEK)
            stale = 0
            for token in queue:
                if token & PLUGGED:
                    if 0 < (token - plug) & _NUMBER < 64:  # a newer plug than the one seen
                        break
                elif ticket is not None and token == ticket & _NUMBER:
                    break
                stale += 1
            if ticket is None and stale == len(queue):
                stale -= 1
            if stale > 0:
                self.sock.recv(stale, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            pass

    def watch_fd(self) -> int:
        """The reader's descriptor, made on first use."""
        if self._epoll is None:
            epoll = select.epoll(1)
            try:
                bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                try:
                    epoll.register(self.sock.fileno(), select.EPOLLIN)
                    epoll.register(bell, select.EPOLLIN)
                except BaseException:
                    os.close(bell)
                    raise
            except BaseException:
                epoll.close()
                raise
            self._bell = bell
            self._epoll = epoll
        return self._epoll.fileno()

    def ring_self(self) -> None:
        """Declare this process's descriptor readable."""
        if self._epoll is not None:
            os.eventfd_write(self._bell, 1)
            self._bell_rung = True

    def hush(self) -> None:
        """Take that back."""
        if self._epoll is not None and (self._bell_rung or self._shared):
            self._bell_rung = False
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                pass

    # --- the writers' side -----------------------------------------------------------------------

    def ring(self, ticket: int) -> None:
        """Make the reader's socket readable."""
        try:
            self.sock.send(bytes((ticket & _NUMBER,)), _FLAGS)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass  # readable already, or nobody there

    def narrow(self) -> None:
        """Let few tokens make this socket unwritable (again)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL)

    def is_open(self) -> bool:
        """Whether this socket shows writable, with a reader at the other end."""
        shown = poll_fd(self.sock.fileno(), POLLOUT, 0)
        return shown > 0 and bool(shown & POLLOUT) and not shown & (POLLHUP | POLLERR)

    def plug(self, number: int) -> None:
        """Make this socket unwritable, unless the reader is gone."""
        token = bytes((PLUGGED | (number & _NUMBER),))
        for _ in range(_MOST_TOKENS):
            if not self.is_open():
                return
            try:
                self.sock.send(token, _FLAGS)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                return

    def open(self) -> None:
        """Make the writer's own socket writable again, whatever lies in it."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGE)

    # --- sleeping and closing --------------------------------------------------------------------

    def sleep(self, events: int, seconds: float | None, others: Sequence[int]) -> int:
        """Poll this end's socket, and others beside it; the caller holds it."""
        return poll_fd(self.sock.fileno(), events, seconds, others)

    def hold(self) -> None:
        """Until ``let_go()``, close() is put off: as with the kernel's pipe, a call that is asleep
        keeps the end open, and its descriptors' numbers cannot come to mean something else.
        """
        with self._users:
            self._holds += 1

    def let_go(self) -> None:
        """Also for a call that was interrupted before its ``hold()`` counted."""
        with self._users:
            self._holds = max(0, self._holds - 1)
            if not self._holds:
                self._close_if_wanted()

    def close(self) -> None:
        """Give up the descriptors, once no call holds them."""
        with self._users:
            self._closing = True
            if not self._holds:
                self._close_if_wanted()

    def _close_if_wanted(self) -> None:
        if not self._closing:
            return
        self.sock.close()
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._bell)
            self._epoll = None
            self._bell = -1

    def __del__(self) -> None:
        if hasattr(self, "_closing"):
            self.close()


_bells: weakref.WeakSet[Doorbell] = weakref.WeakSet()


def _before_fork() -> None:
    for bell in _bells:
        bell._shared = True


def _after_fork() -> None:
    """Calls that threads of the parent are in are not in the child."""
    for bell in list(_bells):
        bell._users = threading.RLock()
        bell._holds = 0
        bell._close_if_wanted()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
