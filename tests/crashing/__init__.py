"""Processes that are killed, or stopped, at every step of what they do with a pipe.

``points`` finds the steps in the package's sources, ``copies`` makes a copy of the package in which
a call stands at each of them, ``steps`` is what is called.  ``actors`` are the processes that take
part; ``streams``, ``messages``, ``handing`` and ``taking`` say what they do, ``promises`` what must
hold for those who are left.  ``walking`` goes through all of it; ``python -m tests.crashing`` does
so on demand.
"""
