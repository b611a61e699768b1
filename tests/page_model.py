"""Reference model of the pipe as a list of page slots: plain arithmetic, no shared memory, no I/O.

It says what each non-blocking call returns, what poll shows, and which freed slots wake the
writers that sleep. `test_page_model.py` compares it with the kernel's pipe, so that it can then
stand in for a kernel that has write sizes and other wake policies.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

PAGE = 4096
POLICIES = ("write-size", "page", "half", "edge-half", "full-edge")


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def round_size(arg: int) -> int:
    """The size in bytes that F_SETPIPE_SZ makes of its argument."""
    arg %= 1 << 32
    if arg > 1 << 31:
        raise error(errno.EINVAL)
    return max(PAGE, 1 << (arg - 1).bit_length() if arg else 0)


def wakes(policy: str, pages: int, used_before: int, write_pages: int = 1) -> bool:
    """Whether freeing one slot of `used_before` wakes writers."""
    used_after = used_before - 1
    if policy == "page":
        return True
    if policy == "half":
        return used_after <= pages // 2
    if policy == "write-size":
        return pages - used_after >= write_pages
    if policy == "edge-half" and pages > 1:
        return used_before == pages // 2
    # One page has no half: used_before is never 0, so its only edge is the full one.
    assert policy in ("edge-half", "full-edge"), policy
    return used_before == pages


def pollout(policy: str, pages: int, used: int, write_pages: int = 1) -> bool:
    """The level of POLLOUT while there is a reader."""
    if policy == "half":
        return used <= pages // 2
    if policy == "write-size":
        return pages - used >= write_pages
    assert policy in POLICIES, policy
    return used < pages


@dataclass
class Slot:
    """A page in use: `length` bytes from `offset` on."""

    offset: int
    length: int

    @property
    def room(self) -> int:
        return PAGE - self.offset - self.length


@dataclass
class PendingWrite:
    """A blocking write that sleeps: what is left of it, and how much went in."""

    left: bytes
    done: int


class PageModel:
    """One pipe with both ends; `woke` tells whether the last call wakes sleeping writers."""

    def __init__(
        self,
        size: int = 65536,
        *,
        write_size: int = PAGE,
        max_size: int | None = None,
        policy: str = "write-size",
    ) -> None:
        self.policy = policy
        self.max_size = max(round_size(size), 1 << 20) if max_size is None else max_size
        self.slots: list[Slot] = []
        self.data = bytearray()
        self.reader_open = self.writer_open = True
        self.woke = False
        self.bytes_written = self.bytes_read = 0
        # As if by the two fcntls on a fresh pipe, which is where the errors come from.
        self.pages = 16
        self.write_pages = 1
        self.set_size(size)
        self.set_write_size(write_size)

    # ------------------------------------------------------------ state

    @property
    def used(self) -> int:
        return len(self.slots)

    @property
    def free(self) -> int:
        return self.pages - len(self.slots)

    @property
    def lengths(self) -> list[int]:
        return [slot.length for slot in self.slots]

    @property
    def size(self) -> int:
        return self.pages * PAGE

    @property
    def write_size(self) -> int:
        return self.write_pages * PAGE

    def unread(self) -> int:
        return len(self.data)

    def readable(self) -> bool:
        """Whether select has the read end among the readable ones."""
        return bool(self.data) or not self.writer_open

    def writable(self) -> bool:
        """Whether select has the write end among the writable ones."""
        if not self.reader_open:
            return True
        return pollout(self.policy, self.pages, self.used, self.write_pages)

    # ------------------------------------------------------------ writing

    def _merges(self, count: int) -> bool:
        part = count % PAGE
        return 0 < part <= (self.slots[-1].room if self.slots else 0)

    def _fresh(self, data: bytes) -> int:
        """Put `data` into free slots; how many bytes found a place."""
        done = 0
        while done < len(data) and self.free:
            piece = data[done : done + PAGE]
            self.slots.append(Slot(0, len(piece)))
            self.data += piece
            done += len(piece)
        return done

    def _put(self, data: bytes, merge: bool) -> int:
        done = 0
        if merge and self._merges(len(data)):
            done = len(data) % PAGE
            self.slots[-1].length += done
            self.data += data[:done]
        done += self._fresh(data[done:])
        self.bytes_written += done
        return done

    def write(self, data: bytes) -> int | None:
        """A non-blocking write."""
        self.woke = False
        if not data:
            return 0
        if not self.reader_open:
            raise error(errno.EPIPE)
        return self._put(data, merge=True) or None

    def start_write(self, data: bytes) -> PendingWrite:
        """A blocking write up to where it sleeps, or to its end (nothing left)."""
        done = self.write(data) or 0
        return PendingWrite(data[done:], done)

    def resume_write(self, pending: PendingWrite) -> None:
        """A writer that slept goes on: fresh slots only, even where its bytes would merge."""
        if not self.reader_open:
            if pending.done == 0:
                raise error(errno.EPIPE)
            pending.left = b""  # Ends with the short count.
        done = self._put(pending.left, merge=False)
        pending.left = pending.left[done:]
        pending.done += done

    # ------------------------------------------------------------ reading

    def read(self, count: int = -1) -> bytes | None:
        """A non-blocking read; all there is for a negative count."""
        self.woke = False
        if count == 0:
            return b""
        if not self.data:
            return None if self.writer_open else b""
        if count < 0:
            count = len(self.data)
        taken = bytes(self.data[:count])
        del self.data[:count]
        left = len(taken)
        while left:
            slot = self.slots[0]
            step = min(left, slot.length)
            slot.offset += step
            slot.length -= step
            left -= step
            if slot.length == 0:
                self.woke |= wakes(self.policy, self.pages, self.used, self.write_pages)
                del self.slots[0]
        self.bytes_read += len(taken)
        return taken

    # ------------------------------------------------------------ sizes

    def set_size(self, arg: int) -> int:
        """F_SETPIPE_SZ."""
        self.woke = False
        size = round_size(arg)
        if size > self.size and size > self.max_size:
            raise error(errno.EPERM)
        if size // PAGE < max(self.used, self.write_pages):
            raise error(errno.EBUSY)
        self.pages = size // PAGE
        self.woke = self.free > 0
        return size

    def set_write_size(self, arg: int) -> int:
        """F_SETPIPE_WRITE_SZ."""
        self.woke = False
        pages = -(-arg // PAGE)
        if not 0 < pages <= self.pages:
            raise error(errno.EINVAL)
        self.write_pages = pages
        return self.write_size

    # ------------------------------------------------------------ closing

    def close_reader(self) -> None:
        self.woke = True
        self.reader_open = False

    def close_writer(self) -> None:
        self.woke = False
        self.writer_open = False
