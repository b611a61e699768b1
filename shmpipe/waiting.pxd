cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .doorbell cimport Doorbell
from .locking cimport SideLock
from .primitives cimport Semaphore, Words
from .ring cimport Ring

cdef double ASK_AFTER
cdef int LIMIT, POLICY, RPOS, WPOS, WRITE_PAGES
cdef int INTERRUPTED, WOKEN
cdef int _MANY

cdef class Side:
    cdef object __weakref__
    cdef Words words
    cdef readonly Ring ring
    cdef readonly Doorbell bell
    cdef readonly object locks, spin_choice, blind
    cdef public SideLock lock
    cdef public int left_word
    cdef public double ask_at, spin_most, spin_now, spun
    cdef public int hints, caution
    cdef public bint trying
    cdef readonly Semaphore read_wait, write_wait

    cpdef bint others_gone(self, bint sure) except -1
    @cython.locals(words=Words, gone=bint, now=double)
    cdef bint _ask(self) except -1
    cpdef bint has_data(self) noexcept
    @cython.locals(_=int)
    cpdef drain(self, Semaphore semaphore)
    @cython.locals(limit=double, began=double, outcome=int)
    cpdef int sleep_short(self, Semaphore semaphore, object seconds) except? -2
    cpdef int still_open(self, int outcome) except? -2
    cpdef bint is_ready(self) except -1
    cpdef bint spin(self, int word, uint64_t target, object limit) except -1

cpdef close_all(object watched)
