"""The reference model: against the kernel's pipe slot by slot, and its wake rules by table.

What the model returns from calls is tested with everything else in test_rules_*.py.
"""

from __future__ import annotations

import errno
import random

import pytest

from .differential import Run
from .page_model import POLICIES, PageModel, pollout, wakes
from .support import PAGE, kernel_pipe, kernel_slots


@pytest.mark.parametrize("seed", range(30))
def test_slots_agree_with_the_kernel(seed: int) -> None:
    rng = random.Random(seed)
    pages = rng.choice((1, 2, 4, 16))
    reader, writer = kernel_pipe(pages * PAGE, nonblocking=True)
    model = PageModel(pages * PAGE)
    edges = (1, 100, 2048, 2049, 4000, 4095, 4096, 4097, 8191, 8193, 12289)
    with reader, writer:
        for _ in range(60):
            last = model.slots[-1].room if model.slots else 1
            count = rng.choice((rng.choice(edges), rng.randint(1, 9000), max(1, last)))
            if rng.random() < 0.6:
                assert writer.write(bytes(count)) == model.write(bytes(count))
            else:
                assert reader.read(count) == model.read(count)
            assert kernel_slots(reader) == model.lengths


@pytest.mark.parametrize("seed", range(3))
def test_calls_agree_with_the_kernel(seed: int) -> None:
    found = Run(30_000, seed, "model", left="kernel").all()
    assert found is None, found.report()


# Pages; for each policy the used counts just after a freed slot which wake, when a full pipe is
# read page by page. The write size of "write-size" is 4 pages, or what the pipe has.
WAKING = [
    (16, "page", range(16)),
    (16, "half", range(9)),
    (16, "write-size", range(13)),
    (16, "edge-half", [7]),
    (16, "full-edge", [15]),
    (4, "page", range(4)),
    (4, "half", range(3)),
    (4, "write-size", [0]),
    (4, "edge-half", [1]),
    (4, "full-edge", [3]),
    (2, "page", [0, 1]),
    (2, "half", [0, 1]),
    (2, "edge-half", [0]),
    (2, "full-edge", [1]),
    (1, "page", [0]),
    (1, "half", [0]),
    (1, "full-edge", [0]),
    # With one page the half is an edge that is never crossed; the fallback is the full one.
    (1, "edge-half", [0]),
]


@pytest.mark.parametrize(("pages", "policy", "expected"), WAKING)
def test_which_freed_slots_wake(pages: int, policy: str, expected: list[int]) -> None:
    model = PageModel(pages * PAGE, policy=policy, write_size=min(4, pages) * PAGE)
    assert model.write(bytes(pages * PAGE)) == pages * PAGE
    woken = []
    while model.used:
        assert model.read(PAGE - 1) and not model.woke  # No slot is freed yet.
        assert model.read(1)
        if model.woke:
            woken.append(model.used)
    assert sorted(woken) == list(expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("pages", [1, 2, 4, 16, 256])
def test_draining_always_wakes_somewhere(policy: str, pages: int) -> None:
    """A writer sleeps at a full pipe only, so reading everything must pass a waking slot."""
    for write_pages in {1, 2, pages // 2, pages} - {0}:
        if write_pages <= pages:
            assert any(wakes(policy, pages, used, write_pages) for used in range(1, pages + 1))


@pytest.mark.parametrize("pages", [1, 2, 4, 16])
def test_write_size_covers_two_other_policies(pages: int) -> None:
    for used in range(1, pages + 1):
        assert wakes("write-size", pages, used, 1) == wakes("page", pages, used)
        upper_half = pages - pages // 2
        assert wakes("write-size", pages, used, upper_half) == wakes("half", pages, used)
    for used in range(pages + 1):
        assert pollout("write-size", pages, used, 1) == pollout("page", pages, used)
        assert pollout("write-size", pages, used, upper_half) == pollout("half", pages, used)
        assert pollout("edge-half", pages, used) == pollout("full-edge", pages, used)
        assert pollout("page", pages, used) == (used < pages)


def test_one_large_read_wakes_as_its_freed_slots_do() -> None:
    for policy in POLICIES:
        for count in range(1, 9):
            model = PageModel(8 * PAGE, policy=policy, write_size=3 * PAGE)
            model.write(bytes(8 * PAGE))
            model.read(count * PAGE)
            assert model.woke == any(wakes(policy, 8, used, 3) for used in range(8, 8 - count, -1))


def test_resize_and_close_wake() -> None:
    model = PageModel(2 * PAGE)
    model.write(bytes(2 * PAGE))
    assert model.set_size(2 * PAGE) and not model.woke  # Still full.
    assert model.set_size(4 * PAGE) and model.woke
    model.read(PAGE)
    assert model.set_size(2 * PAGE) and model.woke
    assert model.set_write_size(2 * PAGE) and not model.woke
    model.close_reader()
    assert model.woke


def test_sleeping_writers_take_fresh_slots() -> None:
    model = PageModel(PAGE)
    model.write(bytes(PAGE))
    model.set_size(4 * PAGE)
    model.write(bytes(3 * PAGE))
    sleepers = [model.start_write(bytes(100)) for _ in range(4)]
    assert all(sleeper.left for sleeper in sleepers)
    assert len(model.read() or b"") == 4 * PAGE
    for sleeper in sleepers:
        model.resume_write(sleeper)
        assert (sleeper.left, sleeper.done) == (b"", 100)
    assert model.lengths == [100] * 4


def test_newcomer_merges_past_a_sleeper() -> None:
    model = PageModel(2 * PAGE)
    model.write(bytes(2 * PAGE))
    first, second = (model.start_write(bytes(100)) for _ in range(2))
    model.read(PAGE)
    model.resume_write(first)
    assert (first.left, model.lengths) == (b"", [PAGE, 100])
    model.resume_write(second)
    assert second.left
    assert model.write(bytes(100)) == 100
    assert model.lengths == [PAGE, 200]


def test_large_blocking_write_goes_on_page_by_page() -> None:
    model = PageModel(2 * PAGE)
    model.write(bytes(2 * PAGE))
    pending = model.start_write(bytes(20000))
    rounds = 0
    while pending.left:
        assert len(model.read(PAGE) or b"") == PAGE
        model.resume_write(pending)
        rounds += 1
    assert (pending.done, rounds) == (20000, 5)


def test_reader_closes_under_a_sleeping_writer() -> None:
    model = PageModel(2 * PAGE)
    part = model.start_write(bytes(20000))
    nothing = model.start_write(bytes(20000))
    assert (part.done, nothing.done) == (2 * PAGE, 0)
    model.close_reader()
    model.resume_write(part)
    assert (part.left, part.done) == (b"", 2 * PAGE)
    with pytest.raises(BrokenPipeError) as caught:
        model.resume_write(nothing)
    assert caught.value.errno == errno.EPIPE
