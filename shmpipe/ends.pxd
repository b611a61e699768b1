from .receiving cimport Receiver
from .sending cimport Sender

cdef class End:
    cdef dict __dict__
    cdef object __weakref__
    cdef readonly object _segment, _bell, _spin
    cdef readonly tuple _rings
    cdef readonly Sender _sender
    cdef readonly Receiver _receiver
    cdef public bint _open, _readable, _writable

    cpdef int _check_closed(self) except -1
    cpdef int _check_lent(self, bint sends=*) except -1
    cdef Receiver _reading(self)
    cdef Sender _writing(self)
