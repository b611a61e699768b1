cimport cython
from libc.stdint cimport uint64_t

from .deadlines cimport is_over, remaining
from .locking cimport SideLock
from .primitives cimport Words
from .readers cimport ReaderSide
from .waiting cimport close_all

cdef uint64_t WORD
cdef double PATIENT, SHORT_SLEEP
cdef int DIED, LONG, NOT, R_SPINS, RPOS, SHORT, TIMED_OUT, WPOS

@cython.locals(
    words=Words, lock=SideLock, asleep=int, armed=int, kind=int, outcome=int, slept=bint, brief=bint,
    ended=bint, short=bint,
)
cpdef bint wait_for_data(ReaderSide side, object deadline) except -1
