"""Plain pipes of the kernel, which shmpipe is compared with; part of `support`."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import sys
import termios
from io import FileIO
from typing import Any

PAGE = 4096


def kernel_pipe(size: int | None = None, nonblocking: bool = False) -> tuple[FileIO, FileIO]:
    """Both ends of an ``os.pipe2``, unbuffered, of the given size in bytes (default 64 KiB)."""
    flags = os.O_CLOEXEC | (os.O_NONBLOCK if nonblocking else 0)
    read_fd, write_fd = os.pipe2(flags)
    # Set it also when it is the default: a user over the soft limit is given smaller pipes.
    fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, 65536 if size is None else size)
    return (
        open(read_fd, "rb", buffering=0),
        open(write_fd, "wb", buffering=0),
    )


def kernel_may_exceed_max() -> bool:
    """Whether this process may grow a pipe beyond pipe-max-size (CAP_SYS_RESOURCE)."""
    with open("/proc/sys/fs/pipe-max-size") as file:
        limit = int(file.read())
    reader, writer = kernel_pipe()
    with reader, writer:
        try:
            fcntl.fcntl(writer.fileno(), fcntl.F_SETPIPE_SZ, 2 * limit)
        except PermissionError:
            return False
        return True


def kernel_slots(reader: FileIO, most: int = 16) -> list[int]:
    """Lengths of the first `most` slots of a kernel pipe, without taking anything out of it.

    tee(2) into a pipe with k free slots copies the first k slots, so the byte counts for
    k = 1, 2, ... tell the lengths apart.
    """
    tee = ctypes.CDLL(None, use_errno=True).tee
    tee.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint]
    tee.restype = ctypes.c_ssize_t
    totals = [0]
    for free in range(1, most + 1):
        helper_reader, helper_writer = kernel_pipe(most * PAGE, nonblocking=True)
        with helper_reader, helper_writer:
            helper_writer.write(bytes((most - free) * PAGE))
            count = tee(reader.fileno(), helper_writer.fileno(), 1 << 30, 2)
            totals.append(max(0, count))
    return [b - a for a, b in itertools.pairwise(totals) if b > a]


def unread(end: Any) -> int:
    """FIONREAD of a kernel pipe's end."""
    answer = bytearray(4)
    fcntl.ioctl(end.fileno(), termios.FIONREAD, answer)
    return int.from_bytes(answer, sys.byteorder)
