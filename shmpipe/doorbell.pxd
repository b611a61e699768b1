# What a call that sleeps does with it (for callers that know its type: there is no way from Python);
# the rest is Python's, and tests put their own in its place.

cdef class Doorbell:
    cdef dict __dict__
    cdef object __weakref__
    cdef public object sock
    cdef public list _held

    cdef int hold(self) except -1
    cdef int let_go(self) except -1
