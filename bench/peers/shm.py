"""shmpipe itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import shmpipe

from .base import Peer
from .stdlib import ConnectionChannel


class ShmPipe(Peer):
    ours = into = watchable = writers = True

    def __init__(self, name: str = "shmpipe", **options: Any) -> None:
        self.name = name
        self._options = options

    def channel(self, size: int, writers: int = 1) -> ConnectionChannel:
        return ConnectionChannel(*shmpipe.Pipe(False, **self._options))


class ShmCreation(Peer):
    """One of the calls that make a pipe, for creation only."""

    def __init__(self, name: str, create: Callable[[], tuple[Any, Any]]) -> None:
        self.name = name
        self._create = create

    def create_and_close(self) -> Callable[[], None]:
        create = self._create

        def cycle() -> None:
            left, right = create()
            left.close()
            right.close()

        return cycle


CREATIONS = [
    ShmCreation("shmpipe.Pipe()", shmpipe.Pipe),
    ShmCreation("shmpipe.Pipe(False)", lambda: shmpipe.Pipe(False)),
    ShmCreation("shmpipe.pipe()", shmpipe.pipe),
]
