/*
 * umf.c: examples/umf under UMF: blocks by the provider's own calls and through UMF's pools, memory that runs out, ends while blocks live, mistakes.
 */
#include "examples/umf/provider.h"
#include "sim/sim.h"

#include <cenote/cenote.h>

#include <stdio.h>
#include <string.h>
#include <umf/memory_pool.h>
#include <umf/pools/pool_disjoint.h>
#include <umf/pools/pool_proxy.h>

#define MIB ((size_t)1 << 20)
#define MUST(x) do { if (!(x)) { printf("umf.c:%d: %s\n", __LINE__, #x); return 1; } } while (0)

static int provider_alone(umf_memory_provider_handle_t provider, CUstream stream)
{
    void *block, *next, *none = NULL;
    const char *text;
    int32_t code;
    size_t page;
    MUST(!umfMemoryProviderGetName(provider, &text) && !strcmp(text, "cenote"));
    MUST(!umfMemoryProviderGetRecommendedPageSize(provider, 1, &page) && page >= 2 * MIB);
    MUST(!umfMemoryProviderGetMinPageSize(provider, NULL, &page) && page == 512);
    MUST(!umfMemoryProviderAlloc(provider, 40 * MIB, 0, &block));
    MUST(!sim_launch_fill(stream, (CUdeviceptr)block, 1, 40 * MIB)); /* any stream, at once */
    MUST(!sim_launch_wait(stream, 50000000));
    MUST(!sim_launch_expect(stream, (CUdeviceptr)block, 1, 40 * MIB));
    MUST(umfMemoryProviderAlloc(provider, 90 * MIB, 0, &none) == UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC && !none);
    umfMemoryProviderGetLastNativeError(provider, &text, &code);
    MUST(strlen(text) > 20);
    MUST(!umfMemoryProviderFree(provider, block, 40 * MIB)); /* the stream still reads it: the free waits */
    MUST(!umfMemoryProviderAlloc(provider, 40 * MIB, 4096, &next) && (uintptr_t)next % 4096 == 0);
    MUST(!sim_launch_fill(0, (CUdeviceptr)next, 2, 40 * MIB) && !sim_launch_expect(0, (CUdeviceptr)next, 2, 40 * MIB));
    MUST(!umfMemoryProviderFree(provider, next, 40 * MIB));
    return 0;
}

static int under(const umf_memory_pool_ops_t *ops, void *params, umf_memory_provider_handle_t provider)
{
    umf_memory_pool_handle_t pool;
    void *blocks[64];
    MUST(!umfPoolCreate(ops, provider, params, 0, &pool));
    for (int i = 0; i < 64; i++)
        MUST((blocks[i] = umfPoolMalloc(pool, (size_t)(i + 1) * 4096)) &&
             !sim_launch_fill(0, (CUdeviceptr)blocks[i], (uint64_t)i, (size_t)(i + 1) * 4096));
    for (int i = 0; i < 64; i++)
        MUST(!sim_launch_expect(0, (CUdeviceptr)blocks[i], (uint64_t)i, (size_t)(i + 1) * 4096) && !umfPoolFree(pool, blocks[i]));
    return umfPoolDestroy(pool);
}

int main(void)
{
    struct cenote_umf params = {.device = 0, .conf = "limit:64MiB,page_mib:2"}, wrong = {.device = 7};
    umf_memory_provider_handle_t provider, none;
    umf_disjoint_pool_params_handle_t disjoint;
    CUcontext context;
    CUstream stream;
    struct sim_books books;
    MUST(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxPushCurrent(context) && !cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(umfMemoryProviderCreate(cenote_umf_ops(), &wrong, &none));
    MUST(umfMemoryProviderCreate(cenote_umf_ops(), NULL, &none));
    umf_result_t made = umfMemoryProviderCreate(cenote_umf_ops(), &params, &provider);
    if (made)
        printf("%d: %s\n", (int)made, cenote_message());
    MUST(!made);
    MUST(!provider_alone(provider, stream));
    MUST(!under(umfProxyPoolOps(), NULL, provider));
    MUST(!umfDisjointPoolParamsCreate(&disjoint) && !under(umfDisjointPoolOps(), disjoint, provider));
    umfDisjointPoolParamsDestroy(disjoint);
    MUST(!umfMemoryProviderDestroy(provider));
    MUST(!cuCtxSynchronize() && !cuStreamDestroy(stream) && !cuDevicePrimaryCtxRelease(0));
    sim_books(&books);
    MUST(!sim_mismatches() && !books.violations && !books.handles && !books.streams);
    puts("umf: blocks came and went");
    return 0;
}
