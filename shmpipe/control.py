"""The pipe's tuning knobs: fcntl() and ioctl(), with the kernel's rounding and errnos.

Kernel rules: F_SETPIPE_SZ(2const), fs/pipe.c (round_pipe_size, pipe_set_size); F_SETPIPE_WRITE_SZ
is the never-merged command of the 2019 patch of that name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import lru_cache

from .locking import SideLock, standstill
from .ring import Ring
from .segment import (
    LIMIT,
    PAGE,
    PAGE_SHIFT,
    PAGES,
    POLICY,
    WRITE_PAGES,
    Segment,
)
from .waiting import Side

F_GETFL = 3
F_SETFL = 4
F_SETPIPE_SZ = 1024 + 7
F_GETPIPE_SZ = 1024 + 8
F_SETPIPE_WRITE_SZ = 1024 + 15
F_GETPIPE_WRITE_SZ = 1024 + 16
FIONREAD = 0x541B

NEW_PIPE_PAGES = 16  # what the kernel gives a new pipe, before any F_SETPIPE_SZ
LARGEST = 1 << 31  # bytes


def round_size(arg: int) -> int:
    """Pages of a pipe of at least ``arg`` bytes; OSError EINVAL where the kernel says so."""
    size = arg & 0xFFFFFFFF  # the kernel takes an unsigned int
    if size > LARGEST:
        raise OSError(
            errno.EINVAL,
            f"pipe size {arg}: allowed are 0 to {LARGEST} bytes (rounded up to a power of two)",
        )
    pages = -(-size // PAGE)
    return 1 if pages <= 1 else 1 << (pages - 1).bit_length()


def round_write_size(arg: int, pages: int) -> int:
    """Pages of a write size of at least ``arg`` bytes in a pipe of ``pages`` pages."""
    threshold = -(-arg // PAGE)
    if not 1 <= threshold <= pages:
        raise OSError(
            errno.EINVAL,
            f"write size {arg}: allowed are 1 to {pages * PAGE} bytes (the pipe)",
        )
    return threshold


@lru_cache(maxsize=1)
def system_max_size() -> int:
    """The kernel's own limit on F_SETPIPE_SZ, in bytes."""
    try:
        with open("/proc/sys/fs/pipe-max-size", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 1 << 20


def check_growth(pages: int, max_pages: int) -> None:
    if pages > max_pages:
        raise PermissionError(
            errno.EPERM, f"pipe size {pages * PAGE}: max_size is {max_pages * PAGE} bytes"
        )


def enter_both(reader: SideLock, writer: SideLock, deadline: float | None) -> None:
    """Keep readers and writers out; always in this order.  TimeoutError as ``SideLock.enter``."""
    reader.enter(deadline)
    try:
        writer.enter(deadline)
    except BaseException:
        reader.release()  # no crash: after an error only; nothing was changed yet
        reader.leave()
        raise


def leave_both(reader: SideLock, writer: SideLock) -> None:
    try:
        writer.release()
        writer.leave()
    finally:
        reader.release()
        reader.leave()


def set_size(side: Side, arg: int, max_pages: int) -> int:
    ring = side.ring
    pages = round_size(arg)
    reader, writer = side.locks.reader, side.locks.writer
    enter_both(reader, writer, standstill())
    try:
        if pages > ring.limit():
            check_growth(pages, max_pages)
        threshold = side.ring.view[WRITE_PAGES]
        if threshold > pages:
            raise OSError(errno.EBUSY, f"the write size is {threshold} pages: more than {pages}")
        ring.resize(ring.pages_at(pages))
        side.ring.view[LIMIT] = pages
        woken = ring.used_now() < pages
    finally:
        leave_both(reader, writer)
    # A resize frees slots without a read, so it has to do the waking itself.
    if woken:
        side.resized()  # step: resized
    else:
        side.level_changed()
    return pages << PAGE_SHIFT


def set_write_size(side: Side, arg: int) -> int:
    reader, writer = side.locks.reader, side.locks.writer
    enter_both(reader, writer, standstill())
    try:
        threshold = side.ring.view[WRITE_PAGES] = round_write_size(arg, side.ring.limit())
    finally:
        leave_both(reader, writer)
    side.level_changed()
    return threshold << PAGE_SHIFT


def command(side: Side, flags: int, access: int, cmd: int, arg: int, max_pages: int) -> int:
    """fcntl() on an end: ``flags`` is the word of its O_NONBLOCK, ``access`` its access mode."""
    words = side.ring.view
    simple: dict[int, Callable[[], int]] = {
        F_GETPIPE_SZ: lambda: side.ring.limit() << PAGE_SHIFT,
        F_GETPIPE_WRITE_SZ: lambda: min(words[WRITE_PAGES], side.ring.limit()) << PAGE_SHIFT,
        F_SETPIPE_SZ: lambda: set_size(side, arg, max_pages),
        F_SETPIPE_WRITE_SZ: lambda: set_write_size(side, arg),
        F_GETFL: lambda: access | (words[flags] & os.O_NONBLOCK),
    }
    if cmd == F_SETFL:  # access mode and creation flags are ignored, as by the kernel
        words[flags] = arg & os.O_NONBLOCK
        return 0
    try:
        perform = simple[cmd]
    except KeyError:
        raise OSError(errno.EINVAL, f"fcntl command {cmd} is not one for a shmpipe") from None
    return perform()


def refresh_others(segment: Segment, side: Side) -> None:
    """The mark for POLLOUT has moved: show it on the other ends of this process.

    (Only a writers' end can take its own POLLOUT back, so in other processes that waits for its
    next call.)
    """
    for other in segment.sides.all():
        if other is not side:
            other.level_changed()


def request(side: Side, number: int) -> int:
    """ioctl() on an end."""
    if number != FIONREAD:
        raise OSError(errno.ENOTTY, f"ioctl {number:#x} is not one for a pipe (FIONREAD is)")
    reader, writer = side.locks.reader, side.locks.writer
    enter_both(reader, writer, standstill())
    try:
        return side.ring.unread()
    finally:
        leave_both(reader, writer)


def first_settings(ring: Ring, pages: int, threshold: int, policy: int) -> None:
    """Configure a ring that nobody else has seen yet."""
    ring.view[PAGES] = ring.view[LIMIT] = pages
    ring.view[WRITE_PAGES] = threshold
    ring.view[POLICY] = policy
