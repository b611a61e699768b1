"""What pipes raise that Python has no class for."""

from __future__ import annotations


class OutOfTime(TimeoutError):
    """A call's own time is over.  (A TimeoutError that a signal's handler raises is another's.)"""


class PartlyReceived(OutOfTime):
    """A receiving call ran out of time in the middle of a message larger than the pipe.

    A TimeoutError like the others: nothing was received.  What has come is kept for this process's
    next receiving call, which goes on with it.
    """

    kept: int = 0
    """Bytes of the message that have come."""
