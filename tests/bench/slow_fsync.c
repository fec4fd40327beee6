/* Preloaded into a process, this makes every fsync and fdatasync take longer, as on a slow disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_a_little(void)
{
    const char *text = getenv("SQUIDBOT_FSYNC_DELAY_US");
    if (text)
        usleep((useconds_t)atol(text));
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_a_little();
    return real(fd);
}

int fdatasync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_a_little();
    return real(fd);
}
