/* Sleeps before every fsync and fdatasync, so that a database on tmpfs pays the same, known price for
 * durability in every cell: a virtual machine's disk changes its price by a factor of fifty.
 *
 *   FSYNC_DELAY_US   how long to sleep, in microseconds (0: not at all)
 *   FSYNC_COUNT      a file of eight bytes in which the calls of all processes are counted
 *
 * The calls themselves are still made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static long delay_us;
static _Atomic uint64_t *count;
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("FSYNC_DELAY_US");
    delay_us = text ? atol(text) : 0;
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *path = getenv("FSYNC_COUNT");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *page = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (page != MAP_FAILED)
            count = page;
        close(file);
    }
}

static void pay(void)
{
    if (count)
        atomic_fetch_add(count, 1);
    if (delay_us > 0) {
        struct timespec pause = { delay_us / 1000000, (delay_us % 1000000) * 1000 };
        nanosleep(&pause, NULL);
    }
}

int fsync(int file)
{
    pay();
    return real_fsync(file);
}

int fdatasync(int file)
{
    pay();
    return real_fdatasync(file);
}
