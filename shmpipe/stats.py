"""What a pipe has counted since it was made."""

from __future__ import annotations

from dataclasses import dataclass

from .ring import Ring
from .segment import (
    DROPPED,
    R_BYTES,
    R_SLEEPS,
    R_SPINS,
    R_WAKES,
    READS,
    W_BYTES,
    W_SLEEPS,
    W_SPINS,
    W_WAKES,
    W_WITHHELD,
    WRITES,
)


@dataclass(frozen=True)
class PipeStats:
    """Counts of one pipe, over all processes that hold an end of it.

    They are read one after the other while the pipe may be at work, so they need not fit each other
    exactly; with several processes on one side, a wake may now and then be counted once for two.
    """

    bytes_written: int
    """Bytes that have gone in."""
    bytes_read: int
    """Bytes that have come out."""
    writes: int
    """Calls of write() that wrote something."""
    reads: int
    """Calls of read() and readinto() that read something."""
    reader_sleeps: int
    """How often a reader went to sleep because the pipe was empty."""
    writer_sleeps: int
    """How often a writer went to sleep because the pipe was full."""
    reader_wakes: int
    """Wakes given to readers (sleeping, or watching ``fileno()``)."""
    writer_wakes: int
    """Wakes given to writers (sleeping, or watching ``fileno()``)."""
    reader_wakes_withheld: int
    """Always 0: no policy holds data back from a reader."""
    writer_wakes_withheld: int
    """Reads that freed pages while a writer waited, but that the wake policy passed over."""
    reader_spins_paid: int
    """Times that a reader found data while spinning, and did not have to sleep."""
    writer_spins_paid: int
    """Times that a writer found space while spinning, and did not have to sleep."""
    pages_used: int
    """Page slots in use now."""
    frames_dropped: int
    """Messages that began and were not delivered: their sender died, or gave them up in the middle,
    or who had received a part of them has gone."""


def stats_of(ring: Ring) -> PipeStats:
    words = ring.view
    return PipeStats(
        bytes_written=words[W_BYTES],
        bytes_read=words[R_BYTES],
        writes=words[WRITES],
        reads=words[READS],
        reader_sleeps=words[R_SLEEPS],
        writer_sleeps=words[W_SLEEPS],
        reader_wakes=words[R_WAKES],
        writer_wakes=words[W_WAKES],
        reader_wakes_withheld=0,
        writer_wakes_withheld=words[W_WITHHELD],
        reader_spins_paid=words[R_SPINS],
        writer_spins_paid=words[W_SPINS],
        pages_used=max(0, ring.used_now()),
        frames_dropped=words[DROPPED],
    )
