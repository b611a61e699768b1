"""Time limits: callers say seconds from now; inside they are moments of ``time.monotonic()``."""

from __future__ import annotations

import time

_FOREVER = 1e9  # seconds: whoever waits for longer has no limit, and no clock overflows


def deadline_of(timeout: float | None) -> float | None:
    """When a call that begins now is out of time; None: never (``timeout`` None, or 30 years).

    ValueError: it is not a number of seconds (NaN).  TypeError: nor a number.
    """
    if timeout is None:
        return None
    try:
        if timeout >= _FOREVER:
            return None
        deadline = time.monotonic() + max(timeout, -_FOREVER)
    except TypeError:
        kind = type(timeout).__name__
        raise TypeError(f"timeout must be a number of seconds or None, not {kind}") from None
    if timeout != timeout:
        raise ValueError("timeout is NaN: expected seconds, or None for no limit")
    return deadline


def remaining(deadline: float | None) -> float | None:
    """Seconds until ``deadline``; None: no limit."""
    return None if deadline is None else deadline - time.monotonic()


def is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
