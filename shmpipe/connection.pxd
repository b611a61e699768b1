from libc.stdint cimport uint64_t

from .ends cimport End

cdef uint64_t DATA

cdef class Connection(End):
    pass
