cimport cython
from libc.stdint cimport uint32_t

from . cimport primitives
from .primitives cimport Numbers, Semaphore, ThreadLock

cdef uint32_t _NUMBER

@cython.final
cdef class SideLock(Semaphore):
    cdef object __weakref__
    cdef public object segment
    cdef public int ring, index
    cdef Numbers numbers
    cdef public int mine
    cdef public Semaphore door
    cdef public ThreadLock local
    cdef public object sides
    cdef public bint owed
    cdef public double since
    cdef public object lent

    @cython.locals(local=ThreadLock)
    cpdef int enter(self, object deadline=*) except -1
    cpdef bint enter_soon(self) except -1
    cpdef int leave(self) except -1
