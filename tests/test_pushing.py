"""Writers that are driven by readiness: nothing sticks, and hardly a wake-up is in vain."""

from __future__ import annotations

import select
from typing import Any

import pytest

from .kinds import POLICIES, both_kinds, pipe_of, set_nonblocking
from .pollers import by_poll
from .streams import BLOB, LOST, chunks, expected_digest, pausing_reader
from .support import PAGE, run_child


class Pushed:
    """What a writer that is driven by readiness has seen."""

    def __init__(self) -> None:
        self.events = 0
        self.in_vain = 0  # events after which not a byte could be written


def push(w: Any, total: int, flags: int, largest: int) -> Pushed:
    """Write `total` bytes; wait whenever a write was refused or, with edges, cut short."""
    seen = Pushed()
    with select.epoll() as poller:
        poller.register(w, select.EPOLLOUT | flags)
        poller.poll(LOST)
        fresh = False
        for chunk in chunks(total, 7, largest):
            while chunk:
                count = w.write(chunk)
                if count is None:
                    seen.in_vain += fresh
                    assert poller.poll(LOST), "readiness was lost"
                    seen.events += 1
                    fresh = True
                else:
                    fresh = False
                    chunk = chunk[count:]
    w.close()
    return seen


@pytest.mark.slow
@both_kinds
@pytest.mark.parametrize("flags", [0, select.EPOLLET], ids=["level", "edge"])
@pytest.mark.parametrize("pages", [1, 2, 16])
def test_writer_gets_rid_of_every_byte(kind: str, flags: int, pages: int) -> None:
    total = 3_000_000
    with pipe_of(kind, pages) as (r, w):
        set_nonblocking(w)
        reader = run_child(pausing_reader, r, pages, close=[w])
        r.close()
        seen = push(w, total, flags, 20000)
        assert reader.join() == expected_digest(total)
        # Writable means that a page is free, so the next write does something; a moment of doubt
        # between processes is allowed, but not as a rule.
        assert seen.in_vain <= 10 + seen.events // 50


def sizes_for(policy: str) -> list[tuple[int, int]]:
    """(pages, write size in pages)."""
    if policy != "write-size":
        return [(1, 1), (2, 1), (16, 1)]
    return [(1, 1), (2, 1), (2, 2), (16, 1), (16, 4), (16, 8), (16, 16)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "pages", "write_pages"),
    [(policy, *sizes) for policy in POLICIES for sizes in sizes_for(policy)],
)
def test_writer_in_another_process_under_every_policy(
    policy: str, pages: int, write_pages: int
) -> None:
    total = 1_500_000
    options: dict[str, Any] = {"wake": policy, "write_size": write_pages * PAGE}
    with pipe_of("shmpipe", pages, **options) as (r, w):

        def write() -> tuple[int, int]:
            set_nonblocking(w)
            seen = push(w, total, 0, write_pages * PAGE)
            return seen.events, seen.in_vain

        writer = run_child(write, close=[r])
        w.close()
        assert pausing_reader(r, pages) == expected_digest(total)
        events, in_vain = writer.join()
        assert in_vain <= 10 + events // 50


@pytest.mark.parametrize("write_pages", [1, 3, 4])
def test_write_of_the_write_size_succeeds_whole_when_writable(write_pages: int) -> None:
    size = write_pages * PAGE
    with pipe_of("shmpipe", 4, write_size=size) as (r, w):
        set_nonblocking(w)
        reader = run_child(pausing_reader, r, 1, close=[w])
        r.close()
        short = 0
        for _ in range(200):
            assert by_poll(w, True, LOST)
            count = w.write(BLOB[:size]) or 0
            short += count < size
        w.close()
        reader.join()
        assert short <= 4
