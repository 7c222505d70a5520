/*
 * preload.c: what does a pair of allocation and free cost a program that knows the driver alone: by the driver's own pool, and under the preload?
 *
 *     bench-preload [--json]
 *
 * The program starts itself again for each route, with LD_PRELOAD as a user would set it. Counted is CPU time of the calling thread, the least of
 * several rounds, with nothing else to do on the device. All columns hold the answers of the simulated driver, which are quicker than a real one's.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/common.h"

#define ROUNDS 30
#define PAIRS  2000
#define ROUTE  "CENOTE_BENCH_ROUTE"

static const struct {
    const char *name, *library; /* in the folder of the build */
} routes[] = {
    {"driver", NULL},
    {"preload", "libcenote_preload.so"},
};

static const size_t sizes[] = {512, 64 << 10, 2 << 20, 32 << 20};

static void need(CUresult result, const char *what)
{
    if (!result)
        return;
    fprintf(stderr, "%s: error %d\n", what, (int)result);
    exit(1);
}

static void pair(bool async, size_t bytes, CUstream stream)
{
    CUdeviceptr at;
    need(async ? cuMemAllocAsync(&at, bytes, stream) : cuMemAlloc(&at, bytes), "allocation");
    need(async ? cuMemFreeAsync(at, stream) : cuMemFree(at), "free");
}

/* ns of a pair, the least of all rounds. */
static double measure(bool async, size_t bytes, CUstream stream)
{
    double least = 1e18;
    for (int i = 0; i < 200; i++)
        pair(async, bytes, stream);
    for (int round = 0; round < ROUNDS; round++) {
        double before = bench_cpu_ns();
        for (int i = 0; i < PAIRS; i++)
            pair(async, bytes, stream);
        double each = (bench_cpu_ns() - before) / PAIRS;
        least = each < least ? each : least;
    }
    return least;
}

/* The pool of the driver keeps what is free, as cenote does. */
static void keep_free_memory(void)
{
    CUmemoryPool mempool;
    cuuint64_t all = UINT64_MAX;
    need(cuDeviceGetDefaultMemPool(&mempool, 0), "cuDeviceGetDefaultMemPool");
    need(cuMemPoolSetAttribute(mempool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all), "cuMemPoolSetAttribute");
}

static void run(const char *route, bool json)
{
    CUcontext context;
    CUstream stream;
    need(cuInit(0), "cuInit");
    need(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    need(cuCtxPushCurrent(context), "cuCtxPushCurrent");
    need(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    keep_free_memory();
    for (int async = 1; async >= 0; async--)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            printf(json ? "{\"route\": \"%s\", \"calls\": \"%s\", \"bytes\": %zu, \"ns\": %.0f}\n" : "%-8s  %-32s  %9zu bytes  %5.0f ns\n", route,
                   async ? "cuMemAllocAsync, cuMemFreeAsync" : "cuMemAlloc, cuMemFree", sizes[i], measure(async, sizes[i], stream));
}

static void start(int route, char **arguments)
{
    char folder[512] = "", preload[1200] = "";
    if (readlink("/proc/self/exe", folder, sizeof folder - 1) <= 0)
        bench_fail("/proc/self/exe");
    for (int i = 0; i < 2; i++)
        *strrchr(folder, '/') = 0;
    if (routes[route].library)
        snprintf(preload, sizeof preload, "%s/%s", folder, routes[route].library);
    setenv(ROUTE, routes[route].name, 1);
    *preload ? setenv("LD_PRELOAD", preload, 1) : unsetenv("LD_PRELOAD");
    execv("/proc/self/exe", arguments);
    _exit(2);
}

int main(int count, char **arguments)
{
    const char *route = getenv(ROUTE);
    int failed = 0;
    if (route) {
        run(route, count > 1 && !strcmp(arguments[1], "--json"));
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        int status = 0;
        pid_t child = fork();
        if (!child)
            start(i, arguments);
        failed += child < 0 || waitpid(child, &status, 0) != child || status;
    }
    return failed != 0;
}
