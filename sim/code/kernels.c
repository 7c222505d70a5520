/*
 * kernels.c: launches of kernels, which do nothing: they have a place in the order of their stream and no effect. Those of kernels.def do what
 * their names say, but not in a capture.
 *
 * A launch is checked as far as CUDA checks it from outside: limits of grid, block and shared memory. What a kernel would have read or
 * written is not known here, so memory it would need is not looked up either, and parameters are not looked at.
 */
#include "sim/code/kernel.h"
#include "sim/memory/memory.h"

#define GRID_X_MAX 2147483647u
#define GRID_MAX 65535u        /* in y and z */
#define BLOCK_MAX 1024u        /* in x and y, and threads in all */
#define BLOCK_Z_MAX 64u
#define CLUSTER_MAX 8u         /* blocks, unless the function allows sizes that are not portable */
#define CLUSTER_LARGEST 16u
#define LOCAL_BYTES (32u << 20)
#define ATTRIBUTE_LAST 16u      /* of CUlaunchAttributeID */

/* Outside captures no work is built, and of a kernel nothing is remembered but when it is done: training launches thousands a step. */
static CUresult put(struct stream *s, const char *name, uint32_t function, const struct launch *l)
{
    CUresult result = capture_legacy_conflict(s, name);
    if (result)
        return result;
    if (!s->capture) {
        model.books.kernels++;
        unexplained_kernel();
        stream_extend(s, work_end(s, 0, 0));
        return CUDA_SUCCESS;
    }
    struct work work = {.kind = &work_kernel, .name = "kernel", .number = function ? function : function_named(0, name),
        .grid = {l->grid[0], l->grid[1], l->grid[2]}, .block = {l->block[0], l->block[1], l->block[2]}, .shared = l->shared};
    return work.number ? capture_add(s, &work) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult put_known(struct stream *s, unsigned known, void **parameters)
{
    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    struct work work = known_work(known, parameters);
    model.books.kernels++;
    unexplained_kernel();
    return work_put(s, &work);
}

CUresult sim_launch_kernel(CUstream stream, const char *name)
{
    static const struct launch one = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    struct stream *s;
    if (!name)
        name = "kernel";
    CUresult gone = model_gone();
    if (gone)
        return gone;
    if (model_thread()->in_host_function)
        return model_refuse_call(name);
    model_lock();
    CUresult result = model.initialised ? stream_find(stream, &s) : CUDA_ERROR_NOT_INITIALIZED;
    if (!result)
        result = put(s, name, 0, &one);
    model_unlock();
    return result;
}

static bool is_within(const unsigned size[3], unsigned x, unsigned y, unsigned z)
{
    return size[0] && size[1] && size[2] && size[0] <= x && size[1] <= y && size[2] <= z;
}

CUresult kernel_check(uint32_t function, int device, const struct launch *l)
{
    const int *limits = function_at(function)->attributes;
    uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    if (!is_within(l->grid, GRID_X_MAX, GRID_MAX, GRID_MAX) || !is_within(l->block, BLOCK_MAX, BLOCK_MAX, BLOCK_Z_MAX) ||
        threads > (uint64_t)limits[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK])
        return CUDA_ERROR_INVALID_VALUE;
    if (l->shared > (unsigned)limits[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES])
        return CUDA_ERROR_INVALID_VALUE;
    if (!l->cooperative)
        return CUDA_SUCCESS;
    uint64_t blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    return blocks > occupancy_resident(function, device, (int)threads, l->shared) ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_SUCCESS;
}

/* As before CUDA 4. PyCUDA makes these calls before cuLaunchKernel, which brings a block of its own; the launches that would use this one are not
   there (cuLaunchGrid). */
CUresult function_set_block(CUfunction function, int x, int y, int z)
{
    const struct launch l = {.grid = {1, 1, 1}, .block = {(unsigned)x, (unsigned)y, (unsigned)z}};
    uint32_t number = function_find(function, "cuFuncSetBlockShape");
    return number ? kernel_check(number, 0, &l) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult function_set_shared(CUfunction function, unsigned bytes)
{
    const struct launch l = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .shared = bytes};
    uint32_t number = function_find(function, "cuFuncSetSharedSize");
    return number ? kernel_check(number, 0, &l) : CUDA_ERROR_INVALID_HANDLE;
}

/* What registers do not hold: of the context, once a kernel was launched in it. */
static CUresult take_local_memory(uint32_t context)
{
    static const struct allocation_end local_end = {.close = plain_leave};
    struct context *c = context_at(context);
    uint32_t number;
    if (!sim_quirk(LOCAL_MEMORY) || c->has_local_memory)
        return CUDA_SUCCESS;
    CUresult result = plain_enter(ALLOCATION_INNER, &local_end, LOCAL_BYTES, &number);
    c->has_local_memory = !result;
    return result;
}

CUresult kernel_launch(CUfunction function, const struct launch *l, CUstream stream, void **parameters, void **extra)
{
    struct stream *s;
    uint32_t number = function_find(function, "cuLaunchKernel");
    if (!number)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = stream_find(stream, &s);
    if (result)
        return result;
    if (!function_is_usable(number, s->context))
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "cuLaunchKernel: the function is of another context than the stream");
    if (parameters && extra)
        return CUDA_ERROR_INVALID_VALUE;
    result = kernel_check(number, context_at(s->context)->device, l);
    if (!result)
        result = take_local_memory(s->context);
    unsigned known = function_at(number)->known;
    if (!result && known && !s->capture)
        return put_known(s, known, parameters);
    return result ? result : put(s, function_at(number)->name, number, l);
}

static CUresult check_cluster(uint32_t function, const CUlaunchConfig *c, const CUlaunchAttributeValue *v)
{
    unsigned x = v->clusterDim.x, y = v->clusterDim.y, z = v->clusterDim.z;
    bool large = function_at(function)->attributes[CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED];
    uint64_t most = large ? CLUSTER_LARGEST : CLUSTER_MAX;
    if (!x || !y || !z || x > most || y > most || z > most || (uint64_t)x * y * z > most)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    return c->gridDimX % x || c->gridDimY % y || c->gridDimZ % z ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
}

/* What a launch may ask for beside its size. Events are recorded after the launch. */
static CUresult read_attributes(uint32_t function, const CUlaunchConfig *c, struct launch *l, CUevent *event)
{
    CUresult result = c->numAttrs && !c->attrs ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (unsigned i = 0; i < c->numAttrs && !result; i++) {
        const CUlaunchAttributeValue *v = &c->attrs[i].value;
        switch ((int)c->attrs[i].id) {
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            l->cooperative = v->cooperative;
            break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            result = check_cluster(function, c, v);
            break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
            *event = v->programmaticEvent.event;
            break;
        case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
            *event = v->launchCompletionEvent.event;
            break;
        case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
            result = v->deviceUpdatableKernelNode.deviceUpdatable ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
            break;
        default: /* preferences: of scheduling, caches, priority */
            result = (unsigned)c->attrs[i].id > ATTRIBUTE_LAST ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        }
    }
    return result;
}

CUresult kernel_launch_with(const CUlaunchConfig *c, CUfunction function, void **parameters, void **extra, CUstream stream)
{
    CUevent event = NULL;
    uint32_t number = function_find(function, "cuLaunchKernelEx");
    if (!number || !c)
        return number ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    struct launch l = {{c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, false};
    CUresult result = read_attributes(number, c, &l, &event);
    if (c->hStream)
        stream = c->hStream;
    if (!result)
        result = kernel_launch(function, &l, stream, parameters, extra);
    return result || !event ? result : event_record(event, stream);
}
