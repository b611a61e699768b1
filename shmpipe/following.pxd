cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .primitives cimport Words
from .ring cimport Ring

cdef int COMPARED, PAGE_SHIFT, WPOS

@cython.final
cdef class Follower:
    cdef readonly Ring ring
    cdef Words words
    cdef readonly int left, often
    cdef double since
    cdef uint64_t start

    cpdef int waits(self) except -1
    cdef int _compare(self) except -1
    cdef bint _may_get_far(self) except -1
    @cython.locals(
        words=Words, here=uint64_t, came=int64_t, came_before=int64_t, enough=int64_t,
        begun=double, took=double, time_before=double,
    )
    cdef bint _fall_back(self) except -1
