"""One direction of a connection, for its tuning knobs and its readiness."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from . import control
from .segment import RD_FLAGS, WR_FLAGS
from .stats import PipeStats, stats_of
from .waiting import Side

if TYPE_CHECKING:
    from .ends import End


class Half:
    """One direction of a connection, for its tuning knobs: ``conn.incoming``, ``conn.outgoing``."""

    def __init__(self, connection: End, side: Side, access: int) -> None:
        self._connection = connection
        self._side = side
        self._access = access

    def _open_side(self) -> Side:
        self._connection._check_closed()
        return self._side

    def fileno(self) -> int:
        """A descriptor for select, poll and epoll: readable (writable) when a receive (a send of up
        to the write size) would not block.  OSError: the connection is closed.
        """
        return self._open_side().watch_fd()

    def stats(self) -> PipeStats:
        """What this direction has counted so far.  OSError: the connection is closed."""
        return stats_of(self._open_side().ring)

    def _fcntl(self, cmd: int, arg: int) -> int:
        side = self._open_side()
        if cmd == control.F_SETFL:
            raise OSError(errno.EINVAL, "connections have no flags to set; see try_send_bytes()")
        segment = side.ring.segment
        flags = WR_FLAGS if self._access else RD_FLAGS
        result = control.command(side, flags, self._access, cmd, arg, segment.max_pages)
        if cmd in (control.F_SETPIPE_SZ, control.F_SETPIPE_WRITE_SZ):
            control.refresh_others(segment, side)
        return result

    def _ioctl(self, request: int) -> int:
        return control.request(self._open_side(), request)
