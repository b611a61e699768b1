cimport cython
from libc.stdint cimport int64_t, uint64_t

from .bytering cimport ByteRing
from .locking cimport SideLock
from .primitives cimport Words
from .readers cimport ReaderSide

cdef uint64_t ABORT, ALIGN, DATA, OBJECT, PART, WORD
cdef int DROPPED, PAGE_SHIFT, PLUG, R_BEGAN, R_KEEPER, R_SPINS, RD_LENT, RD_LONG, RD_TURN_BY
cdef int RD_WATCH, READS
cdef int RPOS, UNPLUG, WPOS, WR_ARM, WR_RUNG, WR_TURN_BY
cdef int64_t _HERE, _KEPT

@cython.final
cdef class Receiver:
    cdef readonly ReaderSide side
    cdef readonly ByteRing ring
    cdef Words words
    cdef readonly SideLock lock, turn
    cdef readonly object locks, assemble, keeper, only
    cdef public object window

    cpdef receive(self, object room, object deadline, object most=*, bint slept=*)
    cdef _receive(self, object room, object deadline, object most, bint slept)
    @cython.locals(
        side=ReaderSide, ring=ByteRing, words=Words, lock=SideLock, before=uint64_t
    )
    cdef _at_once(self, object room, bint slept, object deadline, object most)
    @cython.locals(
        ring=ByteRing, words=Words, lock=SideLock, before=uint64_t,
        behind=int64_t, keeper=uint64_t, taker=uint64_t,
    )
    cdef int64_t _look(self, object deadline) except? -3
    @cython.locals(side=ReaderSide, words=Words, lock=SideLock)
    cpdef bint wait(self, object deadline) except -1
    @cython.locals(words=Words, turn=SideLock, taker=uint64_t)
    cdef _assemble(self, object room, object deadline, object most)
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
