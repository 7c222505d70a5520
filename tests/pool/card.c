/* card.c: see card.h. Mappings are searched from end to end: tests are small. */
#include "tests/pool/card.h"

#include <string.h>

#define RESERVED_BASE 0x7f5000000000ull

struct made_card card;

void card_open(uint64_t page_bytes)
{
    memset(&card, 0, sizeof card);
    card.page_bytes = page_bytes;
}

void card_fail(uint32_t from, uint32_t to)
{
    card.calls = 0;
    card.fail_from = from;
    card.fail_to = to;
}

static bool fails(void)
{
    card.calls++;
    return card.fail_from && card.calls >= card.fail_from && card.calls <= card.fail_to;
}

static CUresult mistake(void)
{
    card.mistakes++;
    return CUDA_ERROR_INVALID_VALUE;
}

static bool exists(CUmemGenericAllocationHandle handle)
{
    return handle && handle < CARD_PAGES && card.created[handle];
}

/* The entry of that address; at 0 an entry not in use. NULL: there is none. */
static struct card_mapping *mapping_at(CUdeviceptr at)
{
    for (uint32_t i = 0; i < CARD_MAPPINGS; i++)
        if (card.mappings[i].at == at)
            return &card.mappings[i];
    return NULL;
}

uint32_t card_pages(void)
{
    uint32_t pages = 0;
    for (uint32_t handle = 1; handle < CARD_PAGES; handle++)
        pages += card.created[handle];
    return pages;
}

uint32_t card_mapped(void)
{
    uint32_t mapped = 0;
    for (uint32_t i = 0; i < CARD_MAPPINGS; i++)
        mapped += card.mappings[i].at != 0;
    return mapped;
}

CUmemGenericAllocationHandle card_at(CUdeviceptr at)
{
    const struct card_mapping *m = mapping_at(at);
    return m && m->access ? m->handle : 0;
}

CUmemGenericAllocationHandle card_create(void)
{
    for (uint32_t handle = 1; handle < CARD_PAGES; handle++)
        if (!card.created[handle]) {
            card.created[handle] = true;
            return handle;
        }
    return 0;
}

void card_map(CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
    struct card_mapping *m = mapping_at(0);
    if (m && !mapping_at(at) && exists(handle))
        *m = (struct card_mapping){.at = at, .handle = handle, .access = true};
    else
        card.mistakes++;
}

static CUresult entry_reserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!alignment || size % card.page_bytes || RESERVED_BASE % alignment || hint || flags || card.reserved_at)
        return mistake();
    card.reserved_at = *at = RESERVED_BASE;
    card.reserved_bytes = size;
    return CUDA_SUCCESS;
}

static CUresult entry_unreserve(CUdeviceptr at, size_t size)
{
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (at != card.reserved_at || size != card.reserved_bytes)
        return mistake();
    card.reserved_at = 0;
    return CUDA_SUCCESS;
}

static CUresult entry_create(CUmemGenericAllocationHandle *page, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (size != card.page_bytes || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.id != card_device.ordinal || flags)
        return mistake();
    *page = card_create();
    card.creates++;
    return *page ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult entry_release(CUmemGenericAllocationHandle page)
{
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!exists(page))
        return mistake();
    card.created[page] = false;
    return CUDA_SUCCESS;
}

static CUresult entry_map(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle page, unsigned long long flags)
{
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct card_mapping *m = mapping_at(0);
    if (!at || at % card.page_bytes || size != card.page_bytes || offset || flags || !exists(page) || mapping_at(at) || !m)
        return mistake();
    *m = (struct card_mapping){.at = at, .handle = page};
    card.maps++;
    return CUDA_SUCCESS;
}

static CUresult entry_unmap(CUdeviceptr at, size_t size)
{
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct card_mapping *m = at ? mapping_at(at) : NULL;
    if (!m || size != card.page_bytes)
        return mistake();
    *m = (struct card_mapping){0};
    card.unmaps++;
    return CUDA_SUCCESS;
}

static CUresult entry_grant(CUdeviceptr at, size_t size, const CUmemAccessDesc *who, size_t count)
{
    if (fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!size || size % card.page_bytes || count != 1 || who->location.id != card_device.ordinal ||
        who->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return mistake();
    for (CUdeviceptr end = at + size; at < end; at += card.page_bytes) {
        struct card_mapping *m = mapping_at(at);
        if (!m)
            return mistake();
        m->access = true;
    }
    card.grants++;
    return CUDA_SUCCESS;
}

static const struct driver card_driver = {
    .cuMemAddressReserve = entry_reserve,
    .cuMemAddressFree = entry_unreserve,
    .cuMemCreate = entry_create,
    .cuMemRelease = entry_release,
    .cuMemMap = entry_map,
    .cuMemUnmap = entry_unmap,
    .cuMemSetAccess = entry_grant,
};

static struct card all_contexts;
struct device card_device = {.driver = &card_driver, .card = &all_contexts, .ordinal = 3};
