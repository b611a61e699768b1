cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .bytering cimport ByteRing
from .deadlines cimport is_over, remaining
from .locking cimport SideLock
from .primitives cimport Words
from .waiting cimport close_all
from .writers cimport WriterSide

cdef int64_t ALIGN, IN_PARTS, LARGE, STREAMED
cdef uint64_t WORD
cdef int DIED, LONG, NOT, SHORT, TIMED_OUT
cdef int LIMIT, MOST_GROWTHS, PAGE_SHIFT, PAGES, RD_ARM, RD_RUNG, RPOS, W_OPEN, W_SPINS
cdef int WR_LENT, WR_TURN_BY, WR_WANT, WR_WATCH, WRITE_PAGES, WRITES

@cython.final
cdef class Sender:
    cdef readonly WriterSide side
    cdef readonly ByteRing ring
    cdef Words words
    cdef readonly SideLock lock, turn
    cdef public object window
    cdef int64_t waits
    cdef double since

    cpdef int send(self, uint64_t kind, object content, uint64_t size, object deadline) except -1
    @cython.locals(ring=ByteRing, words=Words, lock=SideLock)
    cdef bint _at_once(
        self, uint64_t kind, object content, uint64_t size, object deadline
    ) except -1
    @cython.locals(words=Words, turn=SideLock)
    cdef int _in_turn(
        self, uint64_t kind, object content, uint64_t size, object deadline
    ) except -1
    @cython.locals(capacity=int64_t, need=int64_t)
    cpdef bint goes_in_parts(self, int64_t size, bint patient) except -1
    @cython.locals(now=double)
    cdef int waited(self) except -1
    @cython.locals(ring=ByteRing, reader=SideLock, writer=SideLock)
    cpdef grow(self, uint64_t wanted, object deadline)

@cython.final
cdef class _Sending:
    cdef Sender sender
    cdef WriterSide side
    cdef ByteRing ring
    cdef uint64_t kind
    cdef int64_t size, left
    cdef int64_t want
    cdef int growths, asleep, how
    cdef uint64_t ticket
    cdef list pieces
    cdef object others
    cdef bint begun, in_place, patient, slept, spins

    @cython.locals(side=WriterSide, words=Words)
    cpdef run(self, object deadline)
    @cython.locals(
        side=WriterSide, words=Words, lock=SideLock, armed=int, sure=bint, broken=bint, finished=bint,
        grows=bint
    )
    cdef bint _try(self, object deadline) except -1
    @cython.locals(side=WriterSide, outcome=int, short=bint)
    cdef int _sleep(self, object deadline) except -1
    cdef bint _has_space(self) except -1
    @cython.locals(ring=ByteRing)
    cdef bint _may_grow(self) except -1
    @cython.locals(want=int64_t)
    cdef bint _is_small(self) except -1
    cdef bint _may_go_on(self) except -1
    @cython.locals(words=Words, ring=ByteRing, capacity=int64_t, want=int64_t, missing=int64_t)
    cdef bint _spin(self, object limit) except -1
    @cython.locals(
        words=Words, ring=ByteRing, space=int64_t, capacity=int64_t, most=int64_t,
        quarter=int64_t, count=int64_t,
    )
    cdef bint _put(self) except -1
    cdef bint _reserve(self) except -1
