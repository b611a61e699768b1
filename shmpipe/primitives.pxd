# The primitives of the compiled engine, for those who cimport them; see primitives.pyx.

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

ctypedef volatile uint64_t* Words
ctypedef volatile uint32_t* Numbers

cdef extern from *:
    """
    #include <stdatomic.h>
    #define shmpipe_fence() atomic_thread_fence(memory_order_seq_cst)
    #define shmpipe_acquire() atomic_thread_fence(memory_order_acquire)
    #define shmpipe_release() atomic_thread_fence(memory_order_release)
    """
    void fence "shmpipe_fence" () noexcept nogil
    void acquire_fence "shmpipe_acquire" () noexcept nogil
    void release_fence "shmpipe_release" () noexcept nogil

cdef class Semaphore:
    cdef void* place
    cdef int held
    cdef readonly object keep
    cpdef bint acquire(self, bint block) noexcept
    cpdef int release(self) noexcept
    cpdef int wait(self, double seconds) except? -2
    cpdef int _count(self) noexcept
    cpdef bint _is_zero(self) noexcept

@cython.final
cdef class ThreadLock:
    cdef unsigned long owner
    cdef int waiting
    cdef bint promised
    cdef object gate
    cpdef bint acquire(self, bint block, double timeout=*) except -1
    cdef bint _wait(self, double timeout) except -1
    cpdef int release(self) except -1
    cpdef bint _is_owned(self) noexcept

cdef Words as_words(object view) except NULL
cdef Numbers as_numbers(object view) except NULL
cdef char* as_memory(object view) except NULL
cdef int copy_in(char* memory, size_t at, object source) except -1
cdef bytes copy_out(char* memory, size_t at, size_t count)
cdef bytes copy_two(char* memory, size_t at, size_t first, size_t second)
cdef int copy_into(char* memory, size_t at, size_t count, object room, size_t start) except -1
cdef int check_signals() except -1
cdef void idle(double seconds) noexcept
cdef bint spin(Words words, int index, uint64_t target, double seconds) noexcept
cdef double coarse_time() noexcept
