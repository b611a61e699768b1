cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .primitives cimport Words

cdef uint64_t LAST, MASK
cdef int LIMIT, PAGE, PAGE_SHIFT, PAGES, RPOS, WPOS

cdef class Ring:
    cdef Words words
    cdef readonly object segment, view, data, ends
    cdef readonly int index
    cdef readonly uint64_t max_pages
    cdef uint64_t _checked

    cpdef uint64_t pages(self) except? 0
    cpdef uint64_t limit(self) except? 0
    cpdef int64_t used(self, uint64_t rpos, uint64_t wpos, uint64_t pages) except? -1
    cpdef uint64_t pages_at(self, uint64_t limit) except? 0
    cpdef unread(self)
    cpdef uint64_t start(self, uint64_t rpos, uint64_t wpos, uint64_t pages) except? 0
    cpdef int64_t used_now(self) except? -1
    cpdef int64_t _used_checked(self, uint64_t rpos, uint64_t wpos, uint64_t pages) except? -1
    @cython.locals(
        words=Words, old=uint64_t, rpos=uint64_t, wpos=uint64_t, used=int64_t, at=uint64_t,
        count=uint64_t, page=uint64_t, source=uint64_t, target=uint64_t, here=uint64_t,
        there=uint64_t,
    )
    cpdef resize(self, uint64_t pages)
