cimport cython
from libc.stdint cimport int64_t, uint64_t

from .arrivals cimport wait_for_data
from .bytering cimport ByteRing
from .locking cimport SideLock
from . cimport primitives
from .primitives cimport Words
from .readers cimport ReaderSide

cdef uint64_t ABORT, ALIGN, OBJECT, PART, WORD
cdef int PAGE_SHIFT, R_BEGAN, R_KEEPER, RD_LENT, RD_TURN_BY, READS, RPOS, WR_TURN_BY

@cython.final
cdef class Collector:
    cdef readonly ReaderSide side
    cdef readonly ByteRing ring
    cdef Words words
    cdef readonly SideLock lock, turn
    cdef readonly object locks, keeper, assemble, only

    @cython.locals(words=Words, turn=SideLock, taker=uint64_t)
    cpdef collect(self, object room, object deadline, object most)
    @cython.locals(keeper=uint64_t, lock=SideLock)
    cdef bint _may_touch(self, object deadline) except -1
    @cython.locals(
        side=ReaderSide, words=Words, lock=SideLock, freed=int64_t, first=uint64_t
    )
    cdef _collect(self, object room, object deadline, object most)
    @cython.locals(words=Words, ring=ByteRing, before=uint64_t)
    cdef _step(self, object room, object most)
    @cython.locals(ring=ByteRing, left=uint64_t, count=uint64_t, before=uint64_t, over=bint)
    cdef _part(self, object assembly)
    @cython.locals(words=Words, lock=SideLock)
    cdef _wait_for_part(self, object deadline)
