/* pointers.c: what an address is: cuPointerGetAttribute and cuMemGetAddressRange. */
#include "sim/memory/memory.h"

/* What is known of an address, whatever made it. */
struct pointer {
    const struct allocation *allocation;    /* or NULL */
    const struct mapping    *mapping;       /* of the program, or NULL */
    bool     host;
    int      device;
    uint64_t start, size;           /* of the allocation or mapping */
    uint64_t range_start, range_size;   /* of the reservation, for mappings */
};

static bool find(uint64_t at, struct pointer *p)
{
    *p = (struct pointer){.allocation = allocation_holding(at)};
    if (p->allocation) {
        p->host = p->allocation->residence == ON_HOST;
        p->device = p->allocation->device;
        p->start = p->range_start = p->allocation->at;
        p->size = p->range_size = p->allocation->size;
        return !p->allocation->freed && p->allocation->kind < ALLOCATION_INNER;
    }
    p->mapping = virtual_mapping(at);
    if (!p->mapping || p->mapping->owner != MAPPED_BY_PROGRAM)
        return false;
    int area = physical_at(p->mapping->physical)->device;
    const struct range *r = virtual_reservation(at);
    p->host = area == HOST_AREA;
    p->device = p->host ? 0 : area;
    p->start = p->mapping->at;
    p->size = p->mapping->size;
    p->range_start = r->start;
    p->range_size = r->size;
    return true;
}

/* Memory of pools is of a device and of no context: libraries such as UCX look for it in the current one. */
static CUcontext context_of(const struct pointer *p)
{
    const struct allocation *a = p->allocation;
    return a && a->context && a->kind != ALLOCATION_POOL ? slots_handle(&model.contexts, a->context) : NULL;
}

static CUmemoryPool pool_of(const struct pointer *p)
{
    return p->allocation && p->allocation->kind == ALLOCATION_POOL ? pool_handle(p->allocation->pool) : NULL;
}

static bool is_managed(const struct pointer *p)
{
    return p->allocation && p->allocation->residence == MANAGED;
}

static uint64_t buffer_of(const struct pointer *p)
{
    return p->allocation ? p->allocation->id : physical_at(p->mapping->physical)->generation;
}

static unsigned handle_types_of(const struct pointer *p)
{
    return p->mapping ? (unsigned)physical_at(p->mapping->physical)->prop.requestedHandleTypes : 0;
}

static bool is_made_for_rdma(const struct pointer *p)
{
    return p->mapping && physical_at(p->mapping->physical)->prop.allocFlags.gpuDirectRDMACapable;
}

#if CUDA_VERSION >= 12080
static bool is_for_decompression(const struct pointer *p)
{
    if (!sim_quirk(DECOMPRESSION) && !sim_quirk(DECOMPRESSION_REFUSED))
        return false;
    if (p->mapping)
        return physical_at(p->mapping->physical)->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
    return p->allocation->kind == ALLOCATION_POOL ? pool_decompresses(p->allocation->pool) : p->allocation->kind == ALLOCATION_PLAIN;
}
#endif

CUresult pointer_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr at)
{
    struct pointer p;
    if (!value || !find(at, &p))
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
#define POINTER(name, type, result)             \
    case CU_POINTER_ATTRIBUTE_##name:           \
        *(type *)value = (type)(result);        \
        return CUDA_SUCCESS;
#include "sim/memory/pointers.def"
#undef POINTER
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* The one attribute that can be set, of memory of cuMemAlloc and of the host: a real driver refuses it for pages (openucx/ucx issue 9895). */
CUresult pointer_set_attribute(const void *value, CUpointer_attribute attribute, CUdeviceptr at)
{
    struct pointer p;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !find(at, &p))
        return CUDA_ERROR_INVALID_VALUE;
    struct allocation *a = allocation_holding(at);
    if (!a || a->kind == ALLOCATION_POOL)
        return CUDA_ERROR_NOT_SUPPORTED;
    a->synchronizes = *(const unsigned *)value != 0;
    return CUDA_SUCCESS;
}

static CUresult clear(void *value, CUpointer_attribute attribute)
{
    switch ((int)attribute) {
#define POINTER(name, type, result)             \
    case CU_POINTER_ATTRIBUTE_##name:           \
        *(type *)value = (type)0;               \
        return CUDA_SUCCESS;
#include "sim/memory/pointers.def"
#undef POINTER
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* Unlike the single question, an unknown address is no error here: everything reads as zero. */
CUresult pointer_attributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr at)
{
    if (!count || !attributes || !values)
        return CUDA_ERROR_INVALID_VALUE;
    struct pointer p;
    bool known = find(at, &p);
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && !result; i++)
        result = known ? pointer_attribute(values[i], attributes[i], at) : clear(values[i], attributes[i]);
    return result;
}

/* Of pinned host memory, too: Numba asks for that of mapped arrays. */
CUresult pointer_range(CUdeviceptr *start, size_t *size, CUdeviceptr at)
{
    struct pointer p;
    if (!find(at, &p))
        return CUDA_ERROR_NOT_FOUND;
    if (start)
        *start = p.start;
    if (size)
        *size = p.size;
    return CUDA_SUCCESS;
}
