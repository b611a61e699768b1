"""``pipe()``: a byte stream between processes, with the semantics of the Linux pipe."""

from __future__ import annotations

import errno
import io
import operator
import os
import sys
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from . import control, stream
from .arguments import as_bytes, check_int, check_sizes, check_spin, check_wake
from .descriptors import owned
from .doorbell import Doorbell, adopted, doorbells
from .locking import parts
from .pagering import PageRing
from .readers import ReaderSide
from .segment import RD_FLAGS, WR_FLAGS, Segment
from .stats import PipeStats, stats_of
from .writers import WriterSide

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    from .connection import Connection
    from .halves import Half
    from .policies import WakePolicy


def closed_file() -> Exception:
    return ValueError("I/O operation on closed file")


class PipeEnd(io.RawIOBase):
    """What both ends of a pipe have in common.

    An end behaves like ``open(fd, "rb" or "wb", buffering=0)`` over ``os.pipe2()``.  It can be
    inherited by ``os.fork()`` and passed to ``multiprocessing`` processes under every start method.
    """

    _side: Any = None  # also for close() on an end whose construction failed, or that is closed
    _flags_word = 0
    _access = 0

    def __init__(self, segment: Segment, side: Any, max_pages: int) -> None:
        self._max_pages = max_pages
        self._side = side
        segment.sides.add(id(side), side)

    def _open_side(self) -> Any:
        side = self._side
        if side is None or self.closed:
            raise closed_file()
        return side

    # --- as io.FileIO ----------------------------------------------------------------------------

    @property
    def mode(self) -> str:
        """``"rb"`` or ``"wb"``."""
        return "wb" if self._access else "rb"

    def readable(self) -> bool:
        """True for the reading end.  ValueError: the end is closed."""
        self._open_side()
        return not self._access

    def writable(self) -> bool:
        """True for the writing end.  ValueError: the end is closed."""
        self._open_side()
        return bool(self._access)

    def seekable(self) -> bool:
        """False.  ValueError: the end is closed."""
        self._open_side()
        return False

    def isatty(self) -> bool:
        """False.  ValueError: the end is closed."""
        self._open_side()
        return False

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """OSError ESPIPE, as for every pipe."""
        self._open_side()
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))

    def tell(self) -> int:
        """OSError ESPIPE, as for every pipe."""
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None, /) -> int:
        """OSError EINVAL, as for every pipe."""
        self._open_side()
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def fileno(self) -> int:
        """A descriptor whose readiness is this end's, for select, poll, epoll and what uses them.

        For watching only: no data goes through it.  A reading end's shows readable while there are
        bytes to read or no writer is left; a writing end's shows writable while the wake policy
        counts it as such, or no reader is left.  Made on first use.  ValueError: the end is closed.
        TimeoutError as ``fcntl``.
        """
        fd: int = self._open_side().watch_fd()
        return fd

    def close(self) -> None:
        """Close this process's hold on the end; again: nothing.

        The other end sees EOF, or EPIPE, once no process holds this end any more.
        """
        try:
            super().close()
        finally:
            side = self._side
            if side is not None:  # also if an exception has ended the last attempt half-way
                side.leave()
                side.ring.segment.drop(self)
                self._side = None  # with the last end in this process the mapping goes

    def __repr__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        try:
            return f"<{name} mode={self.mode!r} size={self._fcntl(control.F_GETPIPE_SZ, 0)}>"
        except ValueError:
            return f"<{name} [closed]>"

    # --- beyond it -------------------------------------------------------------------------------

    def stats(self) -> PipeStats:
        """What the pipe has counted so far.  ValueError: the end is closed."""
        return stats_of(self._open_side().ring)

    def _fcntl(self, cmd: int, arg: int) -> int:
        side = self._open_side()
        result = control.command(side, self._flags_word, self._access, cmd, arg, self._max_pages)
        if cmd in (control.F_SETPIPE_SZ, control.F_SETPIPE_WRITE_SZ):
            control.refresh_others(side.ring.segment, side)
        return result

    def _ioctl(self, request: int) -> int:
        return control.request(self._open_side(), request)


class PipeReader(PipeEnd):
    """The reading end of a pipe."""

    _side: ReaderSide
    _flags_word = RD_FLAGS
    _access = os.O_RDONLY

    # (None, which only O_NONBLOCK brings about, goes by the name of Any, as in the types of FileIO:
    # else a reader would not do for a BufferedReader.)
    def read(self, size: int | None = -1, /) -> bytes | Any:
        """Up to ``size`` bytes, as many as are there; waits only if there are none.

        ``b""`` at EOF (the pipe is empty and no process can write to it); None if the end has
        O_NONBLOCK and there is nothing yet.  Negative or None: as ``readall()``.  ValueError: the
        end is closed.
        """
        side = self._open_side()
        want = -1 if size is None else operator.index(size)
        if want > sys.maxsize:
            raise OverflowError("cannot read more than sys.maxsize bytes")
        if want < 0:
            return self.readall()
        return stream.read(side, None, want) if want else b""

    def readall(self) -> bytes | None:  # type: ignore[override]
        """Everything up to EOF; with O_NONBLOCK everything there is, None if that is nothing."""
        side = self._open_side()
        pieces = []
        while piece := stream.read(side, None, 1 << 31):
            pieces.append(piece)
        if not pieces:
            return piece  # type: ignore[return-value]
        return b"".join(pieces)  # type: ignore[arg-type]

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read into a writable C-contiguous buffer: bytes read, 0 at EOF, None if it would block.

        TypeError: the buffer is read-only.  ValueError: the end is closed.
        """
        side = self._open_side()
        view = as_bytes(buffer)
        if view.readonly:
            raise TypeError(
                "readinto() argument must be read-write bytes-like object, "
                f"not {type(buffer).__name__}"
            )
        return stream.read(side, view, len(view)) if len(view) else 0  # type: ignore[return-value]

    def write(self, buffer: ReadableBuffer, /) -> int | None:
        """Not for this end: io.UnsupportedOperation."""
        self._open_side()
        raise io.UnsupportedOperation("File not open for writing")

    def __reduce__(self) -> Any:
        return _reduce(self)

    def __iter__(self) -> PipeReader:
        self._open_side()
        return self


class PipeWriter(PipeEnd):
    """The writing end of a pipe."""

    _side: WriterSide
    _flags_word = WR_FLAGS
    _access = os.O_WRONLY

    def write(self, buffer: ReadableBuffer, /) -> int | None:
        """Write a C-contiguous buffer; waits until all of it is in the pipe.

        Up to PAGE (4096) bytes go in at once or not at all, never mixed with another's.  Returns
        the count of bytes: short with O_NONBLOCK, or when a signal's handler returned in the
        middle; None if O_NONBLOCK is set and nothing fits.  BrokenPipeError: no process can read
        any more (no SIGPIPE is sent).  BufferError: not contiguous.  ValueError: the end is
        closed.
        """
        side = self._open_side()
        view = as_bytes(buffer)
        return stream.write(side, view) if len(view) else 0

    def read(self, size: int | None = -1, /) -> bytes | None:
        """Not for this end: io.UnsupportedOperation."""
        self._open_side()
        raise io.UnsupportedOperation("File not open for reading")

    def readall(self) -> bytes | None:  # type: ignore[override]
        """Not for this end: io.UnsupportedOperation."""
        return self.read()

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Not for this end: io.UnsupportedOperation."""
        self.read()
        return None

    def __reduce__(self) -> Any:
        return _reduce(self)


def pipe(
    size: int = 65536,
    *,
    flags: int = 0,
    write_size: int = 4096,
    max_size: int | None = None,
    wake: WakePolicy = "write-size",
    spin: float | None = None,
) -> tuple[PipeReader, PipeWriter]:
    """A new pipe: its reading and its writing end.

    size: capacity in bytes, rounded up to a power of two of at least a page (as F_SETPIPE_SZ).
    flags: 0, or os.O_NONBLOCK for both ends.
    write_size: bytes, rounded up to pages (as F_SETPIPE_WRITE_SZ): a blocked writer is woken, and a
        writing end reported writable, only when so much space is free.  Half of ``size`` halves the
        context switches of a stream, or better.
    max_size: bytes up to which F_SETPIPE_SZ may grow the pipe, rounded as ``size``.  Default: the
        larger of ``size`` and /proc/sys/fs/pipe-max-size.  It costs address space, not memory.
    wake: when a blocked writer is woken: "write-size" (see above), "page" (at every freed page),
        "half" (half empty or emptier), "edge-half" (on passing half), "full-edge" (on leaving full,
        as Linux does since 5.5).
    spin: seconds a blocked call waits without sleeping, at most; 0: none; None: automatic.

    ValueError: other flags, an unknown policy, a spin out of range.  OSError EINVAL: a size beyond
    2 GiB, a write size of 0 or beyond the pipe's.  PermissionError: ``size`` (from 64 KiB up) is
    larger than ``max_size``.
    """
    flags = check_int("flags", flags)
    if flags not in (0, os.O_NONBLOCK):
        raise ValueError(f"flags is {flags:#o}: allowed are 0 and os.O_NONBLOCK")
    policy = check_wake(wake)
    spin = check_spin(spin)
    pages, threshold, max_pages = check_sizes(size, write_size, max_size)
    segment = Segment.create(1, max(pages, max_pages), closed_file)
    locks = parts(segment, 0, PageRing)
    ring = locks.ring
    control.first_settings(ring, pages, threshold, policy)
    ring.view[RD_FLAGS] = ring.view[WR_FLAGS] = flags
    reader_bell, writer_bell = doorbells(closed_file, False)
    segment.name_doors(reader_bell.lend().fileno(), writer_bell.lend().fileno())
    return (
        PipeReader(segment, ReaderSide(ring, locks, reader_bell, spin), max_pages),
        PipeWriter(segment, WriterSide(ring, locks, writer_bell, spin), max_pages),
    )


def fcntl(end: PipeEnd | Connection | Half, cmd: int, arg: int = 0) -> int:
    """Get or set a pipe's properties, on either end, as fcntl(2) does for the kernel's pipe.

    F_SETPIPE_SZ, F_GETPIPE_SZ: the capacity in bytes.  OSError EBUSY: more pages are in use, or the
        write size is larger; PermissionError: beyond ``max_size``; OSError EINVAL: beyond 2 GiB.
    F_SETPIPE_WRITE_SZ, F_GETPIPE_WRITE_SZ: the write size in bytes (see ``pipe``).  OSError EINVAL:
        0, negative or larger than the pipe.
    F_GETFL, F_SETFL: the end's access mode and os.O_NONBLOCK.

    Returns the value now in force (F_SETFL: 0).  OSError EINVAL: another command.  ValueError: the
    end is closed (a connection's: OSError).  TypeError: not an end of a pipe.  TimeoutError:
    another process stands still in the middle of a call (stopped, say); nothing was set.
    """
    if not hasattr(end, "_fcntl"):
        raise TypeError(f"expected an end of a shmpipe, not {type(end).__name__}")
    return end._fcntl(check_int("cmd", cmd), check_int("arg", arg))


def ioctl(end: PipeEnd | Connection | Half, request: int) -> int:
    """``ioctl(end, termios.FIONREAD)``: the bytes in the pipe, on either end.

    OSError ENOTTY: another request.  The other errors as ``fcntl``.
    """
    if not hasattr(end, "_ioctl"):
        raise TypeError(f"expected an end of a shmpipe, not {type(end).__name__}")
    return end._ioctl(check_int("request", request))


def _reduce(end: PipeReader | PipeWriter) -> Any:
    side = end._open_side()
    # References, as long as the numbers are in use: another thread may close the end.
    memory, sock = side.ring.segment.lend(end), side.bell.lend()
    return _rebuild, (
        type(end),
        reduction.DupFd(memory.fileno()),
        reduction.DupFd(sock.fileno()),
        end._max_pages,
        side.spin_choice,
    )


def _rebuild(kind: Any, memory: Any, socket: Any, max_pages: int, spin: float | None) -> PipeEnd:
    """An end that has come from another process."""
    received = owned(memory.detach)
    sock = adopted(socket.detach)
    segment = Segment.attach(received, closed_file)
    locks = parts(segment, 0, PageRing)
    side = ReaderSide if issubclass(kind, PipeReader) else WriterSide
    made = side(locks.ring, locks, Doorbell(sock, closed_file, False), spin)
    end: PipeEnd = kind(segment, made, min(max_pages, segment.max_pages))
    segment.keep(received)
    return end
