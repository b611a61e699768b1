"""The interpreter ends in every state that connections and pipes can be in, and says nothing.

(Those of `test_leaks` are about ends that were just left open.)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import end_of_program

BLOCKED = """
import threading, time
a, b = shmpipe.Pipe(size=4096)
c, d = shmpipe.Pipe(False, size=4096)
r, w = shmpipe.pipe(4096)
while d.try_send_bytes(bytes(500)):
    pass
calls = [a.recv, b.recv, lambda: a.poll(None), lambda: d.send_bytes(bytes(500)), r.read,
         lambda: d.send_bytes(bytes(100_000)), lambda: b.recv_view().__enter__(),
         lambda: list(a), lambda: d.reserve(2000).__enter__()]
for call in calls:
    threading.Thread(target=call, daemon=True).start()
time.sleep({pause})
"""

AT_WORK = """
import threading, time
a, b = shmpipe.Pipe()
r, w = shmpipe.pipe()
def again(call, *args):
    while True:
        call(*args)
for call in [(a.send, "x" * 100), (b.recv,), (b.send_bytes, bytes(9)), (a.recv_bytes,), (a.poll, 0),
             (w.write, bytes(999)), (r.read, 500), (b.send_bytes, bytes(5 << 20))]:
    threading.Thread(target=again, args=call, daemon=True).start()
time.sleep(0.05)
"""

PROGRAMS = {
    "threads that have just gone to sleep": BLOCKED.format(pause=0.005),
    "threads asleep for long": BLOCKED.format(pause=0.2),
    "threads asleep, and an exception": BLOCKED.format(pause=0.1) + "sys.exit(0)",
    "threads at work": AT_WORK,
    "closed under threads": BLOCKED.format(pause=0.1)
    + """
threading.excepthook = lambda args: None
for end in (a, b, c, d, r, w):
    end.close()
""",
    "connections in a cycle": "ends = list(shmpipe.Pipe()); ends.append(ends); del ends",
    "connections in a cycle that is left": "ends = list(shmpipe.Pipe()); ends.append(ends)",
    "connections of another module": "sys.ends = shmpipe.Pipe(); sys.halves = sys.ends[0].incoming",
    "a message lent": """
a, b = shmpipe.Pipe()
a.send_bytes(b'x')
loan = b.recv_view()
view = loan.__enter__()
""",
    "a message lent, and a slice of it": """
a, b = shmpipe.Pipe()
a.send_bytes(b'xyz')
loan = b.recv_view()
piece = loan.__enter__()[1:]
""",
    "a reservation": """
a, b = shmpipe.Pipe()
loan = a.reserve(1000)
view = loan.__enter__()
""",
    "an array on a reservation": """
import numpy
a, b = shmpipe.Pipe()
loan = a.reserve(1000)
array = numpy.frombuffer(loan.__enter__(), numpy.uint8)
""",
    "in the middle of an iteration": """
a, b = shmpipe.Pipe()
a.send(1)
objects = iter(b)
next(objects)
""",
    "used by atexit": """
import atexit
a, b = shmpipe.Pipe()
r, w = shmpipe.pipe()
@atexit.register
def last():
    a.send('last')
    assert b.recv() == 'last'
    w.write(b'last')
    assert r.read(9) == b'last'
    new, other = shmpipe.Pipe()
    new.send([a.poll(0), other.fileno() > 0])
    a.close()
""",
    "made by atexit, beside threads": BLOCKED.format(pause=0.03)
    + """
import atexit
atexit.register(lambda: setattr(sys, 'late', shmpipe.Pipe()))
""",
    "used by a finalizer": """
class Last:
    def __del__(self):
        self.end.send('gone')
        self.other.recv()
last = Last()
last.end, last.other = shmpipe.Pipe()
""",
    # (Without collections before the end: they change the order of finalizers, and so might close
    # the ends first.)
    "used by a finalizer in a cycle": """
import gc
gc.disable()
class Last:
    def __del__(self):
        self.end.send('gone')
        self.other.recv()
last = Last()
last.me = last
last.end, last.other = shmpipe.Pipe()
del last
""",
    "watched": """
import select, selectors
a, b = shmpipe.Pipe()
r, w = shmpipe.pipe()
selector = selectors.DefaultSelector()
for end in (a, b, r, a.outgoing):
    selector.register(end, selectors.EVENT_READ)
selector.register(w, selectors.EVENT_WRITE)
edges = select.epoll()
edges.register(b, select.EPOLLIN | select.EPOLLET)
a.send(1)
assert selector.select(1)
""",
    "threads that watch": """
import multiprocessing.connection, select, threading, time
a, b = shmpipe.Pipe()
threading.Thread(target=multiprocessing.connection.wait, args=([a, b],), daemon=True).start()
threading.Thread(target=select.select, args=([a], [], []), daemon=True).start()
time.sleep(0.05)
""",
    "forked child beside sleeping threads": BLOCKED.format(pause=0.1)
    + """
import os, warnings
warnings.simplefilter('ignore')
if os.fork() == 0:
    b.close()
    sys.exit(0)
assert os.wait()[1] == 0
""",
    "forked child beside threads at work": AT_WORK
    + """
import os, warnings
warnings.simplefilter('ignore')
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
""",
    "forked child inside of a block": """
import os
a, b = shmpipe.Pipe()
a.send_bytes(b'x')
with b.recv_view() as view:
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
""",
    "forked child that watches": """
import os
a, b = shmpipe.Pipe()
a.fileno(), b.outgoing.fileno()
if os.fork() == 0:
    b.send(1)
    a.fileno()
    sys.exit(0)
assert os.wait()[1] == 0
""",
    "an end on its way": """
a, b = shmpipe.Pipe()
c, d = shmpipe.Pipe()
a.send(c)
""",
    "a queue that is not empty": """
import multiprocessing
shmpipe.install()
queue = multiprocessing.Queue()
for number in range(1000):
    queue.put(number)
queue.get()
""",
    "a process that is given an end and left": """
import multiprocessing
def main():
    a, b = shmpipe.Pipe()
    process = multiprocessing.get_context('fork').Process(target=b.recv, daemon=True)
    process.start()
    return a, b, process
if __name__ == '__main__':
    kept = main()
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_end_of_the_interpreter(program: str, tmp_path: Path) -> None:
    for _ in range(5 if "work" in program else 2):
        assert end_of_program(PROGRAMS[program], tmp_path) == (0, b"", b"")
