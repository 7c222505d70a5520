/*
 * virtual.c: device addresses: one large reservation that the CPU cannot read, divided in slots of the granularity; reservations of the
 * program and of the model's own allocations; mappings; and the page table, one word for each slot.
 *
 * The whole range is reserved once, so that no program meets the system's limit on mappings, and a table by slot finds a mapping in one
 * step. Access rights belong to whole mappings, as cuMemSetAccess demands.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "sim/machine/cost.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

#define SPACE_MAX (16ull << 40)        /* of device addresses; less where the system gives less */
#define SLOTS_IN_SPACE (1ull << 26)     /* most slots of the page table: bounds it to 256 MiB, committed as used */
#define MAPPINGS_MAX (1u << 22)

static struct {
    uint64_t       start;           /* of device addresses */
    uint64_t       reserved_bytes;  /* from the system */
    uint64_t       bytes;           /* in use with this granularity */
    uint64_t       slot;            /* bytes of a slot: the granularity */
    uint32_t      *table;           /* slot -> mapping, 0: none */
    struct ranges  free;
    struct ranges  reservations;    /* of the program; value: slots mapped */
    struct ranges  own;             /* of the model, for memory that comes later; value: the owner's */
    struct slots   mappings;
} space;

static bool reserve_space(void)
{
    for (uint64_t bytes = SPACE_MAX; bytes >= 1ull << 36; bytes /= 2) {
        void *start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED)
            continue;
        space.start = (uint64_t)start;
        space.reserved_bytes = bytes;
        return true;
    }
    return false;
}

bool virtual_reset(void)
{
    size_t table_bytes = SLOTS_IN_SPACE * sizeof *space.table;
    if (!space.start) {
        void *table = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (table == MAP_FAILED || !reserve_space() || !slots_open(&space.mappings, sizeof(struct mapping), MAPPINGS_MAX, SLOTS_NEWEST_FIRST))
            return false;
        space.table = table;
    } else {
        madvise(space.table, table_bytes, MADV_DONTNEED);
        slots_clear(&space.mappings);
    }
    ranges_clear(&space.free);
    ranges_clear(&space.reservations);
    ranges_clear(&space.own);
    space.slot = model.shape.granularity;
    uint64_t first = (space.start + space.slot - 1) / space.slot * space.slot;
    space.bytes = (space.start + space.reserved_bytes - first) / space.slot * space.slot;
    if (space.bytes > SLOTS_IN_SPACE * space.slot)
        space.bytes = SLOTS_IN_SPACE * space.slot;
    return ranges_give(&space.free, first, space.bytes);
}

bool virtual_is_device_address(uint64_t at)
{
    return at - space.start < space.reserved_bytes;
}

static uint32_t *slot_of(uint64_t at)
{
    uint64_t first = (space.start + space.slot - 1) / space.slot * space.slot;
    return &space.table[(at - first) / space.slot];
}

static bool in_space(uint64_t at)
{
    uint64_t first = (space.start + space.slot - 1) / space.slot * space.slot;
    return at - first < space.bytes;
}

static struct mapping *mapping_at(uint32_t number)
{
    return slots_at(&space.mappings, number);
}

struct mapping *virtual_mapping(uint64_t at)
{
    uint32_t number = in_space(at) ? *slot_of(at) : 0;
    return number ? mapping_at(number) : NULL;
}

struct range *virtual_reservation(uint64_t at)
{
    return ranges_holding(&space.reservations, at);
}

static uint64_t whole_slots(uint64_t bytes)
{
    return (bytes + space.slot - 1) / space.slot * space.slot;
}

CUresult virtual_reserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!model.shape.vmm || sim_quirk(VMM_LIES))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!at || !size || size % page || hint % page || (alignment & (alignment - 1)) || flags)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemAddressReserve: %zu bytes, alignment %zu", size, alignment);
    if (size > space.bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t bytes = whole_slots(size);
    if (model.shape.address_space && model.books.reserved + bytes > model.shape.address_space)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t step = alignment > space.slot ? alignment : space.slot;
    uint64_t start = hint;
    if (!hint || hint % step || !ranges_take_at(&space.free, hint, bytes)) {
        if (!ranges_take(&space.free, bytes, step, &start))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!ranges_add(&space.reservations, start, size, 0)) {
        ranges_give(&space.free, start, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    model.books.reserved += bytes;
    model.books.reservations++;
    *at = start;
    return CUDA_SUCCESS;
}

CUresult virtual_free(CUdeviceptr at, size_t size)
{
    const struct range *r = ranges_holding(&space.reservations, at);
    if (!r || r->start != at || r->size != size)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree: 0x%llx, %zu bytes: not exactly a reservation", at, size);
    if (r->value)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree: 0x%llx has mappings", at);
    uint64_t bytes = whole_slots(size);
    ranges_remove(&space.reservations, at);
    ranges_give(&space.free, at, bytes);
    model.books.reserved -= bytes;
    model.books.reservations--;
    return CUDA_SUCCESS;
}

/* Enters `size` bytes of `physical` in the page table. 0: no more mappings. */
static uint32_t enter(uint64_t at, uint64_t size, uint32_t physical)
{
    uint32_t number = slots_take(&space.mappings);
    if (!number)
        return 0;
    *mapping_at(number) = (struct mapping){.at = at, .size = size, .physical = physical};
    physical_at(physical)->mappings++;
    for (uint64_t i = 0; i < size; i += space.slot)
        *slot_of(at + i) = number;
    return number;
}

static void leave(struct mapping *m)
{
    uint32_t number = *slot_of(m->at);
    for (uint64_t i = 0; i < m->size; i += space.slot)
        *slot_of(m->at + i) = 0;
    physical_drop_mapping(m->physical);
    slots_give(&space.mappings, number);
}

CUresult virtual_map(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    uint32_t number = physical_find(handle);
    if (!number)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap: 0x%llx is no handle, or it was released", handle);
    uint64_t whole = physical_at(number)->size;
    if (!size || at % space.slot || size % space.slot || offset % space.slot || flags || offset > whole || size > whole - offset)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap: 0x%llx, %zu bytes, offset %zu do not fit the granularity or the handle", at,
                            size, offset);
    if (size < whole) /* as an H200 answers: driver 580.159 */
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "cuMemMap: %zu bytes, offset %zu are a part of a handle of %llu bytes", size, offset,
                            (unsigned long long)whole);
    struct range *r = ranges_holding(&space.reservations, at);
    if (!r || size > r->start + r->size - at)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap: 0x%llx, %zu bytes are not inside a reservation", at, size);
    for (uint64_t i = 0; i < size; i += space.slot)
        if (*slot_of(at + i))
            return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap: 0x%llx is mapped already", (unsigned long long)(at + i));
    if (!enter(at, size, number))
        return CUDA_ERROR_OUT_OF_MEMORY;
    r->value++;
    model.books.mappings++;
    if (model.mappings_of_one < physical_at(number)->mappings)
        model.mappings_of_one = physical_at(number)->mappings;
    return CUDA_SUCCESS;
}

/* The mappings of the program that tile [at, at + size) exactly, counted; 0: they do not. */
static uint64_t tiled_by(uint64_t at, uint64_t size)
{
    uint64_t count = 0;
    uint64_t end = at + size;
    while (at < end) {
        const struct mapping *m = virtual_mapping(at);
        if (!m || m->owner != MAPPED_BY_PROGRAM || m->at != at || m->size > end - at)
            return 0;
        at += m->size;
        count++;
    }
    return count;
}

static void unmap_one(struct mapping *m)
{
    if (m->busy > clock_seen() && moment_by_now(m->busy) > clock_look())
        model_violation("cuMemUnmap: slot at 0x%llx is used by work that is not done", (unsigned long long)m->at);
    ranges_holding(&space.reservations, m->at)->value--;
    model.books.mappings--;
    leave(m);
}

CUresult virtual_unmap(CUdeviceptr at, size_t size)
{
    uint64_t count = tiled_by(at, size);
    if (!count)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemUnmap: 0x%llx, %zu bytes are not whole mappings without a gap", at, size);
    cost_charge(COST_cuMemUnmap, count);
    for (uint64_t end = at + size; at < end;) {
        struct mapping *m = virtual_mapping(at);
        at += m->size;
        unmap_one(m);
    }
    return CUDA_SUCCESS;
}

/* The host may be given access to memory on the host only. */
static bool host_may_access(uint64_t at, uint64_t size)
{
    const struct mapping *m;
    for (uint64_t end = at + size; at < end; at += m->size) {
        m = virtual_mapping(at);
        if (physical_at(m->physical)->device != HOST_AREA)
            return false;
    }
    return true;
}

static CUresult check_access_descriptions(uint64_t at, uint64_t size, const CUmemAccessDesc *who, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int area;
        if (!location_area(&who[i].location, &area))
            return model_refuse(CUDA_ERROR_INVALID_DEVICE, "cuMemSetAccess: no device %d", who[i].location.id);
        if (area == HOST_AREA && !host_may_access(at, size))
            return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess: memory of a device cannot be opened to the host");
        if (who[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && who[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            who[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess: flags 0x%x", (unsigned)who[i].flags);
    }
    return CUDA_SUCCESS;
}

static bool has_memory_for_rdma(uint64_t at, uint64_t size)
{
    const struct mapping *m;
    for (uint64_t end = at + size; at < end; at += m->size) {
        m = virtual_mapping(at);
        if (physical_at(m->physical)->prop.allocFlags.gpuDirectRDMACapable)
            return true;
    }
    return false;
}

static bool is_beyond_ceiling(uint64_t at, uint64_t size)
{
    const struct mapping *m;
    if (sim_quirk(MAPPING_CEILING) && model.books.mappings > model.shape.mapping_ceiling)
        return true;
    for (uint64_t end = at + size; at < end && sim_quirk(HANDLE_CEILING); at += m->size) {
        m = virtual_mapping(at);
        if (physical_at(m->physical)->mappings > model.shape.handle_ceiling)
            return true;
    }
    return false;
}

static void set_access(struct mapping *m, const CUmemAccessDesc *who)
{
    int area;
    location_area(&who->location, &area);
    uint32_t bit = 1u << area;
    bool reads = who->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    bool writes = who->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    m->access.readers = reads ? m->access.readers | bit : m->access.readers & ~bit;
    m->access.writers = writes ? m->access.writers | bit : m->access.writers & ~bit;
}

CUresult virtual_set_access(CUdeviceptr at, size_t size, const CUmemAccessDesc *who, size_t count)
{
    uint64_t mappings = tiled_by(at, size);
    if (!mappings || !who || !count)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemSetAccess: 0x%llx, %zu bytes are not whole mappings without a gap", at, size);
    CUresult result = check_access_descriptions(at, size, who, count);
    if (result)
        return result;
    if (sim_quirk(WSL_RDMA) && has_memory_for_rdma(at, size))
        return CUDA_ERROR_UNKNOWN;
    if (is_beyond_ceiling(at, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    cost_charge(COST_cuMemSetAccess, mappings);
    for (uint64_t end = at + size; at < end;) {
        struct mapping *m = virtual_mapping(at);
        for (size_t i = 0; i < count; i++)
            set_access(m, &who[i]);
        at += m->size;
    }
    return CUDA_SUCCESS;
}

CUresult virtual_get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at)
{
    int area;
    const struct mapping *m = virtual_mapping(at);
    if (!flags || !location || !location_area(location, &area) || !m || m->owner != MAPPED_BY_PROGRAM)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemGetAccess: 0x%llx is not mapped", at);
    *flags = m->access.writers >> area & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : m->access.readers >> area & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult virtual_retain_handle(CUmemGenericAllocationHandle *handle, void *at)
{
    const struct mapping *m = virtual_mapping((uint64_t)at);
    if (!handle || !m || m->owner != MAPPED_BY_PROGRAM)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuMemRetainAllocationHandle: %p is not mapped", at);
    physical_at(m->physical)->handles++;
    model.books.handles++;
    *handle = physical_handle(m->physical);
    return CUDA_SUCCESS;
}

CUresult virtual_own_map(enum mapping_owner owner, int device, const struct access *pool, uint64_t size, uint64_t *at)
{
    uint32_t physical;
    CUresult result = physical_take(device, whole_slots(size), &physical);
    return result ? result : virtual_own_enter(owner, physical, pool, at);
}

CUresult virtual_own_enter(enum mapping_owner owner, uint32_t physical, const struct access *pool, uint64_t *at)
{
    uint64_t bytes = physical_at(physical)->size;
    if (!ranges_take(&space.free, bytes, space.slot, at)) {
        physical_drop(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint32_t number = enter(*at, bytes, physical);
    if (!number) {
        ranges_give(&space.free, *at, bytes);
        physical_drop(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    mapping_at(number)->owner = owner;
    mapping_at(number)->pool = pool;
    return CUDA_SUCCESS;
}

void virtual_own_unmap(uint64_t at)
{
    struct mapping *m = virtual_mapping(at);
    uint64_t size = m->size;
    leave(m);
    ranges_give(&space.free, at, size);
}

bool virtual_own_reserve(uint64_t size, uint32_t value, uint64_t *at)
{
    if (!ranges_take(&space.free, size, space.slot, at))
        return false;
    if (ranges_add(&space.own, *at, size, value))
        return true;
    ranges_give(&space.free, *at, size);
    return false;
}

const struct range *virtual_own_reservation(uint64_t at)
{
    return ranges_holding(&space.own, at);
}

CUresult virtual_own_place(enum mapping_owner owner, uint32_t physical, const struct access *pool, uint64_t at)
{
    uint32_t number = enter(at, physical_at(physical)->size, physical);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    mapping_at(number)->owner = owner;
    mapping_at(number)->pool = pool;
    return CUDA_SUCCESS;
}

void virtual_own_leave(uint64_t at)
{
    leave(virtual_mapping(at));
}

void virtual_own_unreserve(uint64_t at, uint64_t size)
{
    ranges_remove(&space.own, at);
    ranges_give(&space.free, at, size);
}

/* Memory of cuMemAlloc: inside one allocation, of this device or of a peer whose memory was opened to the context. */
static const char *plain_access(const struct context *c, uint64_t at, uint64_t bytes)
{
    const struct allocation *a = allocation_holding(at);
    if (!a)
        return "freed, or never allocated,";
    if (bytes > a->at + a->size - at)
        return "beyond the end of its allocation";
    if (a->device != c->device && !(c->peers >> a->device & 1))
        return "on a device without peer access";
    return NULL;
}

static const char *access_trouble(const struct context *c, const struct mapping *m, uint64_t at, uint64_t bytes, bool write)
{
    if (m->owner == MAPPED_FOR_PLAIN)
        return plain_access(c, at, bytes);
    if (m->owner == MAPPED_FOR_POOL)
        return (write ? m->pool->writers : m->pool->readers) >> c->device & 1 ? NULL : "in a pool without access for this device";
    if (!(m->access.readers >> c->device & 1))
        return "mapped without access for this device";
    return write && !(m->access.writers >> c->device & 1) ? "mapped read-only" : NULL;
}

const char *virtual_piece(uint32_t context, uint64_t at, uint64_t bytes, bool write, struct piece *piece)
{
    const struct mapping *m = virtual_mapping(at);
    if (!m)
        return "not mapped";
    const char *trouble = access_trouble(context_at(context), m, at, bytes, write);
    if (trouble)
        return trouble;
    uint64_t inside = at - m->at;
    piece->offset = physical_at(m->physical)->offset + inside;
    piece->bytes = bytes < m->size - inside ? bytes : m->size - inside;
    return NULL;
}
