"""What a hostile peer writes: numbers that have broken programs before, and any number at all."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from shmpipe import identity

ALL_ONES = (1 << 64) - 1
CHOSEN = (
    0,
    1,
    2,
    3,
    7,
    8,
    4095,
    4096,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    1 << 51,
    1 << 52,
    (1 << 56) - 1,
    (1 << 63) - 8,
    (1 << 63) - 1,
    1 << 63,
    ALL_ONES - 7,
    ALL_ONES,
)
NEAR = (0, 1, 4, 7, 8, 16, 24, 4088, 4096, 8192)


def tokens() -> list[int]:
    """Names of processes: of this one, of its parent, of the first one, of none."""
    parent, first = os.getppid(), 1
    found = [identity.token, 1, ALL_ONES, 1 << 40]
    for pid in (parent, first):
        found += [pid << 40, pid << 40 | (identity._start_time(pid) or 0)]
    return found


def number(rng: random.Random, near: Sequence[int]) -> int:
    """A number of 64 bits; ``near`` are such as mean something at this place."""
    how = rng.random()
    if how < 0.4:
        return rng.choice(CHOSEN)
    if how < 0.85:
        return (rng.choice(near) + rng.choice((1, -1)) * rng.choice(NEAR)) & ALL_ONES
    return rng.getrandbits(64)
