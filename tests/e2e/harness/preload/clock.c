// A wall clock that is ahead, for one process: loaded in front of the C library (LD_PRELOAD). While
// the file that CLOCK_AHEAD names exists, its text is by how many seconds.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    const char *ahead = getenv("CLOCK_AHEAD");
    if (failed || clock != CLOCK_REALTIME || ahead == NULL) return failed;
    int errno_before = errno;
    int told = open(ahead, O_RDONLY | O_CLOEXEC);
    if (told >= 0) {
        char text[16] = {0};
        if (read(told, text, sizeof text - 1) > 0) now->tv_sec += atol(text);
        close(told);
    }
    errno = errno_before;
    return 0;
}
