"""shmpipe for asyncio: ``AsyncConnection`` for ends of ``Pipe()``, streams for those of ``pipe()``.

Driven by the event loop's ``add_reader`` and ``add_writer`` (asyncio's own loops, uvloop); there
are no threads.  For AnyIO, on asyncio or Trio, see ``shmpipe.aio.anyio``.
"""

from .connection import AsyncConnection
from .streams import connect_read_pipe, connect_write_pipe, open_reader, open_writer

__all__ = [
    "AsyncConnection",
    "connect_read_pipe",
    "connect_write_pipe",
    "open_reader",
    "open_writer",
]
