cimport cython
from libc.stdint cimport int64_t, uint64_t

from . cimport primitives
from .following cimport Follower
from .primitives cimport Words
from .waiting cimport Side

cdef double NOT_AGAIN
cdef uint64_t WORD
cdef int SHORT
cdef int LIMIT, PAGE_SHIFT, PLUG, POLICY, R_SLEEPS, RD_ARM, RD_LEFT, RD_LONG, RD_RUNG, RD_SLEEPERS, RD_STALE, RD_WATCH, TELLS
cdef int RPOS, WPOS
cdef int UNPLUG, W_WAKES, W_WITHHELD, WR_ARM, WR_LEFT, WR_LONG, WR_RUNG, WR_SLEEPERS
cdef int WR_TURN_BY, WR_WANT, WR_WATCH, WRITE_PAGES

@cython.final
cdef class ReaderSide(Side):
    cdef public double in_vain
    cdef readonly Follower follower

    @cython.locals(words=Words)
    cpdef arm(self, int kind, bint again)
    @cython.locals(count=uint64_t)
    cpdef disarm(self, int kind)
    @cython.locals(words=Words, plug=uint64_t, ticket=uint64_t)
    cpdef clear(self)
    @cython.locals(words=Words)
    cdef bint _is_told(self) except -1
    @cython.locals(words=Words, tells=uint64_t)
    cdef _await_teller(self)
    @cython.locals(words=Words, told=bint, rung=bint)
    cpdef settle(self, bint drained, bint slept)
    @cython.locals(outcome=int)
    cpdef int sleep(self, int kind, object seconds, object others) except? -2
    cpdef pass_on(self, bint slept, bint ended)
    @cython.locals(words=Words, ticket=uint64_t, want=uint64_t, after=int64_t, fired=bint)
    cpdef wake_writers(self, int64_t freed)
    @cython.locals(words=Words, sender=uint64_t)
    cdef bint _wanted_by_the_dead(self) except -1
    @cython.locals(words=Words, held_back=bint, plug=uint64_t)
    cpdef unplug(self, bint fired)
    @cython.locals(words=Words)
    cdef _unplug(self, uint64_t plug)
