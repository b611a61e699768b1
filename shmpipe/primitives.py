"""The engine: where the names of the primitives come from."""

from __future__ import annotations

from ._pure import (
    ELSEWHERE,
    INTERRUPTED,
    POLLERR,
    POLLHUP,
    POLLIN,
    POLLOUT,
    SEM_BYTES,
    TIMED_OUT,
    WOKEN,
    Semaphore,
    address_of,
    fence,
    map_shared,
    poll_fd,
    semaphore_image,
)

__all__ = [
    "ELSEWHERE",
    "INTERRUPTED",
    "POLLERR",
    "POLLHUP",
    "POLLIN",
    "POLLOUT",
    "SEM_BYTES",
    "TIMED_OUT",
    "WOKEN",
    "Semaphore",
    "address_of",
    "fence",
    "map_shared",
    "poll_fd",
    "semaphore_image",
]
