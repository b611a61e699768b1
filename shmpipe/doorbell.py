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
2. A writer announces a plug (PLUG), sends its tokens, announces it anew (a reader may have eaten
   the first tokens before the last were sent), fences, and looks for space again.  A reader frees
   space, fences (it unlocks), and looks at PLUG.  So one of the two sees the other: the
   reader eats the plug, or the writer opens its own socket by raising the send buffer (which works
   because only the writer's kernel buffer decides what is writable).  Both may do it: harmless.
3. A reader unplugs only up to the plug number it saw before it looked at the space, so a newer
   plug stays in.
4. While data is left, a reader that eats plugs leaves one token, so that the ring stays readable
   for every process that watches it; and a note (RD_STALE) that this one goes with the last byte.
5. Whoever selects and then receives must not be left there without a message.  So writers ring
   under their lock, one at a time, TELLS is odd while they do, and they look first whether there is
   data (still).  A reader that has emptied the ring waits until TELLS is even before it eats.
   (Fences: the writer has changed TELLS before it looks; the reader has moved its position before
   it looks at TELLS.  So one sees the other.)  No token comes for bytes that have gone.  Plugs show
   at the readers' end, too, so where that is watched they are put in the same way: TELLS odd, look
   whether there is too little space (still), plug, TELLS even.
6. Whoever selects and then sends likewise: a reader takes the writers' lock to look at the space
   and eat the plug.  A writer that filled the ring in between would rely on the plug that is in.

What remains possible is a *spurious* readiness (a token or an open socket a moment too long), which
one call on the end puts right, where a process stands still or dies in the middle of a call, or
where another process has taken what this one was woken for; never one that is missing.

The reader's fd is an epoll instance over {its socket, a private eventfd}: the eventfd lets a
process that starts to watch with data already there declare itself readable (readers cannot send
tokens to themselves).  The writer's fd is its socket.

Closing.  Who uses a descriptor has a reference to its owner (see ``descriptors``), so a close by
another thread cannot pull it away, nor let its number come to mean another file in the middle.
After it a call that finds no socket any more fails with ``closed()`` where it needs an answer.
What it only tells the other side goes nowhere.
"""

from __future__ import annotations

import _socket
import os
import select
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any

from .descriptors import Descriptor, owned
from .living import Living
from .primitives import POLLERR, POLLHUP, POLLIN, POLLOUT, poll_fd

PLUGGED = 0x80
_NUMBER = 0x7F
_MOST_TOKENS = 64  # far more than a minimal send buffer takes
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_PEEK = socket.MSG_DONTWAIT | socket.MSG_PEEK
_SMALL, _LARGE = 1, 1 << 16  # send buffers, in bytes; the kernel raises 1 to its minimum


class Socket(_socket.socket):
    """One socket of a pair, closed with the last reference to it."""

    __slots__ = ()
    # A C method, which no handler can interrupt; and it closes without a warning, as ends do.
    __del__ = _socket.socket.close


def _sockets(numbers: Iterator[int]) -> tuple[Socket, ...]:
    """Owners for descriptors that are made while this goes on.

    If by C functions, no handler can run between a number and its owner (see ``descriptors``).
    """
    unix, stream = repeat(int(socket.AF_UNIX)), repeat(int(socket.SOCK_STREAM))
    return tuple(map(Socket, unix, stream, repeat(0), numbers))


def adopted(detach: Callable[[], int]) -> Socket:
    """The socket whose descriptor ``detach()`` returns."""
    return _sockets(islice(iter(detach, None), 1))[0]


def doorbells(closed: Callable[[], Exception], ends_calls: bool) -> tuple[Doorbell, Doorbell]:
    """A connected pair; for the other arguments see ``Doorbell``."""
    pair: Iterator[Any] = chain.from_iterable(iter(_socket.socketpair, None))
    left, right = _sockets(map(_socket.socket.detach, islice(pair, 2)))
    return Doorbell(left, closed, ends_calls), Doorbell(right, closed, ends_calls)


class Doorbell:
    """One end's socket, and what is made from it when somebody watches."""

    def __init__(self, sock: Socket, closed: Callable[[], Exception], ends_calls: bool) -> None:
        """``closed`` makes the error of a call on a closed end; ``ends_calls``: also of one that
        is asleep when another thread closes it.
        """
        # Whatever socket.setdefaulttimeout() says; every call below is non-blocking by itself.
        sock.setblocking(True)
        self.sock: Socket | None = sock  # None: this end is closed
        self.closed = closed
        self.ends_calls = ends_calls
        self._closings: Living[Descriptor] = Living()  # for the calls that are asleep, by id
        self._held: list[Socket] = []  # once for every call that keeps it open
        self._watch: tuple[select.epoll, Descriptor] | None = None  # with the eventfd
        self._bell_rung = False
        self._shared = False  # with a forked process: what this one knows of it may be wrong
        self.narrow()
        _bells.add(id(self), self)

    def _open_one(self) -> Socket:
        """The socket, if the end is open or a call keeps it open."""
        sock = self._if_open()
        if sock is None:
            raise self.closed()
        return sock

    def _if_open(self) -> Socket | None:
        sock = self.sock
        if sock is None:
            held = self._held[-1:]
            return held[0] if held else None
        return sock

    # --- hang-up ---------------------------------------------------------------------------------

    def hung_up(self) -> bool:
        """Whether no process holds the other end any more (one system call)."""
        sock = self.sock or self._open_one()
        try:
            sock.send(b"", _FLAGS)
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
        sock = self._if_open()
        if sock is None:
            return
        try:
            queue = sock.recv(_MOST_TOKENS, _PEEK)
            stale = 0
            for token in queue:
                if token & PLUGGED:
                    if 0 < (token - plug) & _NUMBER < 64:  # a newer plug than the one seen
                        break
                # step: answering-ring (never)
                elif ticket is not None and token == ticket & _NUMBER:
                    break
                stale += 1
            if ticket is None and stale == len(queue):
                stale -= 1  # step: one-token-left
            if stale > 0:
                sock.recv(stale, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            pass

    def watch_fd(self) -> int:
        """The reader's descriptor, made on first use."""
        sock, watch = self._open_one(), self._watch
        if watch is None:
            epoll = select.epoll(1)
            bell = owned(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            epoll.register(sock.fileno(), select.EPOLLIN)
            epoll.register(bell.fileno(), select.EPOLLIN)
            self._watch = watch = epoll, bell
        return watch[0].fileno()

    def ring_self(self) -> None:
        """Declare this process's descriptor readable, if the socket does not show it already."""
        watch, sock = self._watch, self._if_open()
        # (Where another process takes what is there, it eats the tokens, but cannot hush this.)
        if watch is not None and sock is not None and not poll_fd(sock.fileno(), POLLIN, 0):
            os.eventfd_write(watch[1].fileno(), 1)
            self._bell_rung = True

    def rung_self(self) -> bool:
        """Whether this process has, as far as it knows."""
        return self._bell_rung

    def hush(self) -> None:
        """Take that back."""
        watch = self._watch
        if watch is not None and (self._bell_rung or self._shared):
            self._bell_rung = False
            try:
                os.eventfd_read(watch[1].fileno())
            except BlockingIOError:
                pass

    # --- the writers' side -----------------------------------------------------------------------

    def writer_fd(self) -> int:
        """The writer's descriptor."""
        return self._open_one().fileno()

    def ring(self, ticket: int) -> None:
        """Make the reader's socket readable."""
        sock = self._if_open()
        if sock is None:
            return
        try:
            sock.send(bytes((ticket & _NUMBER,)), _FLAGS)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass  # readable already, or nobody there

    def narrow(self) -> None:
        """Let few tokens make this socket unwritable (again)."""
        self._set_send_buffer(_SMALL)

    def is_open(self) -> bool:
        """Whether this socket shows writable, with a reader at the other end."""
        sock = self._if_open()
        if sock is None:
            return False
        shown = poll_fd(sock.fileno(), POLLOUT, 0)
        return shown > 0 and bool(shown & POLLOUT) and not shown & (POLLHUP | POLLERR)

    def plug(self, number: int) -> None:
        """Make this socket unwritable, unless the reader is gone."""
        token = bytes((PLUGGED | (number & _NUMBER),))
        for _ in range(_MOST_TOKENS):
            sock = self._if_open()
            if sock is None or not self.is_open():
                return
            try:
                sock.send(token, _FLAGS)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                return

    def open(self) -> None:
        """Make the writer's own socket writable again, whatever lies in it."""
        self._set_send_buffer(_LARGE)

    def _set_send_buffer(self, size: int) -> None:
        sock = self._if_open()
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    # --- sleeping and closing --------------------------------------------------------------------

    def sleep(self, events: int, seconds: float | None, others: Sequence[int]) -> int:
        """Poll this end's socket, and others beside it; the caller holds it."""
        return poll_fd(self._open_one().fileno(), events, seconds, others)

    def closing(self) -> Descriptor:
        """What becomes readable when this process closes the end, for a call that will sleep.

        It looks whether that has happened already once it has this.
        """
        made = owned(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._closings.add(id(made), made)

    def hold(self) -> None:
        """Until ``let_go()``, the socket stays open: as with the kernel's pipe, a call that is
        asleep keeps its end, and finishes with it although another thread has closed it.  (On a
        connection it needs the end for as long as it takes to notice.)
        """
        self._held.append(self.sock or self._open_one())

    def let_go(self) -> None:
        """Also for a call that was interrupted before its ``hold()`` counted."""
        if self._held:
            self._held.pop()

    def lend(self) -> Socket:
        """The socket, to be handed over by whoever keeps the reference meanwhile."""
        return self._open_one()

    def close(self) -> None:
        """Give up the descriptors; who is using one finishes with it.  Again: nothing."""
        self.sock = None
        self._watch = None
        for closing in self._closings.all():
            try:
                os.eventfd_write(closing.fileno(), 1)  # no crash: for this process's own threads
            except (OSError, ValueError):
                pass  # that call has just woken

    def _after_fork(self, alone: bool) -> None:
        """In the child, calls that other threads of the parent are in do not go on.

        But their references stay for good, so those must not be owners.
        """
        self._shared = True
        self._closings = Living()
        if not alone:
            held, self._held = self._held, []
            sock = self.sock
            if sock is not None:
                self.sock = adopted(sock.detach)
            for sock in held:
                sock.close()  # of one that was closed already; otherwise it has been detached


_bells: Living[Doorbell] = Living()
_alone = True  # whether the process that forks has no other thread


def _before_fork() -> None:
    global _alone
    _alone = len(sys._current_frames()) == 1
    _mark_shared()


def _mark_shared() -> None:
    for bell in _bells.all():
        bell._shared = True


def _after_fork() -> None:
    for bell in _bells.all():
        bell._after_fork(_alone)


# Afterwards once more: another thread may have made some in between.
os.register_at_fork(before=_before_fork, after_in_parent=_mark_shared, after_in_child=_after_fork)
