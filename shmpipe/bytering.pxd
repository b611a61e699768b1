cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .primitives cimport Words
from .ring cimport Ring

cdef uint64_t ALIGN, LAST, LENGTH, MASK, WORD
cdef int PAGE_SHIFT, PAGES, R_BYTES, RD_LENT, RPOS, W_BYTES, W_OPEN, WPOS, WR_LENT

@cython.final
cdef class ByteRing(Ring):
    cdef char* memory
    cdef Words headers
    cdef uint64_t read_to, written_to
    cdef readonly uint64_t kind, size, at, first

    @cython.locals(pages=uint64_t)
    cdef inline uint64_t _capacity(self) except? 0
    @cython.locals(words=Words, rpos=uint64_t, used=uint64_t, capacity=uint64_t)
    cpdef int64_t space(self) except? -1
    @cython.locals(
        words=Words, wpos=uint64_t, capacity=uint64_t, need=uint64_t, used=uint64_t, at=uint64_t
    )
    cpdef bint append(self, uint64_t kind, object content, uint64_t size) except -1
    @cython.locals(words=Words, wpos=uint64_t)
    cpdef int publish(self, uint64_t kind, uint64_t size) except -1
    @cython.locals(used=uint64_t, read_to=uint64_t)
    cdef uint64_t _look_at_readers(self, uint64_t wpos, uint64_t capacity) except? 0
    @cython.locals(at=uint64_t, count=uint64_t, first=uint64_t)
    cdef int _copy_pieces(self, uint64_t at, object content, uint64_t capacity) except -1
    @cython.locals(
        words=Words, rpos=uint64_t, capacity=uint64_t, ahead=uint64_t, header=uint64_t,
        size=uint64_t, at=uint64_t,
    )
    cpdef bint front(self, uint64_t behind=*) except -1
    @cython.locals(wpos=uint64_t, ahead=uint64_t)
    cdef uint64_t _look_at_writers(self, uint64_t rpos, uint64_t capacity) except? 0
    @cython.locals(size=uint64_t, first=uint64_t)
    cpdef bytes content(self)
    @cython.locals(size=uint64_t, first=uint64_t)
    cpdef int content_into(self, object room, uint64_t start) except -1
    cpdef uint64_t number(self) except? 0
    @cython.locals(at=uint64_t, size=uint64_t, first=uint64_t)
    cpdef list pieces(self, uint64_t start=*)
    @cython.locals(words=Words, rpos=uint64_t, after=uint64_t)
    cpdef uint64_t consume(self) except? 0
    @cython.locals(words=Words, reader=uint64_t, writer=uint64_t)
    cpdef bint is_lent(self) except -1
    @cython.locals(words=Words, wpos=uint64_t, used=uint64_t)
    cpdef int64_t freed_since(self, uint64_t rpos) except? -1

cpdef uint64_t aligned(uint64_t count) except? 0
