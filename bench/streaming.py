"""One way from process to process, by size of the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import interpreted
from .limits import TwoCopies, empty_calls, memcpy
from .model import Contender, Workload, size_name
from .peers import Channel, Peer
from .rounds import Plan
from .streams import Flow, runner

GROUP = "streaming"
SIZES = (8, 128, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 8 << 20)
COPIED = 64 << 10  # bytes from which on copying is what costs


def _into(size: int) -> Callable[[Channel], Callable[[], Any]]:
    return lambda channel: channel.receiver_into(bytearray(size))


def plain_flow(size: int) -> Flow:
    """``send_bytes`` to ``recv_bytes``."""
    message = bytes(range(256)) * (size // 256) if size >= 256 else bytes(range(size))
    return Flow(message, size)


def workloads(peers: list[Peer], plan: Plan) -> list[Workload]:
    """What is to be measured of this group."""
    found = []
    for size in SIZES:
        plain = plain_flow(size)
        into = Flow(plain.message, size, receive=_into(size))
        for flow, verb, takers in (
            (plain, "recv_bytes", peers),
            (into, "recv_bytes_into", [peer for peer in peers if peer.into]),
        ):
            contenders = [Contender(peer.name, runner(peer, flow, plan)) for peer in takers]
            if flow is plain and size in interpreted.SIZES:
                contenders[1:1] = interpreted.contenders(size, plan)
            contenders.append(memcpy(size, plan))
            if size >= COPIED:
                contenders.append(Contender(TwoCopies.name, runner(TwoCopies(), flow, plan)))
            if size <= 1024:
                contenders += empty_calls(plan)
            found.append(
                Workload(
                    name=f"stream-{size_name(size)}" + ("-into" if flow is into else ""),
                    group=GROUP,
                    title=f"{size_name(size, ' ')} one way, send_bytes to {verb}",
                    contenders=contenders,
                    size=size,
                    first_count=max(4, min(2000, (1 << 24) // size)),
                    per="GB" if size >= 16 << 10 else "million",
                )
            )
    return found
