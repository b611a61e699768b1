"""Arguments of `shmpipe.pipe`, `fcntl` and `ioctl`: what is refused, with which exception."""

from __future__ import annotations

import errno
import fcntl
import os
import termios
from typing import Any

import pytest

import shmpipe

from .support import PAGE, kernel_pipe

COMMANDS = {
    "F_SETPIPE_SZ": 1031,
    "F_GETPIPE_SZ": 1032,
    "F_SETPIPE_WRITE_SZ": 1024 + 15,
    "F_GETPIPE_WRITE_SZ": 1024 + 16,
    "F_GETFL": fcntl.F_GETFL,
    "F_SETFL": fcntl.F_SETFL,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_constants(name: str) -> None:
    assert getattr(shmpipe, name) == COMMANDS[name]
    assert name in shmpipe.__all__


def test_defaults() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        assert isinstance(reader, shmpipe.PipeReader)
        assert isinstance(writer, shmpipe.PipeWriter)
        for end, flags in ((reader, os.O_RDONLY), (writer, os.O_WRONLY)):
            assert shmpipe.fcntl(end, shmpipe.F_GETPIPE_SZ) == 65536
            assert shmpipe.fcntl(end, shmpipe.F_GETPIPE_WRITE_SZ) == PAGE
            assert shmpipe.fcntl(end, shmpipe.F_GETFL) == flags


def test_default_limit_is_that_of_the_system() -> None:
    with open("/proc/sys/fs/pipe-max-size") as file:
        limit = int(file.read())
    reader, writer = shmpipe.pipe()
    with reader, writer:
        assert shmpipe.fcntl(writer, shmpipe.F_SETPIPE_SZ, limit) == limit
        with pytest.raises(PermissionError):
            shmpipe.fcntl(writer, shmpipe.F_SETPIPE_SZ, 2 * limit)
    # A pipe that is asked for by size alone may have that size, and not more.
    reader, writer = shmpipe.pipe(4 * limit)
    with reader, writer:
        assert shmpipe.fcntl(reader, shmpipe.F_GETPIPE_SZ) == 4 * limit
        with pytest.raises(PermissionError):
            shmpipe.fcntl(reader, shmpipe.F_SETPIPE_SZ, 8 * limit)


@pytest.mark.parametrize(
    ("size", "write_size", "rounded", "rounded_write_size"),
    [
        (0, 1, 4096, 4096),
        (4097, 4097, 8192, 8192),
        (12288, 12288, 16384, 12288),
        (65536, 65536, 65536, 65536),
        (100_000, 70_000, 131072, 73728),
    ],
)
def test_sizes_are_rounded(
    size: int, write_size: int, rounded: int, rounded_write_size: int
) -> None:
    reader, writer = shmpipe.pipe(size, write_size=write_size)
    with reader, writer:
        assert shmpipe.fcntl(reader, shmpipe.F_GETPIPE_SZ) == rounded
        assert shmpipe.fcntl(writer, shmpipe.F_GETPIPE_WRITE_SZ) == rounded_write_size


@pytest.mark.parametrize("wake", ["write-size", "page", "half", "edge-half", "full-edge"])
@pytest.mark.parametrize("spin", [None, 0, 0.0, 1e-5])
def test_accepted_options(wake: str, spin: float | None) -> None:
    reader, writer = shmpipe.pipe(PAGE, wake=wake, spin=spin, flags=0, max_size=PAGE)
    with reader, writer:
        assert writer.write(b"abc") == 3
        assert reader.read(10) == b"abc"


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        ({"size": -1}, errno.EINVAL),
        ({"size": (1 << 31) + 1}, errno.EINVAL),
        ({"size": -4096}, errno.EINVAL),
        ({"write_size": 0}, errno.EINVAL),
        ({"write_size": -1}, errno.EINVAL),
        ({"write_size": 65537}, errno.EINVAL),
        ({"size": 4096, "write_size": 4097}, errno.EINVAL),
        ({"size": 1 << 20, "max_size": 1 << 17}, errno.EPERM),
        ({"size": 65537, "max_size": 65536}, errno.EPERM),
    ],
)
def test_sizes_out_of_range(arguments: dict[str, Any], number: int) -> None:
    with pytest.raises(OSError) as caught:
        shmpipe.pipe(**arguments)
    assert caught.value.errno == number


@pytest.mark.parametrize("size", [4096, 32768, 65536])
def test_limit_does_not_matter_without_growing(size: int) -> None:
    reader, writer = shmpipe.pipe(size, max_size=4096)
    with reader, writer:
        assert shmpipe.fcntl(writer, shmpipe.F_SETPIPE_SZ, size) == size
        assert writer.write(bytes(size)) == size
        with pytest.raises(PermissionError):
            shmpipe.fcntl(writer, shmpipe.F_SETPIPE_SZ, size + 1)


@pytest.mark.parametrize(
    "flags",
    [os.O_APPEND, os.O_RDWR, os.O_WRONLY, os.O_SYNC, os.O_TRUNC, os.O_DIRECT, 1 << 30, -1]
    + [os.O_NONBLOCK | os.O_APPEND],
)
def test_wrong_flags(flags: int) -> None:
    with pytest.raises(ValueError):
        shmpipe.pipe(flags=flags)


@pytest.mark.parametrize("wake", ["", "Page", "write_size", "full", "edge"])
def test_wrong_policy(wake: str) -> None:
    with pytest.raises(ValueError):
        shmpipe.pipe(wake=wake)


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": "65536"},
        {"size": 65536.0},
        {"size": None},
        {"size": b""},
        {"flags": "0"},
        {"flags": None},
        {"write_size": 4096.0},
        {"write_size": None},
        {"write_size": "4096"},
        {"max_size": "1"},
        {"max_size": 1e6},
        {"spin": "0"},
        {"spin": b""},
        {"unknown": 1},
    ],
)
def test_wrong_types(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        shmpipe.pipe(**arguments)


def test_only_the_size_is_positional() -> None:
    with pytest.raises(TypeError):
        shmpipe.pipe(65536, 0)  # type: ignore[call-arg]


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("command", [9999, 0, -1, 1024, 1025, 1026, 1033, 1041, 1 << 31])
def test_unknown_fcntl(end: int, command: int) -> None:
    pipe = shmpipe.pipe()
    with pipe[0], pipe[1], pytest.raises(OSError) as caught:
        shmpipe.fcntl(pipe[end], command)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("request_", [termios.TIOCOUTQ, termios.TCGETS])
def test_unknown_ioctl(end: int, request_: int) -> None:
    pipe = shmpipe.pipe()
    with pipe[0], pipe[1], pytest.raises(OSError) as caught:
        shmpipe.ioctl(pipe[end], request_)
    assert caught.value.errno == errno.ENOTTY
    kernel = kernel_pipe()
    with kernel[0], kernel[1], pytest.raises(OSError) as caught:
        fcntl.ioctl(kernel[end], request_, bytes(64))
    assert caught.value.errno == errno.ENOTTY


def test_fcntl_and_ioctl_want_an_end() -> None:
    reader, writer = kernel_pipe()
    with reader, writer:
        for thing in (reader, writer.fileno(), None, "x"):
            with pytest.raises(TypeError):
                shmpipe.fcntl(thing, shmpipe.F_GETPIPE_SZ)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                shmpipe.ioctl(thing, termios.FIONREAD)  # type: ignore[arg-type]


@pytest.mark.parametrize("arg", ["1", 4096.0, None])
@pytest.mark.parametrize("command", ["F_SETPIPE_SZ", "F_SETPIPE_WRITE_SZ", "F_SETFL"])
def test_fcntl_wants_a_number(command: str, arg: Any) -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer, pytest.raises(TypeError):
        shmpipe.fcntl(writer, COMMANDS[command], arg)


def test_each_end_has_its_own_nonblocking_flag() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        assert shmpipe.fcntl(reader, shmpipe.F_SETFL, os.O_NONBLOCK) == 0
        assert shmpipe.fcntl(reader, shmpipe.F_GETFL) == os.O_NONBLOCK
        assert shmpipe.fcntl(writer, shmpipe.F_GETFL) == os.O_WRONLY
        assert reader.read(1) is None
        assert shmpipe.fcntl(writer, shmpipe.F_SETFL, os.O_NONBLOCK) == 0
        assert shmpipe.fcntl(reader, shmpipe.F_SETFL, 0) == 0
        assert shmpipe.fcntl(reader, shmpipe.F_GETFL) == 0
        assert shmpipe.fcntl(writer, shmpipe.F_GETFL) == os.O_WRONLY | os.O_NONBLOCK
        assert writer.write(bytes(70_000)) == 65536
        assert writer.write(b"x") is None


def test_statistics_are_a_frozen_record() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        writer.write(bytes(5000))
        reader.read(10)
        for end in (reader, writer):
            stats = end.stats()
            assert isinstance(stats, shmpipe.PipeStats)
            assert (stats.bytes_written, stats.bytes_read, stats.pages_used) == (5000, 10, 2)
            assert (stats.writes, stats.reads, stats.frames_dropped) == (1, 1, 0)
            with pytest.raises(AttributeError):
                stats.writes = 5  # type: ignore[misc]
