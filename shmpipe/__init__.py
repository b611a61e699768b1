"""A shared-memory pipe between processes, with the semantics of the Linux pipe."""

from ._engine import engine  # first: it decides where the others come from
from ._version import __version__
from .connection import Connection, Pipe
from .control import (
    F_GETFL,
    F_GETPIPE_SZ,
    F_GETPIPE_WRITE_SZ,
    F_SETFL,
    F_SETPIPE_SZ,
    F_SETPIPE_WRITE_SZ,
)
from .errors import PartlyReceived
from .patch import install, installed, uninstall
from .pipe import PipeEnd, PipeReader, PipeWriter, fcntl, ioctl, pipe
from .rendezvous import Listener, connect, listen
from .stats import PipeStats
from .stepping import SteppedSend

__all__ = [
    "F_GETFL",
    "F_GETPIPE_SZ",
    "F_GETPIPE_WRITE_SZ",
    "F_SETFL",
    "F_SETPIPE_SZ",
    "F_SETPIPE_WRITE_SZ",
    "Connection",
    "Listener",
    "PartlyReceived",
    "Pipe",
    "PipeEnd",
    "PipeReader",
    "PipeStats",
    "PipeWriter",
    "SteppedSend",
    "__version__",
    "connect",
    "engine",
    "fcntl",
    "install",
    "installed",
    "ioctl",
    "listen",
    "pipe",
    "uninstall",
]
