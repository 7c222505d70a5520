/*
 * questions.c: what a program asks of memory: of an address, and how much is left; and the one thing that it may say of an address. For a block of
 * ours the answers are those that memory of cuMemAlloc or of a pool gives: the block is the allocation, not the pages under it, which other blocks
 * share and which may move when it is freed.
 *
 * The driver answers first, so that its errors are its own; what would tell of pages is then replaced. Under memory that was freed there may still
 * be pages: that is no memory to a program, whether the block is free or kept until a capture has ended.
 *
 * LOCKING: none.
 */
#include "plugins/preload/families.h"
#include "plugins/preload/hooks.h"
#include "plugins/preload/identities.h"
#include "plugins/preload/memory.h"
#include "plugins/preload/place.h"

#include <cenote/share.h>

/* The place of a live block. NULL: the driver's memory, or *is_gone: ours, and freed. */
static struct place *look(CUdeviceptr at, cenote_block *block, bool *is_gone)
{
    int error = at ? cenote_find((void *)(uintptr_t)at, block) : CENOTE_NOT_OURS;
    *is_gone = error == CENOTE_DOUBLE_FREE || (!error && memory_is_kept(block->start));
    return error || *is_gone ? NULL : place_of_pool(block->pool);
}

/* A block of another process: the driver knows its pages. */
static bool look_at_import(CUdeviceptr at, cenote_block *block)
{
    *block = (cenote_block){0};
    return !cenote_import_range((void *)(uintptr_t)at, &block->start, &block->requested);
}

CUresult serve_cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr at)
{
    cenote_block block;
    bool is_gone = false;
    if (!place_has_context() || !look(at, &block, &is_gone)) {
        CUresult result = real()->cuMemGetAddressRange_v2(start, size, at);
        if (result || is_gone || !look_at_import(at, &block))
            return !result && is_gone ? CUDA_ERROR_NOT_FOUND : result;
    }
    if (start)
        *start = (CUdeviceptr)(uintptr_t)block.start;
    if (size)
        *size = block.requested;
    return CUDA_SUCCESS;
}

/* Replaces what the driver said of the pages. */
static void answer(struct place *p, const cenote_block *block, CUpointer_attribute attribute, void *data)
{
    bool is_for_all = place_is_for_all(p, block);
    struct family *family = is_for_all ? NULL : family_of_block(p, block);
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: /* memory of pools has none */
        *(CUcontext *)data = is_for_all ? atomic_load(&p->context) : NULL;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = (CUdeviceptr)(uintptr_t)block->start;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = block->requested;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: /* a handle would be of a page, not of the block: cuMemRetainAllocationHandle refuses, too */
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)data = is_for_all;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = identity_of(p, block->start);
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)data = identity_synchronizes(block->start);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = family ? atomic_load(&family->handle) : NULL;
        break;
    }
}

/* As of memory of cuMemAlloc that another process has opened. */
static void answer_of_import(const cenote_block *block, CUpointer_attribute attribute, void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = (CUdeviceptr)(uintptr_t)block->start;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = block->requested;
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned *)data = 0;
        break;
    }
}

CUresult serve_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr at)
{
    cenote_block block;
    bool is_gone = false;
    CUresult result = real()->cuPointerGetAttribute(data, attribute, at);
    struct place *p = result ? NULL : look(at, &block, &is_gone);
    if (p)
        answer(p, &block, attribute, data);
    else if (!result && !is_gone && look_at_import(at, &block))
        answer_of_import(&block, attribute, data);
    return is_gone ? CUDA_ERROR_INVALID_VALUE : result;
}

CUresult serve_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr at)
{
    cenote_block block;
    bool is_gone = false;
    CUresult result = real()->cuPointerGetAttributes(count, attributes, data, at);
    struct place *p = result ? NULL : look(at, &block, &is_gone);
    if (is_gone)
        return real()->cuPointerGetAttributes(count, attributes, data, 0); /* zeros, as for every address that is none */
    bool is_imported = !result && !p && look_at_import(at, &block);
    for (unsigned i = 0; (p || is_imported) && i < count; i++)
        p ? answer(p, &block, attributes[i], data[i]) : answer_of_import(&block, attributes[i], data[i]);
    return result;
}

/* From now on each copy in the context has ended when its call returns, if that is a call that waits. */
static CUresult synchronize_copies(struct place *p)
{
#if CUDA_VERSION >= 12010
    const struct real *r = real();
    struct scope scope;
    unsigned flags;
    if (!r->cuCtxSetFlags)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = place_enter(p, &scope);
    if (!result)
        result = r->cuCtxGetFlags(&flags);
    if (!result && !(flags & CU_CTX_SYNC_MEMOPS))
        result = r->cuCtxSetFlags(flags | CU_CTX_SYNC_MEMOPS);
    place_leave(&scope);
    return result;
#else
    (void)p;
    return CUDA_ERROR_NOT_SUPPORTED;
#endif
}

/*
 * A library that sends memory by a network card (UCX, MPI) sets SYNC_MEMOPS, so that a copy is not still under way when the card reads. The driver
 * sets it for memory of cuMemAlloc, and refuses pages. For those there is a flag of the whole context: it stays set, whatever the program says of the
 * block later.
 */
CUresult serve_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr at)
{
    cenote_block block;
    bool is_gone;
    CUresult result = real()->cuPointerSetAttribute(value, attribute, at);
    struct place *p = look(at, &block, &is_gone);
    if (is_gone)
        return CUDA_ERROR_INVALID_VALUE;
    if (!p || (result && result != CUDA_ERROR_NOT_SUPPORTED) || !place_is_for_all(p, &block))
        return result;
    bool does = *(const unsigned *)value;
    if (result && (!does || !(result = synchronize_copies(p))))
        result = CUDA_SUCCESS;
    if (!result && !identity_set_synchronizes(p, block.start, does))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}

/*
 * What a program does to pages that it has mapped itself the driver refuses to do to memory of cuMemAlloc. Pages under a block are cenote's, also
 * when the block is freed, and those of another process are that one's. The driver is asked of address 0 instead, where no memory is: it may refuse
 * the call for another reason, and end a capture by that.
 */
static bool is_no_page_of_the_programs(CUdeviceptr at)
{
    cenote_block block;
    bool is_gone;
    return look(at, &block, &is_gone) || is_gone || look_at_import(at, &block);
}

static CUresult refused(CUresult of_none)
{
    return of_none ? of_none : CUDA_ERROR_INVALID_VALUE;
}

CUresult serve_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at)
{
    bool is_refused = is_no_page_of_the_programs((CUdeviceptr)(uintptr_t)at);
    return is_refused ? refused(real()->cuMemRetainAllocationHandle(handle, NULL)) : real()->cuMemRetainAllocationHandle(handle, at);
}

CUresult serve_cuMemUnmap(CUdeviceptr at, size_t size)
{
    return is_no_page_of_the_programs(at) ? refused(real()->cuMemUnmap(0, size)) : real()->cuMemUnmap(at, size);
}

CUresult serve_cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *list, size_t count)
{
    return is_no_page_of_the_programs(at) ? refused(real()->cuMemSetAccess(0, size, list, count)) : real()->cuMemSetAccess(at, size, list, count);
}

CUresult serve_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at)
{
    return is_no_page_of_the_programs(at) ? refused(real()->cuMemGetAccess(flags, location, 0)) : real()->cuMemGetAccess(flags, location, at);
}

/* Of a device: all that could be had there. What the pool holds and no block uses is free to the program, and so is what it has freed. */
static size_t all_left(struct place *p, size_t left)
{
    cenote_stats stats;
    if ((cenote_pool_stats)(p->pool, &stats, CENOTE_STATS_COUNTED))
        return left;
    uint64_t kept = memory_kept(p), used = stats.allocated.current > kept ? stats.allocated.current - kept : 0;
    uint64_t all = left + stats.cached.current + kept, most = stats.limit > used ? stats.limit - used : 0;
    return stats.limit && all > most ? most : all;
}

/* In any context of the device: what another context takes from the driver has cenote make room, too. */
CUresult serve_cuMemGetInfo_v2(size_t *left, size_t *total)
{
    CUdevice device;
    CUresult result = real()->cuMemGetInfo_v2(left, total);
    if (result || !left || real()->cuCtxGetDevice(&device))
        return result;
    for (int i = 0; i < PLACES_MAX; i++) {
        struct place *p = place_visit(i);
        if (!p)
            continue;
        *left = p->device == device ? all_left(p, *left) : *left;
        place_visit_end(p);
    }
    return result;
}
