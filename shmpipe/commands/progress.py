"""How far a run has come, on stderr: a bar in a terminal, a few lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

PLAIN_SECONDS = 5.0  # between two lines where there is no terminal


class Progress:
    """Shows one run after the other, each of `total` units."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = max(total, 1)
        self._stream = sys.stderr if stream is None else stream
        self._bar = self._stream.isatty()
        self._label = ""
        self._start = 0.0
        self._next = 0.0

    def start(self, label: str) -> None:
        """A run begins; the label stays beside its bar."""
        self._label = label
        self._start = time.monotonic()
        self._next = self._start + PLAIN_SECONDS
        self.update(0)

    def update(self, done: int) -> None:
        """So many units are done."""
        share = min(done / self._total, 1.0)
        if self._bar:
            self._draw(share)
        elif time.monotonic() >= self._next:
            self._next += PLAIN_SECONDS
            print(f"{self._label}: {share:.0%}", file=self._stream, flush=True)

    def finish(self) -> None:
        """The run is over."""
        seconds = time.monotonic() - self._start
        if self._bar:
            self._draw(1.0)
            self._write("\r\x1b[K")
        else:
            print(f"{self._label}: done in {seconds:.1f} s", file=self._stream, flush=True)

    def abort(self) -> None:
        """The run has failed: leave an empty line for the message."""
        if self._bar:
            self._write("\r\x1b[K")

    def _draw(self, share: float) -> None:
        columns = shutil.get_terminal_size().columns
        label = self._label[: columns // 2].ljust(min(36, columns // 2))
        width = max(columns - len(label) - 9, 1)
        filled = int(share * width)
        self._write(f"\r{label} [{'#' * filled}{'.' * (width - filled)}] {share:4.0%}\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
