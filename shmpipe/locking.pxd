cimport cython
from libc.stdint cimport uint32_t

from . cimport primitives
from .primitives cimport Numbers, Semaphore, ThreadLock, Words, give, take

cdef uint32_t _NUMBER
cdef bint SIGNALS_ANYWHERE

@cython.final
cdef class SideLock(Semaphore):
    cdef object __weakref__
    cdef public object segment
    cdef public int ring, index
    cdef public object window
    cdef Numbers numbers
    cdef Words word
    cdef public int mine
    cdef public Semaphore door
    cdef public ThreadLock local
    cdef public object sides
    cdef public double look
    cdef public bint owed
    cdef public object lent

    # As Semaphore's, but nothing overrides these: so they need no call.
    cpdef inline bint acquire(self, bint block) noexcept:
        return take(self)

    cpdef inline int release(self) noexcept:
        return give(self)

    @cython.locals(local=ThreadLock, arrives=bint)
    cpdef int enter(self, object deadline=*) except -1
    cpdef bint enter_soon(self, double seconds=*) except -1
    cpdef int leave(self) except -1
