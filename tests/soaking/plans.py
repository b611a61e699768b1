"""What happens in a round: all of it follows from the run's seed and the round's number."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

PAGE = 4096
KINDS = ("bytes", "objects", "records", "stream")
POLICIES = ("write-size", "page", "half", "edge-half", "full-edge")
ENDINGS = ("finish", "senders killed", "receivers killed")


@dataclass
class Plan:
    """One round: a connection or a pipe, who uses it, and what disturbs them."""

    seed: str
    kind: str = "bytes"  # what goes through; see KINDS
    duplex: bool = False
    size: int = 65536  # bytes of the ring
    wake: str = "write-size"
    write_size: int = PAGE
    spin: float | None = None
    senders: int = 1
    receivers: int = 1
    numbers: int = 60_000  # messages of a sender
    record: int = 64  # bytes, of kind "records"
    seconds: float = 2.0
    signals: float = 0.0  # seconds between two; 0: none
    raises: bool = False  # some handlers do
    gap: float = 0.15  # seconds between two disturbances, on average
    ending: str = "finish"
    hosts: list[list[int]] = field(default_factory=list)  # roles of each process
    methods: list[str] = field(default_factory=list)  # how each is started
    starved: list[bool] = field(default_factory=list)  # which have hardly a descriptor left
    spoil: str = ""  # a fault to be put in

    @property
    def is_pipe(self) -> bool:
        return self.kind in ("records", "stream")

    def is_sender(self, role: int) -> bool:
        return role < self.senders

    def describe(self) -> str:
        ends = "pipe" if self.is_pipe else "duplex Pipe" if self.duplex else "Pipe"
        return (
            f"{self.seed}: {self.kind} through a {ends} of {self.size} bytes, {self.wake}/"
            f"{self.write_size}, spin {self.spin}, hosts {self.hosts} by {self.methods}, starved "
            f"{[number for number, one in enumerate(self.starved) if one]}, signals "
            f"every {self.signals:.4f} s{', which raise' if self.raises else ''}, {self.ending}"
        )


def plan(seed: int, number: int, crowd: int = 0, kinds: tuple[str, ...] = KINDS) -> Plan:
    """The round of that number; ``crowd``: of so many processes, whatever the machine has."""
    name = f"{seed}/{number}"
    chance = random.Random(name)
    kind = chance.choice([one for one in (*KINDS, "bytes", "bytes", "objects") if one in kinds])
    size = PAGE * chance.choice([1, 1, 2, 4, 8, 16, 16, 16, 64, 256])
    made = Plan(
        seed=name,
        kind=kind,
        duplex=chance.random() < 0.3 and kind in ("bytes", "objects"),
        size=size,
        wake=chance.choice(POLICIES),
        write_size=PAGE * chance.randint(1, size // PAGE),
        spin=chance.choice([None, None, 0, 0.0002]),
        senders=chance.choice([1, 1, 2, 3]),
        receivers=chance.choice([1, 1, 2, 3]),
        record=chance.choice([16, 24, 64, 100, 1000, 4096]),
        seconds=chance.uniform(1.0, 3.0),
        signals=chance.choice([0.0, 0.0, 0.002, 0.005, 0.01]),
        raises=chance.random() < 0.4,
        gap=chance.choice([0.1, 0.3, 0.8, 2.0]),
        ending=chance.choices(ENDINGS, [8, 1, 1])[0],
    )
    if kind == "stream":
        made.senders = made.receivers = 1
    elif crowd:
        made.senders = made.receivers = crowd // 2
        made.numbers = 2000
    if made.duplex:
        made.ending = "finish"
    _cast(made, chance, alone=kind == "stream" or bool(crowd))
    return made


def _cast(made: Plan, chance: random.Random, alone: bool) -> None:
    """Who plays which roles: mostly a process each, sometimes threads of one."""
    together = not alone and chance.random() < 0.25
    for first, count in ((0, made.senders), (made.senders, made.receivers)):
        roles = list(range(first, first + count))
        if together and chance.random() < 0.7:
            made.hosts.append(roles)
        else:
            made.hosts += [[role] for role in roles]
    if together and chance.random() < 0.3:
        made.hosts = [list(range(made.senders + made.receivers))]  # both ends in one process
        made.ending = "finish"
    for _ in made.hosts:
        method = chance.choices(["fork", "spawn", "forkserver", "sent"], [90, 2, 2, 6])[0]
        made.methods.append("fork" if alone and method != "sent" else method)
        made.starved.append(chance.random() < 0.08)
