"""The primitives of the compiled engine: the same names and meanings as in ``primitives.py``."""

import errno
import mmap as _mmap
import os
import threading
from math import ceil

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.memoryview cimport PyMemoryView_Check, PyMemoryView_GET_BUFFER
from libc.errno cimport EAGAIN, EINTR, ETIMEDOUT
from libc.errno cimport errno as c_errno
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <poll.h>
    #include <semaphore.h>
    #include <sys/mman.h>
    #include <time.h>

    _Static_assert(sizeof(sem_t) <= 32, "SEM_BYTES is too small for this C library's sem_t");

    /* sem_post() promises no more than to release, so that what follows it may be loaded before;
       on x86 its locked instruction is a full barrier. */
    #if defined(__x86_64__) || defined(__i386__)
    #define shmpipe_pause() __builtin_ia32_pause()
    #define shmpipe_before_post() ((void)0)
    #else
    #define shmpipe_before_post() atomic_thread_fence(memory_order_seq_cst)
    #if defined(__aarch64__)
    #define shmpipe_pause() __asm__ __volatile__("yield")
    #else
    #define shmpipe_pause() ((void)0)
    #endif
    #endif


    /* Since glibc 2.30; weak, so that one binary serves older ones too. */
    extern int sem_clockwait(sem_t *, clockid_t, const struct timespec *) __attribute__((weak));

    /* The monotonic clock where possible: a sleeper must not oversleep because somebody set the
       time back. */
    static int shmpipe_sem_wait(sem_t *sem, double seconds) {
        struct timespec until;
        clockid_t clock = sem_clockwait ? CLOCK_MONOTONIC : CLOCK_REALTIME;
        long long nanoseconds;
        clock_gettime(clock, &until);
        nanoseconds = until.tv_nsec + (long long)(seconds * 1e9);
        until.tv_sec += nanoseconds / 1000000000;
        until.tv_nsec = nanoseconds % 1000000000;
        return sem_clockwait ? sem_clockwait(sem, clock, &until) : sem_timedwait(sem, &until);
    }
    """
    void pause "shmpipe_pause" () noexcept nogil
    void full_barrier_before_post "shmpipe_before_post" () noexcept nogil
    int timed_wait "shmpipe_sem_wait" (sem_t*, double) noexcept nogil

cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t*, int, unsigned int) noexcept
    int sem_trywait(sem_t*) noexcept
    int sem_post(sem_t*) noexcept
    int sem_getvalue(sem_t*, int*) noexcept

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    struct timespec:
        long tv_sec
        long tv_nsec
    enum: CLOCK_MONOTONIC
    enum: CLOCK_MONOTONIC_COARSE
    int clock_gettime(clockid_t, timespec*) noexcept

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void*, size_t, int, int, int, long) noexcept
    enum: PROT_READ
    enum: PROT_WRITE
    enum: MAP_SHARED
    enum: MAP_FIXED
    enum: MAP_PRIVATE
    enum: MAP_ANONYMOUS

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd*, unsigned long, int) noexcept

cdef extern from "Python.h":
    unsigned long PyThread_get_thread_ident() noexcept nogil

SEM_BYTES = 32
WOKEN, TIMED_OUT, INTERRUPTED = 1, 0, -1
POLLIN, POLLOUT, POLLERR, POLLHUP = 0x01, 0x04, 0x08, 0x10
ELSEWHERE = 0x10000
# Handlers run where PyErr_CheckSignals() is called, which is only before and after a wait.
SIGNALS_ANYWHERE = False
COMPILED = True

cdef enum:
    LARGE = 32768  # bytes from which on a copy lets other threads run: it takes some microseconds
    STRIDE = 2048  # bytes of one memcpy(); see _copy_large()
    MOST_POLLED = 512


def semaphore_image(unsigned int value):
    cdef char image[32]
    for at in range(32):
        image[at] = 0
    if sem_init(<sem_t*>image, 1, value):
        raise OSError(c_errno, f"sem_init: {os.strerror(c_errno)}")
    return PyBytes_FromStringAndSize(image, 32)


cdef void* _start(object buffer) except NULL:
    """Where a writable buffer lies; it stays there as long as somebody keeps it exported."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    start = view.buf
    PyBuffer_Release(&view)
    return start


def address_of(buffer):
    return <size_t>_start(buffer)


def map_shared(int fd, size_t size):
    reserved = _mmap.mmap(-1, size, _mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS)
    cdef void* address = _start(reserved)
    if mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != address:
        raise OSError(c_errno, f"mapping {size} bytes: {os.strerror(c_errno)}")
    return reserved


def map_twice(int fd, long offset, size_t size):
    reserved = _mmap.mmap(-1, 2 * size, _mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS)
    cdef char* address = <char*>_start(reserved)
    cdef int half
    for half in range(2):
        at = address + half * size
        if mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset) != at:
            raise OSError(c_errno, f"mapping {size} bytes twice: {os.strerror(c_errno)}")
    return reserved


def cut_off(mapping):
    cdef void* address = _start(mapping)
    cdef size_t size = len(mapping)
    cdef int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED
    if mmap(address, size, PROT_READ | PROT_WRITE, flags, -1, 0) != address:
        raise OSError(c_errno, f"replacing {size} bytes: {os.strerror(c_errno)}")


cdef class Semaphore:
    @classmethod
    def at(cls, size_t address, keep):
        cdef Semaphore self = cls.__new__(cls)
        self.place = <sem_t*>address
        self.keep = keep
        return self

    @property
    def address(self):
        return <size_t>self.place

    cpdef bint acquire(self, bint block=False) except -1:
        """Take the semaphore if that needs no waiting (``block`` is not offered)."""
        release_fence()  # what was stored before is visible before the semaphore is taken
        while sem_trywait(self.place):
            if c_errno == EAGAIN:
                return False
            if c_errno != EINTR:
                raise OSError(c_errno, f"taking a semaphore: {os.strerror(c_errno)}")
        self.held += 1
        return True

    cpdef int release(self) except -1:
        """Give it back; a full barrier."""
        self.held -= 1
        full_barrier_before_post()
        if sem_post(self.place):
            raise OSError(c_errno, f"posting a semaphore: {os.strerror(c_errno)}")
        return 0

    cpdef int _count(self) noexcept:
        return self.held

    cpdef bint _is_zero(self) noexcept:
        cdef int value = 0
        sem_getvalue(self.place, &value)
        return value <= 0

    def _after_fork(self):
        self.held = 0

    def wait(self, double seconds):
        PyErr_CheckSignals()
        cdef int result, number
        with nogil:
            result = timed_wait(self.place, seconds)
            number = c_errno
        if not result:
            return WOKEN
        if number == ETIMEDOUT:
            return TIMED_OUT
        if number == EINTR:
            PyErr_CheckSignals()
            return INTERRUPTED
        raise OSError(number, f"waiting for a semaphore: {os.strerror(number)}")


cdef class ThreadLock:
    """A lock among the threads of this process; its fields are guarded by Python's own lock."""

    cpdef bint _is_owned(self) noexcept:
        return self.owner != 0 and self.owner == PyThread_get_thread_ident()

    cpdef bint acquire(self, bint block=True, double timeout=-1) except -1:
        if not self.owner:
            self.owner = PyThread_get_thread_ident()
            return True
        if not block:
            return False
        # Waiters sleep at a gate, which release() opens if it sees any; whoever comes through has
        # to find the lock free like everybody else, so False may come early.
        if self.gate is None:
            self.gate = threading.Lock()
            self.gate.acquire()
        self.waiting += 1
        try:
            self.gate.acquire(True, timeout)
        finally:
            self.waiting -= 1
        return self.acquire(False)

    cpdef int release(self) except -1:
        self.owner = 0
        if self.waiting and self.gate.locked():
            self.gate.release()
        return 0


def poll_fd(int fd, short events, seconds, others=()):
    cdef pollfd entries[MOST_POLLED]
    cdef unsigned long count = 1
    cdef int milliseconds = -1, ready, number
    if seconds is not None:
        milliseconds = min(ceil(max(seconds, 0) * 1000), 2**31 - 1)
    entries[0].fd, entries[0].events, entries[0].revents = fd, events, 0
    for other in others:
        if count == MOST_POLLED:
            raise OSError(errno.ENOMEM, "too many descriptors to poll")
        entries[count].fd, entries[count].events, entries[count].revents = other, POLLIN, 0
        count += 1
    if milliseconds:
        PyErr_CheckSignals()
    with nogil:
        ready = poll(entries, count, milliseconds)
        number = c_errno
    if ready >= 0:
        return entries[0].revents or (ELSEWHERE if ready else 0)
    if number == EINTR:
        PyErr_CheckSignals()
        return INTERRUPTED
    raise OSError(number, f"poll: {os.strerror(number)}")


# --- shared memory --------------------------------------------------------------------------------


cdef Words as_words(object view) except NULL:
    return <Words>_start(view)


cdef Numbers as_numbers(object view) except NULL:
    return <Numbers>_start(view)


cdef char* as_memory(object view) except NULL:
    return <char*>_start(view)


cdef inline void _copy(char* to, const char* source, size_t count) noexcept:
    if count <= STRIDE:
        memcpy(to, source, count)
    elif count < LARGE:
        _copy_strides(to, source, count)
    else:
        with nogil:
            _copy_strides(to, source, count)


cdef void _copy_strides(char* to, const char* source, size_t count) noexcept nogil:
    """Copy in steps for which the C library uses its vector loop.

    For more it uses a string instruction, which the processor cannot prefetch as well through: of
    lines that another core has just written, it brings less than half as many (see
    docs/performance.md).
    """
    while count > STRIDE:
        memcpy(to, source, STRIDE)
        to += STRIDE
        source += STRIDE
        count -= STRIDE
    memcpy(to, source, count)


cdef int copy_in(char* memory, size_t at, object source) except -1:
    cdef Py_buffer own
    if PyBytes_CheckExact(source):
        _copy(memory + at, PyBytes_AS_STRING(source), PyBytes_GET_SIZE(source))
        return 0
    PyObject_GetBuffer(source, &own, PyBUF_SIMPLE)
    try:
        _copy(memory + at, <const char*>own.buf, own.len)
    finally:
        PyBuffer_Release(&own)
    return 0


cdef bytes copy_out(char* memory, size_t at, size_t count):
    if count <= STRIDE:
        return PyBytes_FromStringAndSize(memory + at, count)
    result = PyBytes_FromStringAndSize(NULL, count)
    _copy(PyBytes_AS_STRING(result), memory + at, count)
    return result


cdef bytes copy_two(char* memory, size_t at, size_t first, size_t second):
    result = PyBytes_FromStringAndSize(NULL, first + second)
    cdef char* to = PyBytes_AS_STRING(result)
    _copy(to, memory + at, first)
    _copy(to + first, memory, second)
    return result


cdef int copy_into(char* memory, size_t at, size_t count, object room, size_t start) except -1:
    cdef Py_buffer own
    PyObject_GetBuffer(room, &own, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if start > <size_t>own.len or count > own.len - start:
            raise ValueError("a copy beyond the end of a buffer")
        _copy(<char*>own.buf + start, memory + at, count)
    finally:
        PyBuffer_Release(&own)
    return 0


cdef class Store:
    """Bytes that come in pieces, straight to where they will stay."""

    cdef bytes content
    cdef size_t size

    def __init__(self, size_t size):
        self.content = PyBytes_FromStringAndSize(NULL, size)
        self.size = size

    def add(self, piece, size_t position):
        cdef Py_buffer own
        PyObject_GetBuffer(piece, &own, PyBUF_SIMPLE)
        try:
            if position > self.size or <size_t>own.len > self.size - position:
                raise ValueError("a piece beyond the end")
            _copy(PyBytes_AS_STRING(self.content) + position, <const char*>own.buf, own.len)
        finally:
            PyBuffer_Release(&own)

    def finished(self):
        content, self.content = self.content, b""
        self.size = 0
        return content


# --- time -----------------------------------------------------------------------------------------


cdef int check_signals() except -1:
    return PyErr_CheckSignals()


cdef double coarse_time() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef enum:
    FIRST_LOOKS = 64  # before other threads are let in, which costs more than a short wait


cdef bint spin(Words words, int index, uint64_t target, double seconds) noexcept:
    cdef timespec now
    cdef double until
    cdef int looks
    cdef bint met
    for looks in range(FIRST_LOOKS):
        if <int64_t>(words[index] - target) >= 0:
            return True
        pause()
    with nogil:
        clock_gettime(CLOCK_MONOTONIC, &now)
        until = now.tv_sec + now.tv_nsec * 1e-9 + seconds
        while True:
            met = False
            for looks in range(32):
                if <int64_t>(words[index] - target) >= 0:
                    met = True
                    break
                pause()
            if met:
                break
            clock_gettime(CLOCK_MONOTONIC, &now)
            if now.tv_sec + now.tv_nsec * 1e-9 > until:
                break
    return met
