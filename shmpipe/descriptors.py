"""File descriptors that have an owner from the moment they exist.

A number alone is nobody's: an exception, which a signal handler can raise between any two steps,
would leak it, and whoever closes it twice closes a stranger's file.  So a descriptor is an object.
Its references are its owners; it is closed with the last of them, if not before, and forgets its
number as it closes.  A call that holds a reference can go on using it while another thread lets go.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial


class Descriptor(io.FileIO):
    """The owner of a descriptor of any kind."""

    # A C method, which no handler can interrupt; and unlike FileIO's own it does not warn.
    __del__ = io.FileIO.close


def owned(make: Callable[..., int], *args: object) -> Descriptor:
    """The descriptor that ``make(*args)`` returns.

    All that comes after ``make`` happens inside of one call of a C function, so no handler runs
    between the number and its owner.
    """
    return next(map(Descriptor, iter(partial(make, *args), None)))
