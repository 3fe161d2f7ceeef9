// A disk in trouble, for the files of one directory as one process sees them. Loaded in front of
// the C library (LD_PRELOAD); the environment names the directory and the file that tells the
// trouble. While that file exists its text is either `read-only` (every write, truncation and sync
// fails with EROFS, as on a file system that the kernel has made read-only under its open files) or
// how many milliseconds a sync takes longer.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define READ_ONLY (-1)

static long trouble_of(int fd) {
    const char *directory = getenv("DISK_DIRECTORY");
    const char *trouble = getenv("DISK_TROUBLE");
    if (directory == NULL || trouble == NULL) return 0;
    int errno_before = errno;
    long found = 0;
    int told = open(trouble, O_RDONLY | O_CLOEXEC);
    if (told >= 0) {
        char text[16] = {0}, link[32], path[4096] = {0};
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (read(told, text, sizeof text - 1) > 0 && readlink(link, path, sizeof path - 1) > 0 &&
            strncmp(path, directory, strlen(directory)) == 0)
            found = text[0] == 'r' ? READ_ONLY : atol(text);
        close(told);
    }
    errno = errno_before;
    return found;
}

static int refused(int fd) {
    if (trouble_of(fd) != READ_ONLY) return 0;
    errno = EROFS;
    return 1;
}

static int refused_or_late(int fd) {
    long late = trouble_of(fd);
    if (late == READ_ONLY) {
        errno = EROFS;
        return 1;
    }
    struct timespec wait = {late / 1000, late % 1000 * 1000000};
    if (late > 0) nanosleep(&wait, NULL);
    return 0;
}

#define THE_REAL(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

ssize_t write(int fd, const void *bytes, size_t count) {
    if (refused(fd)) return -1;
    return THE_REAL(ssize_t, "write", int, const void *, size_t)(fd, bytes, count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    if (refused(fd)) return -1;
    return THE_REAL(ssize_t, "pwrite", int, const void *, size_t, off_t)(fd, bytes, count, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    if (refused(fd)) return -1;
    return THE_REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t)(fd, bytes, count, at);
}

int ftruncate(int fd, off_t length) {
    if (refused(fd)) return -1;
    return THE_REAL(int, "ftruncate", int, off_t)(fd, length);
}

int ftruncate64(int fd, off64_t length) {
    if (refused(fd)) return -1;
    return THE_REAL(int, "ftruncate64", int, off64_t)(fd, length);
}

int fsync(int fd) {
    if (refused_or_late(fd)) return -1;
    return THE_REAL(int, "fsync", int)(fd);
}

int fdatasync(int fd) {
    if (refused_or_late(fd)) return -1;
    return THE_REAL(int, "fdatasync", int)(fd);
}
