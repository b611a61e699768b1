"""The wake rule: which freed slot wakes a blocked writer, and when a writer counts as ready.

``before`` slots were in use just before a read freed some of them, ``after`` just after; a read
that frees several slots passes every number in between.  ``threshold`` is the write size in
pages.

Sources: the Linux patches "wakeup writer only if pipe buffer is at least half empty" (half) and
F_SETPIPE_WRITE_SZ (write-size), both K. Khlebnikov 2019; D. Howells's reply on a conditional
wake-up in pipe_read (edge-half); mainline since 5.5 (full-edge) and before (page).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    WakePolicy = Literal["write-size", "page", "half", "edge-half", "full-edge"]

WRITE_SIZE, EVERY_PAGE, HALF, EDGE_HALF, FULL_EDGE = range(5)

POLICIES: dict[WakePolicy, int] = {
    "write-size": WRITE_SIZE,
    "page": EVERY_PAGE,
    "half": HALF,
    "edge-half": EDGE_HALF,
    "full-edge": FULL_EDGE,
}


def fires(policy: int, pages: int, threshold: int, before: int, after: int) -> bool:
    """Whether freeing the slots from ``before`` down to ``after`` wakes sleeping writers."""
    if policy == WRITE_SIZE:
        return pages - after >= threshold
    if policy == EVERY_PAGE:
        return True
    if policy == HALF:
        return after <= pages // 2
    if policy == EDGE_HALF and pages > 1:
        # The edge alone, and the empty ring: a sleeper whose wake-up died with another sleeper
        # must not stay asleep beside a ring that nobody will drain again.
        return after < pages // 2 <= before or not after
    return before >= pages or not after


def ready(policy: int, pages: int, threshold: int, used: int) -> bool:
    """Whether a writer is reported writable with ``used`` slots in use."""
    if policy == WRITE_SIZE:
        return pages - used >= threshold
    if policy == HALF:
        return used <= pages // 2
    return used < pages
