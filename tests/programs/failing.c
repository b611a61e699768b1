/* Loaded in front of the C library: makes the n-th of the calls below fail, in one thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/types.h>

static __thread long left = -1; /* calls that still go through; -1: all */
static __thread int number;     /* errno of the one that does not */
static __thread const char *failed;

void failing_arm(long after, int error) {
    left = after;
    number = error;
    failed = NULL;
}

/* The name of the call that has failed, or NULL; from now on all go through. */
const char *failing_disarm(void) {
    left = -1;
    return failed;
}

static int fails(const char *name) {
    if (left < 0 || left-- > 0)
        return 0;
    failed = name;
    errno = number;
    return 1;
}

#define CALL(result, bad, name, parameters, arguments)     \
    result name parameters {                               \
        static result(*real) parameters;                   \
        if (!real)                                         \
            real = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
        return fails(#name) ? bad : real arguments;        \
    }

CALL(int, -1, memfd_create, (const char *a, unsigned b), (a, b))
CALL(int, -1, ftruncate, (int a, off_t b), (a, b))
CALL(int, -1, ftruncate64, (int a, off_t b), (a, b))
CALL(int, -1, socketpair, (int a, int b, int c, int *d), (a, b, c, d))
CALL(int, -1, setsockopt, (int a, int b, int c, const void *d, unsigned e), (a, b, c, d, e))
CALL(int, -1, eventfd, (unsigned a, int b), (a, b))
CALL(int, -1, epoll_create1, (int a), (a))
CALL(int, -1, epoll_ctl, (int a, int b, int c, void *d), (a, b, c, d))
CALL(int, -1, dup, (int a), (a))
CALL(int, -1, fstat, (int a, void *b), (a, b))
CALL(int, -1, fstat64, (int a, void *b), (a, b))
CALL(int, -1, flock, (int a, int b), (a, b))
CALL(int, -1, ioctl, (int a, unsigned long b, void *c), (a, b, c))
CALL(ssize_t, -1, pread, (int a, void *b, size_t c, off_t d), (a, b, c, d))
CALL(ssize_t, -1, pread64, (int a, void *b, size_t c, off_t d), (a, b, c, d))
CALL(void *, (void *)-1, mmap, (void *a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f))
CALL(void *, (void *)-1, mmap64, (void *a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f))
CALL(int, -1, fcntl, (int a, int b, long c), (a, b, c))
CALL(int, -1, fcntl64, (int a, int b, long c), (a, b, c))
CALL(int, -1, open, (const char *a, int b, int c), (a, b, c))
CALL(int, -1, open64, (const char *a, int b, int c), (a, b, c))
