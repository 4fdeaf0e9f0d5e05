/* A file system that knows no locks (REFUSE=locks), or shares no memory (REFUSE=memory). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define SHARED 1

static int refuses(const char *what)
{
    const char *chosen = getenv("REFUSE");
    return chosen && !strcmp(chosen, what);
}

static int lock_or_pass(const char *name, int fd, int command, void *argument)
{
    int is_lock = command == F_SETLK || command == F_SETLKW || command == F_GETLK;
    if (is_lock && refuses("locks")) {
        errno = ENOLCK;
        return -1;
    }
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
    return real(fd, command, argument);
}

#define LOCKS(name)                                                                                                    \
    int name(int fd, int command, ...)                                                                                 \
    {                                                                                                                  \
        va_list list;                                                                                                  \
        va_start(list, command);                                                                                       \
        void *argument = va_arg(list, void *);                                                                         \
        va_end(list);                                                                                                  \
        return lock_or_pass(#name, fd, command, argument);                                                             \
    }

#define MAPS(name)                                                                                                     \
    void *name(void *at, size_t size, int protection, int flags, int fd, off_t offset)                                 \
    {                                                                                                                  \
        if (fd >= 0 && flags & SHARED && refuses("memory")) {                                                          \
            errno = ENODEV;                                                                                            \
            return (void *)-1;                                                                                         \
        }                                                                                                              \
        void *(*real)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, #name);                                 \
        return real(at, size, protection, flags, fd, offset);                                                          \
    }

LOCKS(fcntl)
LOCKS(fcntl64)
MAPS(mmap)
MAPS(mmap64)

int flock(int fd, int operation)
{
    int (*real)(int, int) = dlsym(RTLD_NEXT, "flock");
    if (refuses("locks")) {
        errno = ENOLCK;
        return -1;
    }
    return real(fd, operation);
}
