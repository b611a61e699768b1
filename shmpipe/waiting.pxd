cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .locking cimport SideLock
from .primitives cimport Semaphore, Words
from .ring cimport Ring

cdef double ASK_AFTER
cdef int LIMIT, POLICY, RPOS, WPOS, WRITE_PAGES

cdef class Side:
    cdef object __weakref__
    cdef Words words
    cdef readonly Ring ring
    cdef readonly object locks, bell, spin_choice, blind
    cdef public SideLock lock
    cdef public int left_word
    cdef public double asked, spin_most, spin_now, spun
    cdef public int hints, caution
    cdef public bint trying
    cdef readonly Semaphore read_wait, write_wait

    @cython.locals(words=Words, left=uint64_t, gone=bint)
    cpdef bint others_gone(self, bint sure) except -1
    cpdef bint has_data(self) noexcept
    cpdef drain(self, Semaphore semaphore)
    cpdef bint is_ready(self) except -1
    cpdef bint spin(self, int word, uint64_t target, object limit) except -1
