/*
 * test_process.c: what the simulated libraries cost a process that has them loaded and does not use them, as every program has that they are
 * preloaded to.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>

#include "tests/harness.h"

#define STORAGE_MAX 4096       /* bytes that each thread has on its stack, for all libraries together */
#define LIBRARIES_LEAST 16

static char folder[PATH_MAX];

/* All of them, from the folder that the driver is in. */
static void load(void)
{
    Dl_info driver;
    char path[PATH_MAX + 32];
    REQUIRE(dladdr((void *)(uintptr_t)cuInit, &driver) && realpath(driver.dli_fname, folder));
    *(strrchr(folder, '/') + 1) = 0;
    snprintf(path, sizeof path, "%slibcenote_sim.so", folder);
    REQUIRE(dlopen(path, RTLD_NOW) != NULL);
}

struct sum {
    size_t   storage;
    unsigned libraries;
};

static int add(struct dl_phdr_info *info, size_t size, void *to)
{
    struct sum *sum = to;
    char path[PATH_MAX];
    (void)size;
    if (!realpath(info->dlpi_name, path) || strncmp(path, folder, strlen(folder)) != 0)
        return 0;
    sum->libraries++;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            sum->storage += info->dlpi_phdr[i].p_memsz;
    return 0;
}

CASE(threads_carry_little)
{
    struct sum sum = {0};
    load();
    dl_iterate_phdr(add, &sum);
    EXPECT(sum.libraries >= LIBRARIES_LEAST);
    EXPECT(sum.storage < STORAGE_MAX);
    if (sum.storage >= STORAGE_MAX)
        fprintf(stderr, "%zu bytes in each thread\n", sum.storage);
}

extern char **environ;

CASE(the_environment_stays)
{
    unsigned before = 0, after = 0;
    while (environ[before])
        before++;
    load();
    while (environ[after])
        after++;
    EXPECT_EQ(after, before);
    EXPECT(getenv("USE_PYTORCH_KERNEL_CACHE") == NULL);
}

SUITE_MAIN("process")
