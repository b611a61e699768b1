"""What functions that are running have in their variables, seen without leaving anything behind.

Who looks at the frame of a function may keep alive what it finds there:

* Before Python 3.13 ``f_locals`` is a copy of the variables, which the interpreter keeps with the
  frame for as long as that lives, whatever becomes of the variables.  If the function was just
  handling an exception that has a name, the copy has it, the exception has its traceback, and the
  traceback has the frame: a circle, and with it all variables of all functions that the exception
  came through stay until garbage is collected.  So the copy is emptied at once.
* A frame outlives its call while somebody else, who walks down the stack of another thread, has it
  for his next step.  He may be stopped there.  So no function that can be looked at may depend on
  its variables being gone once it has returned.
"""

from __future__ import annotations

import sys
import threading
from itertools import chain, repeat
from operator import attrgetter, is_, methodcaller
from types import FrameType

_variables, _values = attrgetter("f_locals"), methodcaller("values")
_FUNCTION = 0x1  # in co_flags; a module's, and a class's, f_locals are no copy


def count(frame: FrameType, thing: object) -> int:
    """How many variables of the function that ``frame`` is of are ``thing``."""
    # One call of C functions: no other thread runs meanwhile, whose look would empty the copy.
    values = chain.from_iterable(map(_values, map(_variables, (frame,))))
    number = sum(map(is_, values, repeat(thing)))
    found = frame.f_locals
    if (
        type(found) is dict
        and frame.f_code.co_flags & _FUNCTION
        # Who has called locals() there has the copy too, and a debugger writes it back.
        and sys.getrefcount(found) <= _OWN_REFERENCES
        and frame.f_trace is None
        and not _is_watched()
    ):
        found.clear()
    return number


def _is_watched() -> bool:
    """Whether a debugger or a profiler may be in the middle of that function: as above."""
    hooks = sys.gettrace, sys.getprofile, threading.gettrace, threading.getprofile
    return any(hook() is not None for hook in hooks)


def _references() -> int:
    found = sys._getframe().f_locals
    return sys.getrefcount(found)


_OWN_REFERENCES = _references()  # to a copy that nobody has but its frame and who looks
