cimport cython
from libc.stdint cimport int64_t, uint64_t

from .arrivals cimport wait_for_data
from .bytering cimport ByteRing
from .collecting cimport Collector
from .locking cimport SideLock
from .primitives cimport Words
from .readers cimport ReaderSide

cdef uint64_t ABORT, ALIGN, DATA, OBJECT, PART, WORD
cdef int PLUG, R_KEEPER, RD_LONG, RD_TURN_BY, RD_WATCH, READS, RPOS, UNPLUG
cdef int WR_ARM, WR_RUNG
cdef int64_t _HERE, _KEPT
cdef object _STREAM

@cython.final
cdef class Receiver:
    cdef readonly ReaderSide side
    cdef readonly ByteRing ring
    cdef Words words
    cdef readonly SideLock lock, turn
    cdef readonly object locks, assemble, keeper, only
    cdef readonly Collector streams
    cdef public object window

    @cython.locals(well=bint)
    cpdef receive(self, object room, object deadline, object most=*, bint slept=*)
    @cython.locals(again=bint)
    cdef _wait_for_message(
        self, object message, object room, bint slept, object deadline, object most
    )
    cpdef receive_whole(self, object room, object deadline)
    @cython.locals(
        ring=ByteRing, words=Words, lock=SideLock, before=uint64_t
    )
    cdef _at_once(self, object room, bint slept, object deadline, object most)
    @cython.locals(ring=ByteRing)
    cdef _content(self, object room, object most)
    @cython.locals(at=uint64_t)
    cdef _object(self)
    @cython.locals(
        ring=ByteRing, words=Words, lock=SideLock, before=uint64_t,
        behind=int64_t, keeper=uint64_t, taker=uint64_t,
    )
    cdef int64_t _look(self, object deadline) except? -3
