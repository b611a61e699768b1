cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .primitives cimport Words
from .waiting cimport Side

cdef uint64_t WORD
cdef int SHORT
cdef int LIMIT, PLUG, POLICY, R_WAKES, RD_ARM, RD_LEFT, RD_LONG, RD_RUNG, RD_SLEEPERS, RD_WATCH, TELLS, UNPLUG
cdef int W_SLEEPS, WR_ARM, WR_LEFT, WR_LONG, WR_RUNG, WR_SLEEPERS, WR_WATCH
cdef int WRITE_PAGES

@cython.final
cdef class WriterSide(Side):
    cpdef bint has_space(self) except -1
    @cython.locals(words=Words, rung=uint64_t)
    cpdef bint answered(self, uint64_t ticket) except -1
    @cython.locals(words=Words)
    cpdef arm(self, int kind, bint again)
    @cython.locals(count=uint64_t)
    cpdef disarm(self, int kind)
    @cython.locals(words=Words)
    cpdef settle(self, bint slept)
    @cython.locals(outcome=int)
    cpdef int sleep(self, int kind, object seconds, object others) except? -2
    cpdef pass_on(self, bint slept, bint ended)
    @cython.locals(words=Words, ticket=uint64_t)
    cpdef wake_readers(self)
    @cython.locals(words=Words, ticket=uint64_t, there=bint)
    cpdef tell(self, bint anyway=*)
