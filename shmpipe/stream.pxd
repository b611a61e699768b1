cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .locking cimport SideLock
from .pagering cimport PageRing
from .primitives cimport Words
from .readers cimport ReaderSide
from .writers cimport WriterSide

cdef uint64_t WORD
cdef int R_SPINS, RD_FLAGS, READS, RPOS, W_SPINS, WPOS, WR_FLAGS, WR_WATCH, WRITES

@cython.locals(words=Words, lock=SideLock, ring=PageRing, freed=int64_t)
cpdef read(ReaderSide side, object dest, uint64_t want)
@cython.locals(
    words=Words, lock=SideLock, ring=PageRing, size=uint64_t, done=uint64_t, put=uint64_t,
    ticket=uint64_t, now=uint64_t,
)
cpdef write(WriterSide side, object source)
@cython.locals(words=Words)
cpdef bint _spin_for_space(WriterSide side) except -1
