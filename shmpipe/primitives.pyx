"""The primitives of the compiled engine: the same names and meanings as in ``primitives.py``."""

import errno
import mmap as _mmap
import os
import threading
from math import ceil

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EINTR, ETIMEDOUT
from libc.errno cimport errno as c_errno

cdef extern from *:
    """
    #include <poll.h>
    #include <semaphore.h>
    #include <sys/mman.h>

    _Static_assert(sizeof(sem_t) <= 32, "SEM_BYTES is too small for this C library's sem_t");

    #if defined(__x86_64__) || defined(__i386__)
    #define shmpipe_pause() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define shmpipe_pause() __asm__ __volatile__("yield")
    #else
    #define shmpipe_pause() ((void)0)
    #endif
    """
    void pause "shmpipe_pause" () noexcept nogil
    void prefetch "__builtin_prefetch" (const void*, int, int) noexcept nogil

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t*, int, unsigned int) noexcept

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
    int _PyBytes_Resize(PyObject**, Py_ssize_t) except -1

SEM_BYTES = 32
AT_ONCE = 1 << 26
WOKEN, TIMED_OUT, INTERRUPTED = 1, 0, -1
POLLIN, POLLOUT, POLLERR, POLLHUP = 0x01, 0x04, 0x08, 0x10
ELSEWHERE = 0x10000
# Handlers run where PyErr_CheckSignals() is called, which is only before and after a wait.
SIGNALS_ANYWHERE = False
COMPILED = True

cdef enum:
    LARGE = 32768  # bytes from which on a copy lets other threads run: it takes some microseconds
    LINE = 64  # bytes of a cache line
    AHEAD = 1024  # bytes from where it copies to where it asks for more; see _copy_ahead()
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
        self.place = <void*>address
        self.keep = keep
        return self

    @property
    def address(self):
        return <size_t>self.place

    cpdef bint acquire(self, bint block) noexcept:
        """Take the semaphore if that needs no waiting (``block`` is not offered)."""
        return take(self)

    cpdef int release(self) noexcept:
        """Give it back; a full barrier."""
        return give(self)

    cpdef int _count(self) noexcept:
        return self.held

    cpdef bint _is_zero(self) noexcept:
        return value_of_semaphore(self.place) == 0

    def _after_fork(self):
        self.held = 0

    cpdef int wait(self, double seconds) except? -2:
        PyErr_CheckSignals()
        cdef int number
        with nogil:
            number = timed_wait(self.place, seconds)
        if not number:
            return WOKEN
        if number == ETIMEDOUT:
            return TIMED_OUT
        if number == EINTR:
            PyErr_CheckSignals()
            return INTERRUPTED
        raise OSError(number, f"waiting for a semaphore: {os.strerror(number)}")


Sleepable = Semaphore


cdef class ThreadLock:
    """A lock among the threads of this process; its fields are guarded by Python's own lock."""

    cdef bint _wait(self, double timeout) except -1:
        # Waiters sleep at a gate, which release() opens if it sees any; from then on the lock is
        # promised to whoever comes through.  Otherwise a thread that takes it again and again, and
        # lets others run only while it has it, would keep them out for ever.
        if self.gate is None:
            self.gate = threading.Lock()
            self.gate.acquire()
        self.waiting += 1
        through = False
        try:
            through = self.gate.acquire(True, timeout)
        finally:
            self.waiting -= 1
            if through:
                self.promised = False
            elif self.promised and not self.waiting:
                self.promised = False  # it came too late, and there is nobody else
                self.gate.acquire(False)
        return through and self.acquire(False)

    cdef int _open_gate(self) except -1:
        self.promised = True
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
    if count < LARGE:
        _copy_strides(to, source, count)
    else:
        with nogil:
            _copy_strides(to, source, count)


cdef void _copy_strides(char* to, const char* source, size_t count) noexcept nogil:
    """Copy in steps for which the C library uses its vector loop.

    For more it uses a string instruction, whose speed depends on where the two places lie in their
    pages (see docs/performance.md).
    """
    while count > STRIDE:
        memcpy(to, source, STRIDE)
        to += STRIDE
        source += STRIDE
        count -= STRIDE
    memcpy(to, source, count)


cdef inline void _copy_away(char* to, const char* source, size_t count) noexcept:
    """From the ring to memory of this process's own."""
    if count < LARGE:
        _copy_ahead(to, source, count)
    else:
        with nogil:
            _copy_ahead(to, source, count)


cdef void _copy_ahead(char* to, const char* source, size_t count) noexcept nogil:
    """Copy line by line, and ask early for what another core has written.

    The processor by itself does so too late: see docs/performance.md.  Nothing beyond the end is
    asked for, which the other core may be writing to.
    """
    while count >= LINE:
        if count > AHEAD:
            prefetch(source + AHEAD, 0, 3)  # to read, into the nearest cache
        memcpy(to, source, LINE)
        to += LINE
        source += LINE
        count -= LINE
    memcpy(to, source, count)


cdef int copy_more_in(char* memory, size_t at, object source) except -1:
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


cdef bytes copy_more_out(char* memory, size_t at, size_t count):
    result = PyBytes_FromStringAndSize(NULL, count)
    _copy_away(PyBytes_AS_STRING(result), memory + at, count)
    return result


cdef bytes copy_two(char* memory, size_t at, size_t first, size_t second):
    result = PyBytes_FromStringAndSize(NULL, first + second)
    cdef char* to = PyBytes_AS_STRING(result)
    _copy_away(to, memory + at, first)
    _copy_away(to + first, memory, second)
    return result


cdef int copy_into(char* memory, size_t at, size_t count, object room, size_t start) except -1:
    cdef Py_buffer own
    PyObject_GetBuffer(room, &own, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if start > <size_t>own.len or count > own.len - start:
            raise ValueError("a copy beyond the end of a buffer")
        _copy_away(<char*>own.buf + start, memory + at, count)
    finally:
        PyBuffer_Release(&own)
    return 0


cdef class Store:
    """Bytes that come in pieces, straight to where they will stay."""

    cdef bytes content
    cdef size_t size, room

    def __init__(self, size_t size):
        self.room = min(size, <size_t>AT_ONCE)
        self.content = PyBytes_FromStringAndSize(NULL, self.room)
        self.size = size

    def add(self, piece, size_t position):
        cdef Py_buffer own
        PyObject_GetBuffer(piece, &own, PyBUF_SIMPLE)
        try:
            if position > self.size or <size_t>own.len > self.size - position:
                raise ValueError("a piece beyond the end")
            if position + own.len > self.room:
                self._grow(position + own.len)
            _copy_away(PyBytes_AS_STRING(self.content) + position, <const char*>own.buf, own.len)
        finally:
            PyBuffer_Release(&own)

    cdef int _grow(self, size_t needed) except -1:
        """Twice as much, or what is needed: large blocks are moved by the kernel, not copied."""
        cdef PyObject* content = <PyObject*>self.content
        cdef size_t size = self.size
        cdef size_t room = min(size, max(needed, 2 * self.room))
        Py_INCREF(self.content)  # ours alone now
        self.content = b""
        self.size = self.room = 0  # for good, if there is no memory
        _PyBytes_Resize(&content, room)
        self.content = <bytes>content
        Py_DECREF(self.content)
        self.size, self.room = size, room
        return 0

    def finished(self):
        content, self.content = self.content, b""
        self.size = self.room = 0
        return content


# --- time -----------------------------------------------------------------------------------------


cdef int check_signals() except -1:
    return PyErr_CheckSignals()


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


cdef void idle(double seconds) noexcept:
    cdef timespec now
    cdef double until
    cdef int turns
    with nogil:
        clock_gettime(CLOCK_MONOTONIC, &now)
        until = now.tv_sec + now.tv_nsec * 1e-9 + seconds
        while now.tv_sec + now.tv_nsec * 1e-9 < until:
            for turns in range(32):
                pause()
            clock_gettime(CLOCK_MONOTONIC, &now)
