cpdef remaining(object deadline)
cpdef bint is_over(object deadline) except -1
