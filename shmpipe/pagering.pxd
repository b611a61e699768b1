cimport cython
from libc.stdint cimport int64_t, uint64_t

from .primitives cimport Words
from .ring cimport Ring

cdef uint64_t MASK, PAGE, WORD
cdef int PAGE_SHIFT, R_BYTES, RPOS, SKIP, W_BYTES, WPOS

@cython.final
cdef class PageRing(Ring):
    cdef readonly int64_t freed
    cdef readonly uint64_t left
    cdef uint64_t _run_at, _run_len

    @cython.locals(
        words=Words, pages=uint64_t, wpos=uint64_t, rpos=uint64_t, used=int64_t, size=uint64_t,
        done=uint64_t, tail=uint64_t, offset=uint64_t, slot=uint64_t, at=uint64_t,
        free=uint64_t, count=uint64_t,
    )
    cpdef uint64_t put(self, object source, bint fresh) except? 0
    @cython.locals(
        words=Words, pages=uint64_t, wpos=uint64_t, rpos=uint64_t, used=int64_t, got=uint64_t,
        run=uint64_t, at=uint64_t,
    )
    cpdef take(self, object dest, uint64_t want)
    @cython.locals(
        page=uint64_t, offset=uint64_t, slot=uint64_t, last=uint64_t, end=uint64_t, run=uint64_t
    )
    cdef uint64_t _next_run(
        self, uint64_t rpos, uint64_t wpos, uint64_t want, uint64_t pages
    ) except? 0
