"""What may come out of a call, whatever the other end has done."""

from __future__ import annotations

import multiprocessing

import shmpipe


class Interrupted(Exception):
    """A call that may wait for ever was ended by a signal's handler, as it may be at any time."""


# Of ValueErrors those that say what the caller has asked for cannot be.
_TRUE = ("never fits", "cannot be reserved", "closed file")
# The interpreted engine's locks are CPython's: one that is made full in the middle of a call.
_INTERPRETED = "released too many times"


def is_promised(error: BaseException) -> bool:
    if isinstance(error, OSError | EOFError | Interrupted | multiprocessing.BufferTooShort):
        return True
    if isinstance(error, ValueError):
        text = str(error)
        return any(part in text for part in _TRUE) or (
            shmpipe.engine == "pure" and _INTERPRETED in text
        )
    return False


def name(error: BaseException) -> str:
    """For the figures."""
    if isinstance(error, OSError) and type(error) is OSError:
        import errno

        if error.errno is None:
            return "OSError (closed, or bad message length)"
        return f"OSError {errno.errorcode.get(error.errno, error.errno)}"
    return type(error).__name__
