"""What must hold for those who are left, whoever was killed, and wherever."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from shmpipe.segment import DROPPED, RPOS, WPOS

from .actors import LATE, Process, Run

# Steps at which a message in parts is begun, and has come to its end.
_OPENS = {"begin-open", "stepped-open"}
_ENDS = {"end-open", "stepping._put.W_OPEN"}


class Broken(Exception):
    """A promise was not kept."""


@dataclasses.dataclass
class Played:
    """A run that has come to its end."""

    run: Run
    view: Any  # the control words
    writers: list[Process]
    readers: list[Process]
    victim: Process
    one_loss: int = 1  # how many records a reader takes at once

    checked: Counter[str] = dataclasses.field(default_factory=Counter)
    latest: float = 0.0  # seconds that a call took beyond its own timeout, at most

    def holds(self, promise: str, kept: bool, what: object = "") -> None:
        self.checked[promise] += 1
        if not kept:
            raise Broken(f"{promise}: {what}")

    def dead(self, processes: list[Process]) -> list[Process]:
        return [process for process in processes if process.killed]


def check_all(played: Played) -> None:
    """All that has to hold for numbered records.  Broken: something does not."""
    check_survivors(played)
    check_records(played)
    check_count(played)


def check_survivors(played: Played) -> None:
    """Nobody has failed, nor come late, nor missed the end."""
    for process in played.run.processes:
        errors = process.log_of("error")
        played.holds("no error", not errors, f"{process.name}: {errors}")
        if process.killed:
            continue
        played.holds("comes to an end", bool(process.log_of("end")), process.name)
        for late, call in process.log_of("late"):
            if process.aim.action != "kill" and process is played.victim:
                continue  # who was stopped himself
            played.latest = max(played.latest, late)
            played.holds("in time", late < LATE, f"{process.name}: {call} {late} s too late")
    writers_left = [process for process in played.writers if not process.killed]
    readers_left = [process for process in played.readers if not process.killed]
    if played.writers and not writers_left:
        for process in readers_left:
            end = process.log_of("eof") or process.log_of("enough")
            played.holds("end of file", bool(end), process.name)
    if played.readers and not readers_left:
        for process in writers_left:
            end = process.log_of("broken") or process.log_of("done")
            played.holds("broken pipe", bool(end), process.name)


def check_records(played: Played) -> None:
    """Every record whole, once and in order; lost only with who was taking it."""
    begun, sent, refused = Counter(), Counter(), set()
    for process in played.writers:
        for who, first, count in process.log_of("begin"):
            begun.update((who, number) for number in range(first, first + count))
        for who, first, count in process.log_of("sent"):
            sent.update((who, number) for number in range(first, first + count))
        refused |= {tuple(entry) for entry in process.log_of("refused")}
    got: Counter[tuple[int, int]] = Counter()
    for process in played.readers:
        torn = process.log_of("torn")
        played.holds("none torn", not torn, f"{process.name}: {torn}")
        mine = [tuple(entry) for entry in process.log_of("got")]
        got.update(mine)
        for who in {who for who, _ in mine}:
            numbers = [number for by, number in mine if by == who]
            in_order = numbers == sorted(numbers)
            played.holds("in order", in_order, f"{process.name} from {who}: {numbers}")
    twice = [record for record, count in got.items() if count > 1]
    played.holds("none doubled", not twice, twice)
    played.holds("none invented", not got.keys() - begun.keys(), got.keys() - begun.keys())
    played.holds("refused is not sent", not got.keys() & refused, got.keys() & refused)
    if any(not process.killed for process in played.readers):
        lost = sent.keys() - got.keys()
        left = [process for process in played.readers if process.log_of("leaves")]
        allowed = played.one_loss * len({*played.dead(played.readers), *left})
        early = any(process.log_of("enough") for process in played.readers)
        played.holds("none lost", early or len(lost) <= allowed, sorted(lost))
        drained = played.view[RPOS] == played.view[WPOS]
        played.holds("all was taken", early or drained, "something is left")


def check_count(played: Played) -> None:
    """An unfinished frame is counted, and nothing else is."""
    if all(process.killed for process in played.readers):
        return  # nobody is left who would skip it
    if any(process.log_of("enough") for process in played.readers):
        return  # nor has anybody come so far
    given_up = sum(len(p.log_of("refused") + p.log_of("again")) for p in played.writers)
    left = sum(unfinished(played, writer) for writer in played.dead(played.writers))
    left += sum(len(process.log_of("leaves")) for process in played.readers)
    # What a sender gives up may not have begun, and what a dead receiver had may have been whole.
    most = left + given_up + sum(map(had_begun, played.dead(played.readers)))
    dropped = played.view[DROPPED]
    what = f"{dropped}, where {left} are left unfinished and {given_up} were given up"
    played.holds("unfinished is counted", left <= dropped <= most, what)


def had_begun(reader: Process) -> int:
    """Whether a killed receiver may have had a part of a message, or all of its parts: 1 or 0."""
    trace = reader.board.trace()
    if "keeper-first" not in trace:
        return 0
    behind = trace[len(trace) - trace[::-1].index("keeper-first") :]
    took = "bytering.consume.RPOS" in behind[:-1]  # so the step behind it was come to
    over = {"collecting._whole.R_KEEPER", "frames.count_lost.DROPPED"}.intersection(behind[:-1])
    return int(took and not over)


def unfinished(played: Played, writer: Process) -> int:
    """Whether a killed sender has left a message in parts without its end: 1 or 0."""
    trace = writer.board.trace()
    opened = [at for at, step in enumerate(trace) if step in _OPENS]
    if not opened:
        return 0
    behind = trace[opened[-1] + 1 :]
    # The first frame from there on is the BEGIN; the step behind it says that it was published.
    if "frame-first" not in behind[:-1] or _ENDS.intersection(behind):
        return 0
    got = {tuple(entry) for reader in played.readers for entry in reader.log_of("got")}
    who, last, _ = writer.log_of("begin")[-1]
    return int((who, last) not in got)  # the last part may have been published all the same
