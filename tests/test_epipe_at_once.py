"""A killed reader is counted out at once: the very next write fails."""

import os
import signal

import pytest

import shmpipe


@pytest.mark.parametrize("size", [1, 4096, 20000])
def test_write_right_after_the_only_reader_was_killed(size: int) -> None:
    for _ in range(50):
        reader, writer = shmpipe.pipe()
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        reader.close()
        writer.write(b"x")  # the doorbell has just been asked
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with pytest.raises(BrokenPipeError):
            writer.write(bytes(size))
        writer.close()
