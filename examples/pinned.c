/*
 * pinned.c: batches go to the device through pinned memory, two ahead of the one in use. The program frees each batch without waiting for its
 * copy. Build it with -lcenote_host -ljemalloc.
 */
#include <cenote/host.h>
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 1000
#define AHEAD 2
#define MOST (4u << 20)

static void must(int error, const char *what)
{
    if (error) {
        fprintf(stderr, "%s: %s\n", what, cenote_host_message());
        exit(1);
    }
}

int main(void)
{
    CUcontext context;
    CUstream copies;
    CUdeviceptr there[AHEAD];
    char report[2000];
    must(cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING), "cuda");
    for (int i = 0; i < AHEAD; i++)
        must(cuMemAlloc(&there[i], MOST), "cuMemAlloc");

    for (int batch = 0; batch < BATCHES; batch++) {
        size_t bytes = MOST / 4 + (size_t)batch * 7919 % (3 * MOST / 4);
        void *block;
        must(cenote_host_alloc(0, bytes, &block), "cenote_host_alloc");
        memset(block, batch, bytes < 4096 ? bytes : 4096); /* a real program would read the batch here */
        must(cuMemcpyHtoDAsync(there[batch % AHEAD], block, bytes, copies), "copy");
        must(cenote_host_use(block, 0, copies), "cenote_host_use");
        must(cenote_host_free(block), "cenote_host_free"); /* another batch gets the memory when the copy is complete */
    }

    cenote_host_stats stats;
    must(cenote_host_node_stats(-1, &stats), "cenote_host_node_stats");
    cenote_host_report(report, sizeof report);
    printf("%d batches through %.1f MiB of pinned memory, registered in %llu steps\n%s", BATCHES, (double)stats.registered.peak / (1 << 20),
           (unsigned long long)stats.registrations, report);

    cuStreamSynchronize(copies);
    must(cenote_host_close(), "cenote_host_close");
    for (int i = 0; i < AHEAD; i++)
        cuMemFree(there[i]);
    cuStreamDestroy(copies);
    cuDevicePrimaryCtxRelease(0);
    return 0;
}
