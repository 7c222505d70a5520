/*
 * partitions.c: multiprocessors of a device as resources that green contexts are made of: counted, split, described.
 *
 * Not which multiprocessors a partition has, and nothing follows from their number: kernels take no time of their own. What this holds a program
 * to is what a Hopper driver answers: partitions of 8 at least, in steps of 8, and in a descriptor nothing but parts of one split.
 *
 *     of a device, or of a green context --split--> groups, and what remains --join--> descriptor --cuGreenCtxCreate--> green context
 *
 * LOCKING: the model's lock.
 */
#include <string.h>

#include "sim/machine/model.h"

#define DESCRIPTORS_MAX 4096    /* the driver has no call that ends one */
#define STEP 8u                 /* of compute capability 9.0 */
#define STEP_ALONE 2u           /* for programs that want no clusters */

struct descriptor {
    int      device;
    unsigned processors;
};

struct origin {                 /* in the padding of a CUdevResource, which is the driver's */
    int32_t  device;
    uint64_t split;             /* which one made it; 0: none, and it can be split */
};

static struct slots descriptors;
static uint64_t splits;

void partitions_reset(void)
{
    if (descriptors.items)
        slots_clear(&descriptors);
    else
        slots_open(&descriptors, sizeof(struct descriptor), DESCRIPTORS_MAX, SLOTS_OLDEST_FIRST);
}

static struct origin origin_of(const CUdevResource *resource)
{
    struct origin o;
    memcpy(&o, resource->_internal_padding, sizeof o);
    return o;
}

static void describe(CUdevResource *resource, struct origin o, unsigned processors, unsigned step)
{
    *resource = (CUdevResource){.type = processors ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID};
    if (!processors)
        return;
    resource->sm.smCount = processors;
    resource->sm.minSmPartitionSize = resource->sm.smCoscheduledAlignment = step;
    memcpy(resource->_internal_padding, &o, sizeof o);
}

void partition_describe(CUdevResource *resource, int device, unsigned processors)
{
    describe(resource, (struct origin){.device = device}, processors, STEP);
}

static CUresult answer(int device, unsigned processors, CUdevResource *resource, CUdevResourceType type)
{
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    partition_describe(resource, device, processors);
    return CUDA_SUCCESS;
}

static unsigned processors_of(int device)
{
    return (unsigned)device_attribute_of(visible_index(device), CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
}

CUresult partition_of_device(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    return device_exists(device) ? answer(device, processors_of(device), resource, type) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult partition_of_context(CUcontext context, CUdevResource *resource, CUdevResourceType type)
{
    uint32_t number = context ? context_find(context, "cuCtxGetDevResource") : context_top();
    CUresult result = number ? context_usable(number) : CUDA_ERROR_INVALID_CONTEXT;
    if (result)
        return result;
    const struct context *c = context_at(number);
    return answer(c->device, c->whole ? c->processors : processors_of(c->device), resource, type);
}

static bool is_partition(const CUdevResource *resource)
{
    return resource && resource->type == CU_DEV_RESOURCE_TYPE_SM && resource->sm.smCount && device_exists(origin_of(resource).device);
}

CUresult partition_split(CUdevResource *groups, unsigned *count, const CUdevResource *input, CUdevResource *remaining, unsigned flags,
                         unsigned least)
{
    unsigned step = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING ? STEP_ALONE : STEP;
    if (!count || flags & ~(unsigned)(CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE))
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_partition(input))
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (origin_of(input).split)
        return model_refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
                            "cuDevSmResourceSplitByCount: of what a split made: a green context comes between");
    unsigned total = input->sm.smCount, each = least ? (least + step - 1) / step * step : step;
    if (least > total || each > total)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    unsigned made = total / each;
    if (groups && *count < made)
        made = *count;
    *count = made;
    struct origin o = {.device = origin_of(input).device, .split = ++splits};
    for (unsigned i = 0; groups && i < made; i++)
        describe(&groups[i], o, each, step);
    if (remaining)
        describe(remaining, o, total - made * each, step);
    return CUDA_SUCCESS;
}

CUresult partition_join(CUdevResourceDesc *handle, const CUdevResource *resources, unsigned count)
{
    unsigned processors = 0;
    if (!handle || !resources || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (!is_partition(&resources[i]))
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        struct origin first = origin_of(&resources[0]), o = origin_of(&resources[i]);
        if (o.device != first.device || o.split != first.split || (i && !o.split))
            return model_refuse(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "cuDevResourceGenerateDesc: parts of several splits");
        processors += resources[i].sm.smCount;
    }
    uint32_t number = slots_take(&descriptors);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(struct descriptor *)slots_at(&descriptors, number) = (struct descriptor){origin_of(&resources[0]).device, processors};
    *handle = slots_handle(&descriptors, number);
    return CUDA_SUCCESS;
}

bool partition_of(CUdevResourceDesc handle, CUdevice device, unsigned *processors)
{
    uint32_t number = slots_number(&descriptors, handle);
    const struct descriptor *d = slots_at(&descriptors, number);
    *processors = d->processors;
    return number && d->device == device;
}
