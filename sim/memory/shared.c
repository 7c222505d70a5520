/*
 * shared.c: physical memory that several processes hold: cuMemExportToShareableHandle, cuMemImportFromShareableHandle, and what ipc.c
 * needs.
 *
 * When memory is exported its bytes move into a file of their own (files.c), once; from then on this process too has them there. A process that
 * imports the file maps it. The memory lives as long as a process holds it: each process keeps the file open while it has a handle or a mapping, and
 * a file descriptor on its way between processes holds it as well.
 *
 * A device has the memory once. It is charged to the process that exported it; those that import it pay nothing. When the exporter lets
 * go first, or dies: on a machine that processes share it stays charged to the device until the last one lets go (machine.c); without a
 * machine every process has a device of its own, and what others hold of it counts nowhere.
 */
#include <fcntl.h>
#include <unistd.h>

#include "sim/machine/machine.h"
#include "sim/memory/memory.h"

#define SHARED_MAX (1u << 20)

struct shared_memory {
    uint32_t number;        /* its own, among those of this process */
    int      file;
    uint64_t id;
    uint32_t kind;
    uint32_t record;        /* of the machine; 0: on none */
    bool     charged;       /* to this process */
    bool     exported;      /* by this process: counts in the budget of contents.c */
};

static struct slots memories;

/*
 * A process that has opened plain memory holds a lock on the byte of its file that the allocation begins at. The system keeps these for open files,
 * and lets go of them when a process ends.
 */
static struct flock byte_at(uint64_t offset, int type)
{
    return (struct flock){.l_type = (short)type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = 1};
}

void shared_note_open(const struct physical *p, uint64_t offset, bool open)
{
    struct flock byte = byte_at(offset, open ? F_RDLCK : F_UNLCK);
    if (p->shared)
        fcntl(p->shared->file, F_OFD_SETLK, &byte);
}

bool shared_is_open_elsewhere(const struct physical *p, uint64_t offset)
{
    struct flock byte = byte_at(offset, F_WRLCK);
    return p->shared && fcntl(p->shared->file, F_OFD_GETLK, &byte) == 0 && byte.l_type != F_UNLCK;
}

void shared_reset(void)
{
    for (uint32_t i = physical_next(0); i; i = physical_next(i))
        if (physical_at(i)->shared)
            contents_detach(physical_at(i)->offset, physical_at(i)->size, false);
    for (uint32_t i = 1; i < memories.used; i++)
        if (slots_is_live(&memories, i))
            close(((struct shared_memory *)slots_at(&memories, i))->file);
    if (memories.items)
        slots_clear(&memories);
}

/* Nothing is set aside for it before the first memory is shared. NULL: no more. */
static struct shared_memory *new_memory(void)
{
    if (!memories.items && !slots_open(&memories, sizeof(struct shared_memory), SHARED_MAX, SLOTS_NEWEST_FIRST))
        return NULL;
    uint32_t number = slots_take(&memories);
    struct shared_memory *shared = number ? slots_at(&memories, number) : NULL;
    if (shared)
        shared->number = number;
    return shared;
}

static void forget(struct shared_memory *shared)
{
    if (shared)
        slots_give(&memories, shared->number);
}

static void close_memory(struct physical *p)
{
    contents_detach(p->offset, p->size, p->shared->exported);
    close(p->shared->file);
    forget(p->shared);
    p->shared = NULL;
}

static void drop(struct physical *p)
{
    struct device *d = &model.devices[p->device];
    bool charged = p->shared->charged;
    uint32_t record = p->shared->record;
    if (!contents_are_shared(p->offset)) {
        contents_forget(p->offset, p->size);
        ranges_give(&d->free, p->offset, p->size);
    }
    close_memory(p);
    if (charged)
        model.books.used -= p->size;
    if (machine_joined && record) {
        d->used -= charged ? p->size : 0;
        machine_let_go(record, charged);
    } else if (charged) {
        device_give(p->device, p->size, false);
    }
}

/* Memory of the host is no machine's. */
static bool has_record(int device)
{
    return machine_joined && device != HOST_AREA;
}

static bool is_device(CUmemLocationType place)
{
    return place == CU_MEM_LOCATION_TYPE_DEVICE;
}

static struct file_header describe(const struct physical *p, enum file_kind kind, uint64_t id, uint32_t record)
{
    return (struct file_header){
        .kind = kind,
        .id = id,
        .size = p->size,
        .kept = contents_may_share(p->size) ? p->size : 0,
        .machine = machine_id(),
        .record = record,
        .device = visible_index(p->device),
        .place = (int32_t)p->prop.location.type,
        .place_id = is_device(p->prop.location.type) ? visible_index(p->prop.location.id) : p->prop.location.id,
        .handle_types = (uint32_t)p->prop.requestedHandleTypes,
    };
}

/* The file of memory, and in *at its bytes, if they are kept. -1: the system refused. */
static int create_file(struct file_header *header, void **at)
{
    int file = file_create(header);
    if (file < 0 || !header->kept)
        return file;
    *at = file_map(file, header->kept);
    if (!*at) {
        close(file);
        return -1;
    }
    return file;
}

static CUresult start_sharing(struct physical *p, enum file_kind kind)
{
    void *at = NULL;
    struct shared_memory *shared = new_memory();
    uint64_t id = file_new_id();
    uint32_t record = has_record(p->device) ? machine_record(id, visible_index(p->device), p->size) : 0;
    bool fits = shared && id && (record || !has_record(p->device));
    struct file_header header = describe(p, kind, id, record);
    int file = fits ? create_file(&header, &at) : -1;
    if (file < 0) {
        forget(shared);
        if (record)
            machine_let_go(record, false);
        return fits ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_OUT_OF_MEMORY;
    }
    shared->file = file;
    shared->id = id;
    shared->kind = kind;
    shared->record = record;
    shared->charged = true;
    shared->exported = at;
    p->shared = shared;
    p->drop = drop;
    if (!at) {
        contents_drop();
        return CUDA_SUCCESS;
    }
    uint64_t offset = p->offset;
    p->offset = contents_export(offset, p->size, at);
    ranges_give(&model.devices[p->device].free, offset, p->size);
    return CUDA_SUCCESS;
}

CUresult shared_export_memory(uint32_t number, enum file_kind kind, int *file, uint64_t *id)
{
    struct physical *p = physical_at(number);
    CUresult result = p->shared ? CUDA_SUCCESS : start_sharing(p, kind);
    if (result)
        return result;
    *file = p->shared->file;
    *id = p->shared->id;
    return CUDA_SUCCESS;
}

static uint32_t find_shared(uint64_t id)
{
    for (uint32_t i = physical_next(0); i; i = physical_next(i))
        if (physical_at(i)->shared && physical_at(i)->shared->id == id)
            return i;
    return 0;
}

/* In files devices go by their index on the machine; once read, by their ordinal. False: this process does not see that one. */
static bool number_as_here(struct file_header *h)
{
    bool hidden = h->device >= 0 && h->device < model.shape.devices && visible_ordinal(h->device) < 0;
    h->device = visible_ordinal(h->device);
    if (is_device((CUmemLocationType)h->place))
        h->place_id = visible_ordinal(h->place_id);
    return !hidden;
}

/* The header is whole; is it about memory that can be on this machine? */
static bool describes_memory(const struct file_header *h, enum file_kind kind)
{
    int area;
    CUmemLocation place = {.type = (CUmemLocationType)h->place, .id = h->place_id};
    if (h->handle_types & ~(uint32_t)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC))
        return false;
    if (kind == FILE_CREATED_MEMORY && (!location_area(&place, &area) || area != h->device))
        return false;
    if (kind == FILE_PLAIN_MEMORY && !device_exists(h->device))
        return false;
    return h->size && h->size % model.shape.granularity == 0 && h->size <= model.devices[h->device].capacity;
}

/* Charged to: the process that pays already; else this one, if it made the memory or is on a machine where no process pays. */
static CUresult charge(const struct file_header *h, struct shared_memory *shared)
{
    bool own = h->process == getpid() && h->started == process_own_start();
    if (has_record(h->device))
        shared->record = machine_hold(h->record, h->id, visible_index(h->device), h->size);
    if (shared->record || (!own && !has_record(h->device)))
        return CUDA_SUCCESS;
    if (!device_take(h->device, h->size, false))
        return CUDA_ERROR_OUT_OF_MEMORY;
    model.books.used += h->size;
    shared->charged = true;
    if (has_record(h->device))
        shared->record = machine_record(h->id, visible_index(h->device), h->size);
    return CUDA_SUCCESS;
}

static struct physical as_physical(const struct file_header *h, struct shared_memory *shared, void *at)
{
    struct physical p = {.offset = contents_import(at), .shared = shared, .drop = drop, .size = h->size, .device = h->device};
    p.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.prop.location = (CUmemLocation){.type = (CUmemLocationType)h->place, .id = h->place_id};
    p.prop.requestedHandleTypes = (CUmemAllocationHandleType)h->handle_types;
    return p;
}

static CUresult attach(int file, const struct file_header *h, uint32_t *number)
{
    struct shared_memory *shared = new_memory();
    if (!shared)
        return CUDA_ERROR_OUT_OF_MEMORY;
    shared->file = fcntl(file, F_DUPFD_CLOEXEC, 0);
    shared->id = h->id;
    shared->kind = h->kind;
    void *at = shared->file >= 0 && h->kept ? file_map(shared->file, h->kept) : NULL;
    if (shared->file < 0 || (h->kept && !at)) {
        if (shared->file >= 0)
            close(shared->file);
        forget(shared);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    CUresult result = charge(h, shared);
    struct physical p = as_physical(h, shared, at);
    if (result) {
        close_memory(&p);
        return result;
    }
    *number = physical_enter(&p);
    if (*number)
        return CUDA_SUCCESS;
    drop(&p);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult shared_import_memory(int file, enum file_kind kind, uint64_t id, uint32_t *number)
{
    struct file_header header;
    bool whole = file_read(file, &header) && header.kind == (uint32_t)kind;
    if (whole && !number_as_here(&header))
        return model_refuse(CUDA_ERROR_INVALID_DEVICE, "import of memory: it is on a device that CUDA_VISIBLE_DEVICES hides");
    if (!whole || !describes_memory(&header, kind))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "import of memory: file %d is no memory, or none that this machine could have", file);
    if (header.machine != machine_id())
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "import of memory: it is on another machine (CENOTE_SIM=machine:...)");
    if (id && header.id != id)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "import of memory: it was freed since");
    *number = find_shared(header.id);
    return *number ? CUDA_SUCCESS : attach(file, &header, number);
}

CUresult shared_export(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags)
{
    uint32_t number = physical_find(handle);
    if (!shareable || !number || flags)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemExportToShareableHandle: 0x%llx is no handle", handle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!(physical_at(number)->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemExportToShareableHandle: memory created without that handle type");
    int file;
    uint64_t id;
    CUresult result = shared_export_memory(number, FILE_CREATED_MEMORY, &file, &id);
    if (result)
        return result;
    int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (copy < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shareable = copy;
    return CUDA_SUCCESS;
}

CUresult shared_import(CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type)
{
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    uint32_t number;
    CUresult result = shared_import_memory((int)(intptr_t)shareable, FILE_CREATED_MEMORY, 0, &number);
    if (result)
        return result;
    physical_at(number)->handles++;
    model.books.handles++;
    *handle = physical_handle(number);
    return CUDA_SUCCESS;
}
