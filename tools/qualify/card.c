/* card.c: the card in a child process: its context, kernels, streams and pages. Nothing closes the card; it goes back when the child ends. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/qualify/kernels.h"
#include "tools/qualify/qualify.h"

#define BLOCK 256u          /* threads */
#define GRID_MAX 1024u      /* blocks */
#define SUM_BYTES 4096

void card_note(struct card *card, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(card->note, sizeof card->note, format, list);
    va_end(list);
}

enum outcome card_failed(struct card *card, const char *call, CUresult result)
{
    const char *name = strrchr(call, '>');  /* `call` is text such as card->d->cuMemMap(...) */
    name = strncmp(call, "mapped_", 7) == 0 ? card->call : name ? name + 1 : call;
    if (strncmp(name, "more.", 5) == 0)
        name += 5;
    card_note(card, "%.*s: %s", (int)strcspn(name, "("), name, driver_result_name(result));
    card->cause = result == CUDA_ERROR_OUT_OF_MEMORY ? SHORTAGE : REFUSAL;
    return FAILS;
}

enum outcome card_judge(struct card *card, uint64_t differences)
{
    if (!differences)
        return HOLDS;
    card_note(card, "%llu words were not what had been written", (unsigned long long)differences);
    card->cause = CONTENTS;
    return FAILS;
}

int card_attribute(const struct card *card, CUdevice_attribute attribute)
{
    int value = 0;
    card->d->cuDeviceGetAttribute(&value, attribute, card->device);
    return value;
}

uint64_t card_pattern(struct card *card)
{
    card->pattern += 0x0101010101010101u;
    return card->pattern;
}

/* Looks up calls.def. The pointers are copied, because C has no cast from void * to a function pointer; in POSIX both have the same bits. */
static void find_more(struct more_calls *more)
{
    const char *name = getenv("CENOTE_DRIVER");
    void *library = dlopen(name && *name ? name : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CUresult (*ask)(const char *, void **, int, cuuint64_t, int *) = NULL;
    CUresult (*ask_old)(const char *, void **, int, cuuint64_t) = NULL;
    void *found = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    memcpy(&ask, &found, sizeof ask);
    found = library ? dlsym(library, "cuGetProcAddress") : NULL;
    memcpy(&ask_old, &found, sizeof ask_old);
#define CALL(name, version, parameters)                                                                 \
    found = NULL;                                                                                       \
    if (ask ? ask(#name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL) :                     \
        !ask_old || ask_old(#name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM))                 \
        found = NULL;                                                                                   \
    memcpy(&more->name, &found, sizeof found);
#include "tools/qualify/calls.def"
#undef CALL
}

static CUresult load_kernels(struct card *card, const struct card_facts *facts)
{
    static const char *const names[KERNELS] = {"pattern_write", "pattern_count", "pattern_wait", "pattern_write_early", "pattern_count_late"};
    CUmodule modules[2] = {NULL, NULL};
    CUresult result = card->more.cuModuleLoadData(&modules[0], kernels_ptx);
    if (!result && facts->major >= 9 && card->more.cuLaunchKernelEx)
        result = card->more.cuModuleLoadData(&modules[1], kernels_dependent_ptx);
    for (int i = 0; i < KERNELS && !result; i++) {
        CUmodule module = modules[i >= PATTERN_WRITE_EARLY];
        if (module)
            result = card->more.cuModuleGetFunction(&card->kernels[i], module, names[i]);
    }
    return result;
}

static CUresult ask_facts(struct card *card, struct card_facts *facts)
{
    size_t bytes = 0;
    CUresult result = card->d->cuDeviceGet(&card->device, card->ordinal);
    if (!result)
        result = card->more.cuDeviceGetName(facts->name, sizeof facts->name, card->device);
    if (!result)
        result = card->d->cuDeviceTotalMem(&bytes, card->device);
    facts->bytes = bytes;
    facts->driver_version = driver_version();
    facts->major = card_attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    facts->minor = card_attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    return result;
}

/* Runs each kernel that the steps rely on once, because a driver may load a kernel at its first launch, and wait for the card then. */
static CUresult make_streams(struct card *card)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < QUALIFY_STREAMS && !result; i++)
        result = card->more.cuStreamCreate(&card->streams[i], CU_STREAM_NON_BLOCKING);
    if (!result)
        result = card->d->cuMemAlloc(&card->sum, SUM_BYTES);
    if (!result)
        result = card_write(card, card->streams[0], card->sum, sizeof(uint64_t), 0);
    if (!result)
        result = card_count(card, card->streams[0], card->sum, sizeof(uint64_t), 0);
    if (!result)
        result = card_wait(card, card->streams[0], 1);
    return result ? result : card->more.cuStreamSynchronize(card->streams[0]);
}

static void ask_granularity(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    size_t granularity = 0;
    if (card->d->cuMemCreate && card_attribute(card, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
        !card->d->cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM))
        card->granularity = granularity;
}

bool card_open(struct card *card, int ordinal, struct card_facts *facts)
{
    int error;
    CUresult result;
    card->ordinal = ordinal;
    card->d = driver_table(&error);
    if (!card->d) {
        card_note(card, "%s", driver_load_message());
        return false;
    }
    find_more(&card->more);
    if (!card->more.cuStreamBeginCapture || !card->more.cuLaunchKernel) {
        card_note(card, "the driver is older than CUDA 11.3");
        return false;
    }
    if ((result = ask_facts(card, facts)))
        card_failed(card, "cuDeviceGet", result);
    else if ((result = card->d->cuDevicePrimaryCtxRetain(&card->context, card->device)) || (result = card->d->cuCtxPushCurrent(card->context)))
        card_failed(card, "cuDevicePrimaryCtxRetain", result);
    else if ((result = load_kernels(card, facts)))
        card_failed(card, "cuModuleLoadData", result);
    else if ((result = make_streams(card)))
        card_failed(card, "a first kernel", result);
    else
        ask_granularity(card);
    return !result;
}

/* --- kernels */

CUresult card_launch(struct card *card, enum kernel kernel, CUstream stream, uint64_t words, void **parameters, bool early)
{
    uint64_t blocks = (words + BLOCK - 1) / BLOCK;
    unsigned grid = blocks < GRID_MAX ? (unsigned)blocks : GRID_MAX;
    if (!early)
        return card->more.cuLaunchKernel(card->kernels[kernel], grid, 1, 1, words > 1 ? BLOCK : 1, 1, 1, 0, stream, parameters, NULL);
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {.gridDimX = grid, .gridDimY = 1, .gridDimZ = 1, .blockDimX = BLOCK, .blockDimY = 1, .blockDimZ = 1,
                             .hStream = stream, .attrs = &attribute, .numAttrs = 1};
    return card->more.cuLaunchKernelEx(&config, card->kernels[kernel], parameters, NULL);
}

CUresult card_write(struct card *card, CUstream stream, CUdeviceptr at, size_t bytes, uint64_t pattern)
{
    uint64_t words = bytes / sizeof pattern;
    return card_launch(card, PATTERN_WRITE, stream, words, (void *[]){&at, &words, &pattern}, false);
}

CUresult card_count(struct card *card, CUstream stream, CUdeviceptr at, size_t bytes, uint64_t pattern)
{
    uint64_t words = bytes / sizeof pattern;
    return card_launch(card, PATTERN_COUNT, stream, words, (void *[]){&at, &words, &pattern, &card->sum}, false);
}

CUresult card_wait(struct card *card, CUstream stream, uint64_t ns)
{
    return card_launch(card, PATTERN_WAIT, stream, 1, (void *[]){&ns}, false);
}

CUresult card_differences(struct card *card, uint64_t *found)
{
    uint64_t sum = 0;
    CUresult result = card->more.cuMemcpyDtoH(&sum, card->sum, sizeof sum);
    *found = sum - card->sum_seen;
    card->sum_seen = sum;
    return result;
}

/* --- pages */

CUmemAllocationProp card_prop(const struct card *card)
{
    CUmemAllocationProp prop = {0};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = card->ordinal;
    return prop;
}

CUresult card_open_access(const struct card *card, CUdeviceptr at, size_t bytes)
{
    CUmemAccessDesc access = {0};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = card->ordinal;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return card->d->cuMemSetAccess(at, bytes, &access, 1);
}

CUresult mapped_make(struct card *card, const CUmemAllocationProp *prop, unsigned times, struct mapped *out)
{
    *out = (struct mapped){.size = card->granularity, .times = times};
    card->call = "cuMemAddressReserve";
    CUresult result = card->d->cuMemAddressReserve(&out->at, times * out->size, 0, 0, 0);
    if (result)
        return result;
    card->call = "cuMemCreate";
    if ((result = card->d->cuMemCreate(&out->page, out->size, prop, 0)))
        return result;
    card->call = "cuMemMap";
    for (unsigned i = 0; i < times && !result; i++)
        result = card->d->cuMemMap(out->at + i * out->size, out->size, 0, out->page, 0);
    if (result)
        return result;
    card->call = "cuMemSetAccess";
    return card_open_access(card, out->at, times * out->size);
}

CUresult mapped_end(struct card *card, const struct mapped *m)
{
    card->call = "cuMemUnmap";
    CUresult result = card->d->cuMemUnmap(m->at, m->times * m->size);
    if (result)
        return result;
    card->call = "cuMemRelease";
    if ((result = card->d->cuMemRelease(m->page)))
        return result;
    card->call = "cuMemAddressFree";
    return card->d->cuMemAddressFree(m->at, m->times * m->size);
}
