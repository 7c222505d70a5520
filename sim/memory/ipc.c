/*
 * ipc.c: memory of cuMemAlloc handed to another process by cuIpcGetMemHandle, and refusals of what goes between processes in other ways.
 *
 * The 64 bytes of a handle say which file of which process holds the memory (files.c), where the allocation is in it, and carry a sum
 * over themselves: damage is found out, and the file has to name the same memory before it is believed. The other process opens the file
 * through /proc, which asks for the same user. Small allocations share a chunk: then the whole chunk is shared, though only the
 * allocation that was named can be reached.
 *
 *     cuIpcOpenMemHandle -> opened, 1 -> cuIpcOpenMemHandle again -> 2 -> cuIpcCloseMemHandle, twice -> unmapped
 *
 * To free memory that another process has open is undefined to CUDA: the exporter's cuMemFree counts it as a violation.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/machine/files.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

#define IPC_MAGIC 0x73696d68u

struct ipc_handle {
    uint32_t magic;
    int32_t  process;
    uint64_t started;       /* when that process did: its number may be another's by now */
    int32_t  file;
    uint32_t allocation;    /* unique in that process: memory freed and allocated anew has another handle */
    uint64_t id;            /* of the file */
    uint64_t offset;        /* of the allocation in it */
    uint64_t size;
    uint64_t reserved;
    uint64_t check;
};

_Static_assert(sizeof(struct ipc_handle) == sizeof(CUipcMemHandle), "64 bytes");

struct opened {
    uint64_t id;            /* of the file */
    uint32_t allocation;    /* in the other process */
    uint32_t here;          /* the allocation it is in this one; 0: free */
    uint32_t count;
};

static struct {
    struct opened *list;
    uint32_t       room;
    uint32_t       used;
} openings;

void ipc_reset(void)
{
    openings.used = 0;
}

/* The mapping is still there. */
static void note_open(uint32_t allocation, bool open)
{
    uint64_t at = allocation_at(allocation)->at;
    const struct mapping *m = virtual_mapping(at);
    shared_note_open(physical_at(m->physical), at - m->at, open);
}

static void forget_opening(uint32_t allocation)
{
    for (uint32_t i = 0; i < openings.used; i++) {
        if (openings.list[i].here != allocation)
            continue;
        openings.list[i] = openings.list[--openings.used];
        return;
    }
}

/* The last cuIpcCloseMemHandle, or the end of its context. */
static void close_opened(uint32_t allocation)
{
    note_open(allocation, false);
    forget_opening(allocation);
    uint64_t start = virtual_mapping(allocation_at(allocation)->at)->at;
    allocation_remove(allocation);
    virtual_own_unmap(start);
}

static const struct allocation_end opened_end = {.close = close_opened};

static struct opened *find_opened(uint64_t id, uint32_t allocation)
{
    for (uint32_t i = 0; i < openings.used; i++)
        if (openings.list[i].id == id && openings.list[i].allocation == allocation)
            return &openings.list[i];
    return NULL;
}

static struct opened *find_here(uint32_t allocation)
{
    for (uint32_t i = 0; allocation && i < openings.used; i++)
        if (openings.list[i].here == allocation)
            return &openings.list[i];
    return NULL;
}

static bool make_room(void)
{
    if (openings.used < openings.room)
        return true;
    uint32_t room = openings.room ? 2 * openings.room : 64;
    struct opened *list = realloc(openings.list, room * sizeof *list);
    if (!list)
        return false;
    openings.list = list;
    openings.room = room;
    return true;
}

CUresult ipc_get_memory(CUipcMemHandle *handle, CUdeviceptr at)
{
    const struct allocation *a = allocation_holding(at);
    if (!handle || !a || a->kind != ALLOCATION_PLAIN)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuIpcGetMemHandle: 0x%llx is not memory of cuMemAlloc", at);
    const struct mapping *m = virtual_mapping(a->at);
    struct ipc_handle h = {.magic = IPC_MAGIC, .process = getpid(), .started = process_own_start(), .allocation = a->id,
                           .offset = a->at - m->at, .size = a->size};
    CUresult result = shared_export_memory(m->physical, FILE_PLAIN_MEMORY, &h.file, &h.id);
    if (result)
        return result;
    h.check = file_check(&h, offsetof(struct ipc_handle, check));
    memcpy(handle, &h, sizeof h);
    return CUDA_SUCCESS;
}

/* As a driver does: memory of another device is opened to the context, as if cuCtxEnablePeerAccess had been called. */
static void open_to_context(int device)
{
    struct context *c = context_at(context_current());
    if (c->device != device)
        c->peers |= 1ull << device;
}

static CUresult map_opened(const struct ipc_handle *h, uint32_t physical, CUdeviceptr *at)
{
    uint64_t start, size = physical_at(physical)->size;
    int device = physical_at(physical)->device;
    if (!h->size || h->offset >= size || h->size > size - h->offset || !make_room()) {
        physical_drop(physical);
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuIpcOpenMemHandle: the handle is damaged");
    }
    CUresult result = virtual_own_enter(MAPPED_FOR_PLAIN, physical, NULL, &start);
    if (result)
        return result;
    uint32_t number = allocation_add(ALLOCATION_OPENED, &opened_end, start + h->offset, h->size);
    if (!number) {
        virtual_own_unmap(start);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation_at(number)->device = device;
    note_open(number, true);
    open_to_context(device);
    openings.list[openings.used++] = (struct opened){.id = h->id, .allocation = h->allocation, .here = number, .count = 1};
    *at = start + h->offset;
    return CUDA_SUCCESS;
}

static CUresult open_again(struct opened *o, CUdeviceptr *at)
{
    const struct allocation *a = allocation_at(o->here);
    if (a->context != context_current())
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuIpcOpenMemHandle: another context of this process has opened it");
    o->count++;
    *at = a->at;
    return CUDA_SUCCESS;
}

CUresult ipc_open_memory(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags)
{
    struct ipc_handle h;
    memcpy(&h, &handle, sizeof h);
    if (!at || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuIpcOpenMemHandle: flags 0x%x", flags);
    if (h.magic != IPC_MAGIC || h.check != file_check(&h, offsetof(struct ipc_handle, check)))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuIpcOpenMemHandle: these bytes are no handle of a simulated GPU");
    if (h.process == getpid() && h.started == process_own_start())
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuIpcOpenMemHandle: by the process that exported the memory");
    struct opened *o = find_opened(h.id, h.allocation);
    if (o)
        return open_again(o, at);
    int file = file_of_process(h.process, h.started, h.file);
    if (file < 0)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE,
                            "cuIpcOpenMemHandle: process %d, whose memory it is, has ended, has freed it, or is out of reach", h.process);
    uint32_t physical;
    CUresult result = shared_import_memory(file, FILE_PLAIN_MEMORY, h.id, &physical);
    close(file);
    if (result)
        return result == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_INVALID_HANDLE : result;
    return map_opened(&h, physical, at);
}

CUresult ipc_close_memory(CUdeviceptr at)
{
    uint32_t number = allocation_starting(at);
    struct opened *o = find_here(number);
    if (!o)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuIpcCloseMemHandle: 0x%llx is not what cuIpcOpenMemHandle gave", at);
    if (o->count == 1 && !clock_go_to(context_at(allocation_at(number)->context)->all_done))
        return MODEL_AGAIN;
    if (--o->count)
        return CUDA_SUCCESS;
    close_opened(number);
    return CUDA_SUCCESS;
}

/* --- pools between processes are not simulated: MEMPOOL_SUPPORTED_HANDLE_TYPES says so, and a call that asks nevertheless is refused */

static CUresult not_simulated(const char *call)
{
    static const char *said;
    if (said != call && !model.quiet)
        fprintf(stderr, "simulated GPU: %s: pools are not shared between processes here: not supported\n", call);
    said = call;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult pool_export(void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)shareable, (void)pool, (void)type, (void)flags;
    return not_simulated("cuMemPoolExportToShareableHandle");
}

CUresult pool_import(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)pool, (void)shareable, (void)type, (void)flags;
    return not_simulated("cuMemPoolImportFromShareableHandle");
}

CUresult pool_export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr at)
{
    (void)data, (void)at;
    return not_simulated("cuMemPoolExportPointer");
}

CUresult pool_import_pointer(CUdeviceptr *at, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    (void)at, (void)pool, (void)data;
    return not_simulated("cuMemPoolImportPointer");
}
