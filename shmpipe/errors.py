"""What pipes raise that Python has no class for."""

from __future__ import annotations


class PartlyReceived(TimeoutError):
    """A receiving call ran out of time in the middle of a message larger than the pipe.

    A TimeoutError like the others: nothing was received.  What has come is kept for this process's
    next receiving call, which goes on with it.
    """

    kept: int = 0
    """Bytes of the message that have come."""
