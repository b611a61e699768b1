cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .locking cimport SideLock
from .pagering cimport PageRing
from .primitives cimport Words
from .readers cimport ReaderSide
from .waiting cimport close_all
from .writers cimport WriterSide

cdef uint64_t WORD
cdef int DIED, INTERRUPTED, LONG, NOT, SHORT, TIMED_OUT, WOKEN
cdef int R_SPINS, RD_FLAGS, READS, RPOS, W_SPINS, WPOS, WR_FLAGS, WR_WATCH, WRITES

@cython.locals(
    words=Words, lock=SideLock, ring=PageRing, freed=int64_t, asleep=int, armed=int, kind=int,
    outcome=int, slept=bint, spin=bint, ended=bint,
)
cpdef read(ReaderSide side, object dest, uint64_t want)
@cython.locals(
    words=Words, lock=SideLock, ring=PageRing, size=uint64_t, done=uint64_t, put=uint64_t,
    ticket=uint64_t, now=uint64_t, asleep=int, armed=int, kind=int, outcome=int, slept=bint,
    spin=bint, blocked=bint, broken=bint, held=bint, may_put=bint,
)
cpdef write(WriterSide side, object source)
@cython.locals(words=Words)
cpdef bint _spin_for_space(WriterSide side) except -1
