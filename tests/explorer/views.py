"""Windows onto simulated memory, in place of memoryviews."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from .machine import current
from .scheduler import Run

PAGE = 4096


class Words:
    """Words of a segment, by index, as a memoryview has them."""

    def __init__(self, run: Run, base: int, count: int, width: int) -> None:
        self.run, self.base, self.count, self.width = run, base, count, width

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        if type(index) is slice:
            values = [self[at] for at in range(*index.indices(self.count))]
            return memoryview(array("QI"[self.width == 4], values))
        assert 0 <= index < self.count
        return self.run.load(self.base + index * self.width)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is slice:
            for at, one in zip(range(*index.indices(self.count)), value, strict=True):
                self[at] = one
            return
        assert 0 <= index < self.count and 0 <= value < 1 << 8 * self.width
        self.run.store(self.base + index * self.width, value)


class Tokens(Words):
    """The table of processes in words of eight bytes; those between the first and the last of a
    place are numbers of four.
    """

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is slice or index % 8 in (0, 7):
            super().__setitem__(index, value)
        else:
            assert value == 0
            self.run.store(self.base + index * 8, 0)
            self.run.store(self.base + index * 8 + 4, 0)


class Data:
    """The bytes of a ring's pages; each page is one place."""

    def __init__(self, run: Run, base: int, size: int) -> None:
        self.run, self.base, self.size = run, base, size
        if base not in run.memory:
            for page in range(base, base + size, PAGE):
                run.put(page, bytes(PAGE))

    def __len__(self) -> int:
        return self.size

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        while start < stop:
            page, offset = start & -PAGE, start & (PAGE - 1)
            count = min(PAGE - offset, stop - start)
            yield self.base + page, offset, count
            start += count

    def __getitem__(self, index: slice) -> bytes:
        start, stop, _ = index.indices(self.size)
        parts = self._parts(start, stop)
        return b"".join(self.run.load(page)[at : at + count] for page, at, count in parts)

    def __setitem__(self, index: slice, value: Any) -> None:
        start, stop, _ = index.indices(self.size)
        value = bytes(value)
        assert len(value) == stop - start
        for page, at, count in self._parts(start, stop):
            self.run.store(page, Patch(at, value[:count]))
            value = value[count:]

    def cast(self, kind: str) -> Headers:
        assert kind == "Q"
        return Headers(self)


class Patch:
    """Bytes stored in a part of a page."""

    def __init__(self, at: int, value: bytes) -> None:
        self.at, self.value = at, value

    def __call__(self, page: bytes) -> bytes:
        return page[: self.at] + self.value + page[self.at + len(self.value) :]

    def __repr__(self) -> str:
        return f"{len(self.value)} bytes at {self.at}"


class Headers:
    """The same bytes as words."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(self.data[index * 8 : index * 8 + 8], "little")

    def __setitem__(self, index: int, value: int) -> None:
        self.data[index * 8 : index * 8 + 8] = value.to_bytes(8, "little")


class Lent:
    """What a loan gives: bytes of a ring where they lie, in a row also where they wrap."""

    def __init__(self, data: Data, at: int, size: int, capacity: int) -> None:
        self.data, self.at, self.size = data, at, size
        self.first = min(size, capacity - at)

    def toreadonly(self) -> Lent:
        return self

    def release(self) -> None:
        self.first = self.size = 0

    def read(self) -> bytes:
        rest = self.size - self.first
        return self.data[self.at : self.at + self.first] + self.data[0:rest]

    def write(self, content: bytes) -> None:
        self.data[self.at : self.at + self.first] = content[: self.first]
        self.data[0 : self.size - self.first] = content[self.first :]


class Window:
    """In place of ``lending.Window``; nobody keeps a view of it."""

    def __init__(self, ring: Any, pages: int) -> None:
        self.ring, self.size = ring, pages * PAGE
        self.token = 1 + current().process(current().here())

    def view(self, at: int, size: int) -> Lent:
        return Lent(self.ring.data, at & (self.size - 1), size, self.size)

    def is_used(self) -> bool:
        return False
