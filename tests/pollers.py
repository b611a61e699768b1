"""Every way to ask whether a descriptor is ready, under one face.

``POLLERS[name](end, writing, timeout)`` tells whether `end` is ready for writing or for reading.
HUP and ERR count as both, as in select(2): which bits a poller shows is not promised.
"""

from __future__ import annotations

import asyncio
import multiprocessing.connection
import select
import selectors
import weakref
from collections.abc import Callable
from typing import Any

ANY = select.POLLHUP | select.POLLERR


def by_select(end: Any, writing: bool, timeout: float = 0) -> bool:
    lists: list[list[Any]] = [[], [], []]
    lists[writing].append(end)
    ready = select.select(*lists, timeout)
    assert not ready[2] and not ready[1 - writing]
    return ready[writing] == [end]


def by_poll(end: Any, writing: bool, timeout: float = 0) -> bool:
    wanted = select.POLLOUT if writing else select.POLLIN
    poller = select.poll()
    poller.register(end, wanted)
    ready = poller.poll(timeout * 1000)
    assert all(fd == end.fileno() and events & (wanted | ANY) for fd, events in ready)
    return bool(ready)


def _by_epoll(end: Any, writing: bool, timeout: float, extra: int) -> bool:
    wanted = select.EPOLLOUT if writing else select.EPOLLIN
    with select.epoll() as poller:
        poller.register(end, wanted | extra)
        ready = poller.poll(timeout)
    assert all(fd == end.fileno() and events & (wanted | ANY) for fd, events in ready)
    return bool(ready)


def by_epoll(end: Any, writing: bool, timeout: float = 0) -> bool:
    return _by_epoll(end, writing, timeout, 0)


def by_epoll_edge(end: Any, writing: bool, timeout: float = 0) -> bool:
    """A registration reports what is ready at that moment as an edge."""
    return _by_epoll(end, writing, timeout, select.EPOLLET)


def by_selector(end: Any, writing: bool, timeout: float = 0) -> bool:
    wanted = selectors.EVENT_WRITE if writing else selectors.EVENT_READ
    with selectors.DefaultSelector() as selector:
        selector.register(end, wanted)
        ready = selector.select(timeout)
    assert all(key.fileobj is end and events == wanted for key, events in ready)
    return bool(ready)


def by_asyncio(end: Any, writing: bool, timeout: float = 0) -> bool:
    async def watch() -> bool:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        add = loop.add_writer if writing else loop.add_reader
        remove = loop.remove_writer if writing else loop.remove_reader
        add(end, ready.set)
        try:
            if timeout:
                await asyncio.wait_for(ready.wait(), timeout)
            else:
                # Each turn of the loop polls once.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            return ready.is_set()
        except asyncio.TimeoutError:
            return False
        finally:
            remove(end)

    return asyncio.run(watch())


def by_wait(end: Any, writing: bool, timeout: float = 0) -> bool:
    assert not writing, "multiprocessing.connection.wait() is for reading"
    return multiprocessing.connection.wait([end], timeout) == [end]


Poller = Callable[[Any, bool, float], bool]

POLLERS: dict[str, Poller] = {
    "select": by_select,
    "poll": by_poll,
    "epoll": by_epoll,
    "epoll-edge": by_epoll_edge,
    "selectors": by_selector,
    "asyncio": by_asyncio,
}
READ_POLLERS: dict[str, Poller] = {**POLLERS, "wait": by_wait}


_standing: weakref.WeakKeyDictionary[Any, select.epoll] = weakref.WeakKeyDictionary()


def stand(*ends: Any) -> None:
    """Register the ends for good with pollers that `readable` and `writable` ask from now on.

    Each call of fileno() could put right what the descriptor shows; whoever has registered it once
    does not call it again.
    """
    for end in ends:
        _standing[end] = select.epoll()
        _standing[end].register(end, select.EPOLLIN if end.readable() else select.EPOLLOUT)


def readable(r: Any) -> bool:
    return bool(_standing[r].poll(0)) if r in _standing else by_poll(r, False)


def writable(w: Any) -> bool:
    return bool(_standing[w].poll(0)) if w in _standing else by_poll(w, True)
