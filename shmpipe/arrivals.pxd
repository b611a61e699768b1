cimport cython
from libc.stdint cimport uint64_t

from .locking cimport SideLock
from .primitives cimport Words
from .readers cimport ReaderSide

cdef uint64_t WORD
cdef int R_SPINS, RPOS, WPOS

@cython.locals(words=Words, lock=SideLock)
cpdef bint wait_for_data(ReaderSide side, object deadline) except -1
