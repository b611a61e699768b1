# The primitives of the compiled engine, for those who cimport them; see primitives.pyx.
#
# What every message needs stands here, so that each module has it in place: a call into another
# module costs as much as most of these do.

cimport cython
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

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

cdef extern from *:
    """
    #include <errno.h>
    #include <limits.h>
    #include <linux/futex.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    _Static_assert(sizeof(void *) == 8, "a semaphore is one 64-bit word");

    /* A post promises no more than to release, so that what follows it may be loaded before;
       on x86 its locked instruction is a full barrier. */
    #if defined(__x86_64__) || defined(__i386__)
    #define shmpipe_before_post() ((void)0)
    #else
    #define shmpipe_before_post() atomic_thread_fence(memory_order_seq_cst)
    #endif

    /* Semaphores as glibc lays them out on 64-bit machines, whose own functions the interpreted
       engine calls on the same ones: a word with the value below and the number of sleepers above.
       The C library's functions are not for memory that somebody else writes to: behind the word
       lies which kind of futex it is, and with another number there they ask the kernel for another
       operation, end the process when it refuses, or never come back.  Here nothing but the word is
       read, each value once, and no loop goes on for as long as somebody else likes. */
    typedef _Atomic uint64_t shmpipe_semaphore;
    enum { SHMPIPE_TRIES = 1000 };  /* far more than processes that are at it at the same time */

    static inline long shmpipe_futex(void *sem, int operation, unsigned value,
                                     const struct timespec *until) {
        uint32_t *half = (uint32_t *)sem;
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        half++;
    #endif
        return syscall(SYS_futex, half, operation, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
    }

    static inline int shmpipe_sem_try(void *place) {
        shmpipe_semaphore *sem = place;
        uint64_t seen = atomic_load_explicit(sem, memory_order_relaxed);
        for (int tries = 0; tries < SHMPIPE_TRIES && (uint32_t)seen; tries++)
            if (atomic_compare_exchange_weak_explicit(sem, &seen, seen - 1, memory_order_acquire,
                                                      memory_order_relaxed))
                return 1;
        return 0;
    }

    static inline void shmpipe_sem_post(void *place) {
        shmpipe_semaphore *sem = place;
        if (atomic_fetch_add_explicit(sem, 1, memory_order_seq_cst) >> 32)
            shmpipe_futex(place, FUTEX_WAKE, 1, NULL);
    }

    static inline uint32_t shmpipe_sem_value(void *place) {
        return (uint32_t)atomic_load_explicit((shmpipe_semaphore *)place, memory_order_relaxed);
    }

    /* 0: taken; otherwise an error number.  By the monotonic clock: a sleeper must not oversleep
       because somebody set the time back. */
    static inline int shmpipe_sem_wait(void *place, double seconds) {
        shmpipe_semaphore *sem = place;
        const uint64_t sleeper = (uint64_t)1 << 32;
        struct timespec until;
        long long nanoseconds;
        uint64_t seen;
        int tries, number = ETIMEDOUT;
        if (shmpipe_sem_try(place))
            return 0;
        clock_gettime(CLOCK_MONOTONIC, &until);
        nanoseconds = until.tv_nsec + (long long)(seconds * 1e9);
        until.tv_sec += nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        seen = atomic_fetch_add_explicit(sem, sleeper, memory_order_relaxed) + sleeper;
        for (tries = 0; tries < SHMPIPE_TRIES; tries++) {
            if ((uint32_t)seen) {
                if (atomic_compare_exchange_weak_explicit(sem, &seen, seen - 1 - sleeper,
                                                          memory_order_acquire,
                                                          memory_order_relaxed))
                    return 0;
                continue;
            }
            if (shmpipe_futex(place, FUTEX_WAIT_BITSET, 0, &until) && errno != EAGAIN) {
                number = errno;
                break;
            }
            seen = atomic_load_explicit(sem, memory_order_relaxed);
        }
        atomic_fetch_sub_explicit(sem, sleeper, memory_order_relaxed);
        return number;
    }
    """
    void full_barrier_before_post "shmpipe_before_post" () noexcept nogil
    bint try_semaphore "shmpipe_sem_try" (void*) noexcept nogil
    void post_semaphore "shmpipe_sem_post" (void*) noexcept nogil
    uint32_t value_of_semaphore "shmpipe_sem_value" (void*) noexcept nogil
    int timed_wait "shmpipe_sem_wait" (void*, double) noexcept nogil

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    struct timespec:
        long tv_sec
        long tv_nsec
    enum: CLOCK_MONOTONIC
    enum: CLOCK_MONOTONIC_COARSE
    int clock_gettime(clockid_t, timespec*) noexcept

cdef inline double coarse_time() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return now.tv_sec + now.tv_nsec * 1e-9

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef class Semaphore:
    cdef void* place
    cdef int held
    cdef readonly object keep

    cpdef bint acquire(self, bint block) noexcept
    cpdef int release(self) noexcept
    cpdef int _count(self) noexcept
    cpdef bint _is_zero(self) noexcept
    cpdef int wait(self, double seconds) except? -2

cdef inline bint take(Semaphore semaphore) noexcept:
    release_fence()  # what was stored before is visible before the semaphore is taken
    if not try_semaphore(semaphore.place):
        return False
    semaphore.held += 1
    return True

cdef inline int give(Semaphore semaphore) noexcept:
    semaphore.held -= 1
    full_barrier_before_post()
    post_semaphore(semaphore.place)
    return 0

@cython.final
cdef class ThreadLock:
    cdef unsigned long owner
    cdef int waiting
    cdef bint promised
    cdef object gate

    cpdef inline bint _is_owned(self) noexcept:
        return self.owner != 0 and self.owner == PyThread_get_thread_ident()

    cpdef inline bint acquire(self, bint block, double timeout=-1) except -1:
        if not self.owner and not self.promised:
            self.owner = PyThread_get_thread_ident()
            return True
        return self._wait(timeout) if block else False

    cpdef inline int release(self) except -1:
        self.owner = 0
        if self.waiting and not self.promised:
            self._open_gate()
        return 0

    cdef bint _wait(self, double timeout) except -1
    cdef int _open_gate(self) except -1

cdef enum:
    STRIDE = 2048  # bytes of one memcpy(); see _copy_strides() and _copy_ahead()

cdef inline int copy_in(char* memory, size_t at, object source) except -1:
    if PyBytes_CheckExact(source) and PyBytes_GET_SIZE(source) <= STRIDE:
        memcpy(memory + at, PyBytes_AS_STRING(source), PyBytes_GET_SIZE(source))
        return 0
    return copy_more_in(memory, at, source)

cdef inline bytes copy_out(char* memory, size_t at, size_t count):
    if count <= STRIDE:
        return PyBytes_FromStringAndSize(memory + at, count)
    return copy_more_out(memory, at, count)

cdef Words as_words(object view) except NULL
cdef Numbers as_numbers(object view) except NULL
cdef char* as_memory(object view) except NULL
cdef int copy_more_in(char* memory, size_t at, object source) except -1
cdef bytes copy_more_out(char* memory, size_t at, size_t count)
cdef bytes copy_two(char* memory, size_t at, size_t first, size_t second)
cdef int copy_into(char* memory, size_t at, size_t count, object room, size_t start) except -1
cdef int check_signals() except -1
cdef void idle(double seconds) noexcept
cdef bint spin(Words words, int index, uint64_t target, double seconds) noexcept
