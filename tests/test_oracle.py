"""State machines: shmpipe beside the kernel's pipe, and beside the page model.

The profile decides how much is tried: the default is some thousand sequences in a quarter of a
minute; ``--hypothesis-profile=long`` takes an hour.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .page_model import POLICIES, PageModel
from .subjects import POLLERS, KernelPipe, ModelPipe, ShmPipe, Step, Subject, brief
from .support import PAGE, kernel_may_exceed_max

MAX = 1 << 20

starts = st.integers(0, 250)
ends = st.sampled_from(["r", "w"])
pipe_sizes = st.sampled_from([1, 2, 4, 8, 16, 32]).map(lambda pages: pages * PAGE)
# All edges of a page and of small pipes, from far below to beyond the largest pipe.
around_pages = st.builds(
    lambda pages, offset: max(0, pages * PAGE + offset),
    st.sampled_from([0, 1, 2, 3, 4, 8, 16, 17, 32, 33]),
    st.sampled_from([0, -1, 1, 2, 100, -100, 2048, 2049]),
)
# Amounts that depend on the state, see `_Pair.amount`.
relative = st.tuples(
    st.sampled_from(["room", "first", "free", "all"]),
    st.sampled_from([0, -1, 1, -PAGE, PAGE, 2 * PAGE]),
)
amounts = st.one_of(around_pages, relative, st.integers(0, 3 * PAGE))
size_arguments = st.one_of(
    st.sampled_from([0, 1, PAGE, PAGE + 1, 12288, 65536, 65537, MAX]),
    st.sampled_from([-1, -PAGE, (1 << 31) + 1, 1 << 32, (1 << 32) + 5000]),
    st.sampled_from([MAX + 1, 1 << 21, 1 << 31, -(1 << 31)]),
    st.integers(0, 20 * PAGE),
)


class _Pair(RuleBasedStateMachine):
    """Two pipes that must agree on every step; `model` follows, to aim at the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.pipes: list[Subject] = []
        self.model = PageModel()

    def start(self, model: PageModel, *pipes: Subject) -> None:
        self.model = model
        self.pipes = list(pipes)

    def teardown(self) -> None:
        for pipe in self.pipes:
            pipe.dispose()

    def step(self, *step: Any) -> None:
        outcomes = [pipe.do(step) for pipe in self.pipes]
        for pipe, outcome in zip(self.pipes[1:], outcomes[1:], strict=True):
            assert outcome == outcomes[0], (
                f"{step}: {self.pipes[0].name} {brief(outcomes[0])}, {pipe.name} {brief(outcome)}"
            )

    def follow(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError:
            pass

    def amount(self, spec: int | tuple[str, int]) -> int:
        if isinstance(spec, int):
            return spec
        what, offset = spec
        slots = self.model.slots
        base = {
            "room": slots[-1].room if slots else 0,
            "first": slots[0].length if slots else 0,
            "free": self.model.free * PAGE,
            "all": self.model.unread(),
        }[what]
        return max(0, base + offset)

    @rule(start=starts, spec=amounts)
    def write(self, start: int, spec: int | tuple[str, int]) -> None:
        count = self.amount(spec)
        self.follow(lambda: self.model.write(bytes(count)))
        self.step("write", start, count)

    @rule(name=st.sampled_from(["read", "read", "readinto"]), spec=amounts)
    def read(self, name: str, spec: int | tuple[str, int]) -> None:
        count = self.amount(spec)
        self.follow(lambda: self.model.read(count))
        self.step(name, count)

    @rule(step=st.sampled_from([("read", -1), ("read", -5), ("read", None), ("readall",)]))
    def read_all(self, step: Step) -> None:
        self.follow(lambda: self.model.read(-1))
        self.step(*step)

    @rule(how=st.sampled_from(list(POLLERS)))
    def poll(self, how: str) -> None:
        self.step("ready", how)

    @rule(end=ends)
    def fionread(self, end: str) -> None:
        self.step("unread", end)

    @rule(end=ends, arg=size_arguments)
    def resize(self, end: str, arg: int) -> None:
        if KERNEL_EXCEEDS and MAX < arg % (1 << 32) <= 1 << 31:
            return
        self.follow(lambda: self.model.set_size(arg))
        self.step("set_size", end, arg)
        self.step("get_size", end)

    @rule(end=ends)
    def resize_to_what_is_used(self, end: str) -> None:
        self.resize(end, self.model.used * PAGE)

    # A sequence is most interesting before an end closes.
    @precondition(lambda self: self.model.bytes_written > 3 * PAGE)
    @rule(end=ends)
    def close(self, end: str) -> None:
        (self.model.close_reader if end == "r" else self.model.close_writer)()
        self.step("close", end)
        self.step("closed", end)

    @rule(end=ends)
    def wrong_way(self, end: str) -> None:
        self.step("wrong_way", end)


KERNEL_EXCEEDS = kernel_may_exceed_max()


class KernelOracle(_Pair):
    """shmpipe, the kernel's pipe and the model at once."""

    @initialize(size=pipe_sizes)
    def make(self, size: int) -> None:
        model = PageModel(size, max_size=MAX)
        self.start(model, KernelPipe(size), ShmPipe(size, max_size=MAX), ModelPipe(size))

    @rule(end=ends, junk=st.sampled_from([0, os.O_RDWR, os.O_CREAT, os.O_EXCL | os.O_TRUNC]))
    def flags(self, end: str, junk: int) -> None:
        self.step("set_flags", end, junk)
        self.step("get_flags", end)


class ModelOracle(_Pair):
    """shmpipe and the model, with write sizes and wake policies."""

    @initialize(size=pipe_sizes, wake=st.sampled_from(POLICIES), data=st.data())
    def make(self, size: int, wake: str, data: st.DataObject) -> None:
        options: dict[str, Any] = {"max_size": MAX, "wake": wake}
        options["write_size"] = PAGE * data.draw(st.integers(1, size // PAGE))
        model = PageModel(size, max_size=MAX, write_size=options["write_size"])
        self.start(model, ModelPipe(size, **options), ShmPipe(size, **options))

    @rule(end=ends, pages=st.integers(0, 34), offset=st.sampled_from([0, 0, 0, 1, -1]))
    def set_write_size(self, end: str, pages: int, offset: int) -> None:
        arg = pages * PAGE + offset
        self.follow(lambda: self.model.set_write_size(arg))
        self.step("set_write_size", end, arg)
        self.step("get_write_size", end)

    @precondition(lambda self: self.model.reader_open and self.model.writer_open)
    @rule(end=ends)
    def statistics(self, end: str) -> None:
        self.step("counts", end)


LIMIT = pytest.mark.timeout_s(100 if settings().max_examples < 5000 else 7200)
TestKernelOracle = pytest.mark.slow(LIMIT(KernelOracle.TestCase))
TestModelOracle = pytest.mark.slow(LIMIT(ModelOracle.TestCase))
TestKernelOracle.settings = TestModelOracle.settings = settings()  # Those of the profile.
