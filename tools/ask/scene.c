/*
 * scene.c: what a call is given. A scene is made before its state begins, for each call anew, and is never taken apart: some calls end what
 * they are given, and a real driver may crash on a handle that has ended. Memory goes back when the child ends.
 *
 * A part that the machine cannot make (green contexts, pools) is an error of scene_part, and its calls are not asked.
 */
#include "tools/ask/ask.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DO(call)                                                       \
    do {                                                               \
        CUresult result_ = s->d->call;                                 \
        if (result_)                                                   \
            return result_;                                            \
    } while (0)

/* The kernel writes a word; the simulated GPU knows it by its name (sim/code/kernels.def). */
static const char code[] =
    ".version 6.0\n.target sm_60\n.address_size 64\n"
    ".visible .global .align 4 .u32 word;\n"
    ".visible .entry pattern_write(.param .u64 at, .param .u64 words, .param .u64 pattern)\n"
    "{\n.reg .b64 %rd<4>;\n"
    "ld.param.u64 %rd1, [at];\n"
    "ld.param.u64 %rd2, [pattern];\n"
    "st.global.u64 [%rd1], %rd2;\n"
    "ret;\n}\n";

const char *scene_code(void)
{
    return code;
}

bool calls_find(struct calls *calls)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver)
        return false;
#define ALIAS(name, symbol, since)
#define PLAIN(name, symbol, since, need, capture, function, parameters, arguments) *(void **)&calls->symbol = dlsym(driver, #symbol);
#define STREAM(...) PLAIN(__VA_ARGS__)
#define DEFAULT(...) PLAIN(__VA_ARGS__)
#define INSIDE(...) PLAIN(__VA_ARGS__)
#include "sim/entries/entries.def"
#undef ALIAS
#undef PLAIN
#undef STREAM
#undef DEFAULT
#undef INSIDE
    return true;
}

CUstream scene_stream(const struct scene *s, enum on on)
{
    return on == ON_CAPTURED ? s->own : on == ON_BESIDE ? s->beside : NULL;
}

CUstream scene_destroyed(struct scene *s, CUstream stream)
{
    if (stream == s->own)
        s->own = NULL;
    else
        s->beside = NULL;
    return stream;
}

_Static_assert(4 * ROOM <= BYTES, "the places for answers are one piece of memory");

static void *map_anonymous(void)
{
    void *at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

CUresult scene_base(struct scene *s, const struct calls *calls)
{
    char *places = map_anonymous();
    *s = (struct scene){.d = calls, .a = places, .b = places + ROOM, .c = places + 2 * ROOM, .e = places + 3 * ROOM};
    if (!places || !(s->plain = map_anonymous()) || !(s->registered = map_anonymous()))
        return CUDA_ERROR_OUT_OF_MEMORY;
    DO(cuInit(0));
    DO(cuDeviceGet(&s->device, 0));
    DO(cuDevicePrimaryCtxRetain(&s->context, s->device));
    DO(cuCtxSetCurrent(s->context));
    DO(cuStreamCreate(&s->own, CU_STREAM_DEFAULT));
    DO(cuStreamCreate(&s->beside, CU_STREAM_NON_BLOCKING));
    DO(cuEventCreate(&s->event, CU_EVENT_DEFAULT));
    DO(cuEventCreate(&s->inside, CU_EVENT_DISABLE_TIMING));
    DO(cuMemAlloc_v2(&s->at, BYTES));
    DO(cuMemAlloc_v2(&s->to, BYTES));
    DO(cuMemsetD8_v2(s->at, 0, BYTES));
    DO(cuMemHostAlloc(&s->host, BYTES, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    DO(cuMemHostRegister_v2(s->registered, BYTES, 0));
    DO(cuDeviceGetPCIBusId(s->b, 64, s->device));
    DO(cuEventRecord(s->event, s->beside));
    return calls->cuStreamSynchronize(s->beside);
}

/* Another context, and the primary one retained once more than the child needs it. */
static CUresult make_other(struct scene *s)
{
    CUcontext again;
    DO(cuDevicePrimaryCtxRetain(&again, s->device));
    DO(cuCtxCreate_v2(&s->other, 0, s->device));
    DO(cuEventCreate(&s->shared_event, CU_EVENT_DISABLE_TIMING));
    return s->d->cuCtxSetCurrent(s->context);
}

static CUresult make_code(struct scene *s)
{
    static int file = -1;
    if (file < 0) {
        file = memfd_create("ask", 0);
        if (file < 0 || write(file, code, sizeof code) != sizeof code)
            return CUDA_ERROR_FILE_NOT_FOUND;
    }
    snprintf(s->path, sizeof s->path, "/proc/self/fd/%d", file);
    DO(cuModuleLoadData(&s->module, code));
    DO(cuModuleGetFunction(&s->function, s->module, "pattern_write"));
    if (s->d->cuLibraryLoadData) {
        DO(cuLibraryLoadData(&s->library, code, NULL, NULL, 0, NULL, NULL, 0));
        DO(cuLibraryGetKernel(&s->kernel, s->library, "pattern_write"));
    }
    static const uint64_t words = 1;
    s->parameters[0] = &s->at;
    s->parameters[1] = s->parameters[2] = (void *)&words;
    s->config = (CUlaunchConfig){.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    return CUDA_SUCCESS;
}

static void call_nothing(void *argument)
{
    (void)argument;
}

static void describe_nodes(struct scene *s)
{
    s->kernel_1 = (CUDA_KERNEL_NODE_PARAMS_v1){.func = s->function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1,
                                               .blockDimZ = 1, .kernelParams = s->parameters};
    s->kernel_2 = (CUDA_KERNEL_NODE_PARAMS_v2){.func = s->function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1,
                                               .blockDimZ = 1, .kernelParams = s->parameters};
    s->copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = s->at, .srcPitch = 64, .srcHeight = 1, .WidthInBytes = 64,
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = s->to, .dstPitch = 64, .dstHeight = 1, .Height = 1, .Depth = 1};
    s->fill = (CUDA_MEMSET_NODE_PARAMS_v1){.dst = s->at, .elementSize = 4, .width = 16, .height = 1};
    s->call = (CUDA_HOST_NODE_PARAMS_v1){.fn = call_nothing};
    s->take = (CUDA_MEM_ALLOC_NODE_PARAMS_v1){.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = s->device}}, .bytesize = BYTES};
    s->any = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET,
                                 .memset = {.dst = s->at, .elementSize = 4, .width = 16, .height = 1, .ctx = s->context}};
}

static CUresult make_graphs(struct scene *s)
{
    CUresult result = make_code(s);
    if (result)
        return result;
    describe_nodes(s);
    DO(cuGraphCreate(&s->graph, 0));
    DO(cuGraphCreate(&s->small, 0));
    DO(cuGraphAddEmptyNode(&s->first, s->small, NULL, 0));
    DO(cuGraphAddEmptyNode(&s->second, s->small, NULL, 0));
    DO(cuGraphAddKernelNode_v2(&s->node[NODE_KERNEL], s->graph, NULL, 0, &s->kernel_2));
    DO(cuGraphAddMemcpyNode(&s->node[NODE_COPY], s->graph, NULL, 0, &s->copy, s->context));
    DO(cuGraphAddMemsetNode(&s->node[NODE_FILL], s->graph, NULL, 0, &s->fill, s->context));
    DO(cuGraphAddHostNode(&s->node[NODE_CALL], s->graph, NULL, 0, &s->call));
    DO(cuGraphAddEventRecordNode(&s->node[NODE_RECORD], s->graph, NULL, 0, s->event));
    DO(cuGraphAddEventWaitNode(&s->node[NODE_WAIT], s->graph, NULL, 0, s->event));
    DO(cuGraphAddEmptyNode(&s->node[NODE_EMPTY], s->graph, NULL, 0));
    DO(cuGraphAddChildGraphNode(&s->node[NODE_CHILD], s->graph, NULL, 0, s->small));
    DO(cuGraphClone(&s->clone, s->graph));
    DO(cuGraphCreate(&s->memory, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 both = s->take;
    DO(cuGraphAddMemAllocNode(&s->alloc, s->memory, NULL, 0, &both));
    DO(cuGraphAddMemFreeNode(&s->give, s->memory, &s->alloc, 1, both.dptr));
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 kept = s->take;       /* cuGraphAddMemFreeNode is asked to free this one */
    DO(cuGraphAddMemAllocNode(&s->alloc, s->memory, NULL, 0, &kept));
    s->take.dptr = kept.dptr;
    DO(cuUserObjectCreate(&s->object, s, call_nothing, 4, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    DO(cuGraphRetainUserObject(s->graph, s->object, 1, 0));
    DO(cuGraphInstantiateWithFlags(&s->exec, s->graph, 0));
    return s->d->cuGraphUpload(s->exec, s->beside);
}

static CUresult make_pages(struct scene *s)
{
    s->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = s->device}};
    s->who = (CUmemAccessDesc){.location = s->prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DO(cuMemGetAllocationGranularity(&s->page_bytes, &s->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    DO(cuMemCreate(&s->page, s->page_bytes, &s->prop, 0));
    DO(cuMemCreate(&s->more, s->page_bytes, &s->prop, 0));
    DO(cuMemAddressReserve(&s->range, s->page_bytes, 0, 0, 0));
    DO(cuMemAddressReserve(&s->hole, s->page_bytes, 0, 0, 0));
    DO(cuMemMap(s->range, s->page_bytes, 0, s->page, 0));
    DO(cuMemSetAccess(s->range, s->page_bytes, &s->who, 1));
    return s->d->cuMemExportToShareableHandle(&s->file, s->page, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static CUresult make_pools(struct scene *s)
{
    int handles = 0;
    DO(cuDeviceGetAttribute(&handles, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, s->device));
    handles &= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    s->properties = (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = (CUmemAllocationHandleType)handles,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = s->device}};
    s->who = (CUmemAccessDesc){.location = s->properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DO(cuMemPoolCreate(&s->pool, &s->properties));
    DO(cuMemAllocFromPoolAsync(&s->drawn, BYTES, s->pool, s->beside));
    DO(cuStreamSynchronize(s->beside));
    if (!handles)
        return CUDA_SUCCESS;
    DO(cuMemPoolExportPointer(&s->letter, s->drawn));
    return s->d->cuMemPoolExportToShareableHandle(&s->pool_file, s->pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static CUresult make_green(struct scene *s)
{
    unsigned groups = 1;
    CUdevResource rest;
    if (!s->d->cuGreenCtxCreate)
        return CUDA_ERROR_NOT_SUPPORTED;
    DO(cuDeviceGetDevResource(s->device, &s->all, CU_DEV_RESOURCE_TYPE_SM));
    DO(cuDevSmResourceSplitByCount(&s->some, &groups, &s->all, &rest, 0, 8));
    DO(cuDevResourceGenerateDesc(&s->description, &s->some, 1));
    return s->d->cuGreenCtxCreate(&s->green, s->description, s->device, CU_GREEN_CTX_DEFAULT_STREAM);
}

static CUresult make_rest(struct scene *s)
{
    CUresult result = make_code(s);
    if (result)
        return result;
    DO(cuLinkCreate_v2(0, NULL, NULL, &s->link));
    DO(cuLinkAddData_v2(s->link, CU_JIT_INPUT_PTX, (void *)code, sizeof code, "ask", 0, NULL, NULL));
    DO(cuMemAllocManaged(&s->managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    DO(cuIpcGetMemHandle(&s->memory_handle, s->at));
    DO(cuEventCreate(&s->shared_event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    return s->d->cuIpcGetEventHandle(&s->event_handle, s->shared_event);
}

CUresult scene_part(struct scene *s, enum part part)
{
    switch (part) {
    case OTHER:  return make_other(s);
    case CODE:   return make_code(s);
    case GRAPHS: return make_graphs(s);
    case PAGES:  return make_pages(s);
    case POOLS:  return make_pools(s);
    case GREEN:  return make_green(s);
    case REST:   return make_rest(s);
    default:     return CUDA_SUCCESS;
    }
}

CUresult scene_lose(struct scene *s)
{
    uint64_t nowhere = 0, words = 1, pattern = 0;
    void *parameters[] = {&nowhere, &words, &pattern};
    CUresult result = make_code(s);
    if (result)
        return result;
    result = s->d->cuLaunchKernel(s->function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL); /* it may have run already, and say so */
    return result || s->d->cuCtxSynchronize() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}
