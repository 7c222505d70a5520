/*
 * memory.h: what memory is: physical memory and its contents, address space and what is mapped there, allocations, pools. LOCKING: the
 * model's lock.
 *
 * A device address is looked up in the page table when work runs: address -> mapping -> physical memory -> offset -> contents. So two
 * mappings of one physical memory show the same bytes, and what is unmapped is an illegal address.
 */
#ifndef CENOTE_SIM_MEMORY_H
#define CENOTE_SIM_MEMORY_H

#include "sim/machine/files.h"
#include "sim/machine/model.h"
#include "sim/order/stream.h"

/* --- contents.c: the bytes of physical memory, by offset, as far as shape.data reaches */
bool     contents_reset(uint64_t bytes);
void     contents_forget(uint64_t offset, uint64_t bytes);  /* physical memory was given back */
void     contents_fill(uint64_t offset, uint64_t pattern, unsigned width, uint64_t bytes);
uint64_t contents_differ(uint64_t offset, uint64_t pattern, uint64_t bytes);    /* 8-byte words that are not `pattern` */
void     contents_write(uint64_t offset, const void *from, uint64_t bytes);
void     contents_read(uint64_t offset, void *to, uint64_t bytes);
void     contents_copy(uint64_t to, uint64_t from, uint64_t bytes);
bool     contents_may_share(uint64_t bytes);                            /* within the budget of what is exported */
bool     contents_are_shared(uint64_t offset);
uint64_t contents_export(uint64_t offset, uint64_t bytes, void *at);    /* moves them into a file mapped there; their new offset */
uint64_t contents_import(void *at);                                     /* the offset of what is mapped there; NULL: of what is not kept */
void     contents_detach(uint64_t offset, uint64_t bytes, bool exported);
bool     contents_are_kept(uint64_t offset);
void     contents_drop(void);                                           /* something was written that is not kept */

/* --- physical.c: handles of cuMemCreate, and the same for the model's own use */
struct shared_memory;

struct physical {
    uint64_t            offset;     /* of its contents */
    struct shared_memory *shared;   /* owned; NULL: no other process has to do with it. See shared.c */
    void              (*drop)(struct physical *p);  /* shared: the last reference of this process is gone */
    uint64_t            size;
    int                 device;     /* or HOST_AREA */
    uint32_t            handles;    /* references by handle */
    uint32_t            mappings;
    uint32_t            generation; /* in the handle: an old handle does not name new memory */
    uint64_t            written_at; /* the mapping through which a fill wrote last; 0: none did */
    CUmemAllocationProp prop;
};

void     physical_reset(void);
CUresult physical_take(int device, uint64_t size, uint32_t *number);    /* without handle; lives until the last mapping is gone */
void     physical_drop_mapping(uint32_t number);
void     physical_drop(uint32_t number);                                /* if nothing refers to it any more */
uint32_t physical_find(CUmemGenericAllocationHandle handle);            /* 0: names nothing */
CUmemGenericAllocationHandle physical_handle(uint32_t number);
struct physical *physical_at(uint32_t number);
bool     location_area(const CUmemLocation *location, int *area);       /* false: no such place */
CUresult physical_create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags);
CUresult physical_release(CUmemGenericAllocationHandle handle);
CUresult physical_granularity(size_t *granularity, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option);
CUresult physical_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);
uint32_t physical_enter(const struct physical *memory);                 /* made elsewhere, charged already if it is; 0: no more */
CUresult physical_info(size_t *free, size_t *total);                     /* of the current device, as cuMemGetInfo */
uint32_t physical_next(uint32_t number);                                /* goes through all there is, from 0 to 0 */

/* --- shared.c: physical memory that several processes hold */
void     shared_reset(void);                            /* before physical_reset */
CUresult shared_export_memory(uint32_t number, enum file_kind kind, int *file, uint64_t *id);   /* `file` stays shared.c's */
CUresult shared_import_memory(int file, enum file_kind kind, uint64_t id, uint32_t *number);    /* id 0: any */
void     shared_note_open(const struct physical *p, uint64_t offset, bool open);     /* by this process, with cuIpcOpenMemHandle */
bool     shared_is_open_elsewhere(const struct physical *p, uint64_t offset);
CUresult shared_export(void *shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags);
CUresult shared_import(CUmemGenericAllocationHandle *handle, void *shareable, CUmemAllocationHandleType type);

/* --- ipc.c: cuIpc*: plain memory of another process */
void     ipc_reset(void);
CUresult ipc_get_memory(CUipcMemHandle *handle, CUdeviceptr at);
CUresult ipc_open_memory(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags);
CUresult ipc_close_memory(CUdeviceptr at);
CUresult pool_export(void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags);
CUresult pool_import(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type, unsigned long long flags);
CUresult pool_export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr at);
CUresult pool_import_pointer(CUdeviceptr *at, CUmemoryPool pool, CUmemPoolPtrExportData *data);

/* --- virtual.c: reservations, mappings, the page table */
enum mapping_owner { MAPPED_BY_PROGRAM, MAPPED_FOR_PLAIN, MAPPED_FOR_POOL };    /* only the first may be unmapped by programs */

struct access {             /* devices, as bits */
    uint32_t readers;
    uint32_t writers;
};

struct mapping {
    uint64_t at;
    uint64_t size;
    uint32_t physical;
    enum mapping_owner owner;
    const struct access *pool;  /* FOR_POOL: which devices may use the memory of that pool */
    struct access access;   /* BY_PROGRAM */
    uint64_t busy;          /* when work put on streams so far that touches it is done */
};

struct piece {              /* of a range of addresses: contiguous in physical memory */
    uint64_t offset;
    uint64_t bytes;
};

bool     virtual_reset(void);
bool     virtual_is_device_address(uint64_t at);
/* reserves, takes, maps; `pool` NULL: of none */
CUresult virtual_own_map(enum mapping_owner owner, int device, const struct access *pool, uint64_t size, uint64_t *at);
CUresult virtual_own_enter(enum mapping_owner owner, uint32_t physical, const struct access *pool, uint64_t *at);   /* failed: it is dropped */
void     virtual_own_unmap(uint64_t at);
/* addresses alone, in whole granules, with a value of the caller's; false: no more */
bool     virtual_own_reserve(uint64_t size, uint32_t value, uint64_t *at);
void     virtual_own_unreserve(uint64_t at, uint64_t size);
const struct range *virtual_own_reservation(uint64_t at);               /* NULL: not such an address */
CUresult virtual_own_place(enum mapping_owner owner, uint32_t physical, const struct access *pool, uint64_t at);    /* memory there */
void     virtual_own_leave(uint64_t at);                                /* and away again */
struct mapping *virtual_mapping(uint64_t at);                           /* NULL: not mapped */
const char *virtual_piece(uint32_t context, uint64_t at, uint64_t bytes, bool write, struct piece *piece);  /* NULL, or why not */
CUresult virtual_reserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags);
CUresult virtual_free(CUdeviceptr at, size_t size);
CUresult virtual_map(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult virtual_unmap(CUdeviceptr at, size_t size);
CUresult virtual_set_access(CUdeviceptr at, size_t size, const CUmemAccessDesc *who, size_t count);
CUresult virtual_get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr at);
CUresult virtual_retain_handle(CUmemGenericAllocationHandle *handle, void *at);
struct range *virtual_reservation(uint64_t at);                         /* NULL: not reserved by the program */

/* --- allocations.c: what cuMemAlloc and its relatives gave, by address */
enum allocation_kind {
    ALLOCATION_PLAIN, ALLOCATION_POOL, ALLOCATION_GRAPH, ALLOCATION_MANAGED, ALLOCATION_HOST, ALLOCATION_REGISTERED,
    ALLOCATION_OPENED,      /* cuMemAlloc of another process, by cuIpcOpenMemHandle */
    ALLOCATION_INNER        /* of the driver's own: no address of the program's leads there */
};

enum residence { ON_DEVICE, ON_HOST, MANAGED };         /* MANAGED: on the host here, and in place for host and device */

struct allocation_end {     /* how it ends */
    CUresult (*free)(uint32_t number);  /* by cuMemFree; NULL: that refuses it */
    void     (*close)(uint32_t number); /* with its context; NULL: not with it */
};

struct allocation {
    enum allocation_kind kind;
    const struct allocation_end *end;
    enum residence residence;
    bool     synchronizes;  /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: kept, without effect, as copies that wait always wait */
    bool     freed;         /* POOL: cuMemFreeAsync was called, its moment has not come */
    int      device;
    uint32_t context;       /* it ends with, except POOL */
    uint32_t pool;          /* GRAPH: number of the graph's memory */
    unsigned flags;         /* HOST, REGISTERED */
    uint32_t id;            /* unique for the next 4 billion */
    uint64_t at;
    uint64_t size;
    uint64_t freed_on;      /* freed: id of that stream */
    uint32_t next, before;  /* freed: in the pool's list */
};

void     allocations_reset(void);
void     allocations_close_all(uint32_t context);
uint64_t allocations_registered(uint64_t *bytes);       /* how many of the program's own memory */
struct allocation *allocation_holding(uint64_t at);     /* NULL: none */
struct allocation *allocation_at(uint32_t number);
uint32_t allocation_add(enum allocation_kind kind, const struct allocation_end *end, uint64_t at, uint64_t size);  /* 0: no more */
void     allocation_remove(uint32_t number);
uint32_t allocation_starting(uint64_t at);              /* 0: none starts there */
bool     allocation_overlaps(uint64_t at, uint64_t size);
uint64_t allocation_name(uint32_t number);              /* unlike the number it is never another's */
uint32_t allocation_named(uint64_t name);               /* 0: ended */
uint32_t allocation_next(uint32_t number);              /* goes through all there are, from 0 to 0 */
CUresult allocation_free(CUdeviceptr at);               /* cuMemFree */

/* --- plain.c */
CUresult plain_alloc(CUdeviceptr *at, size_t size);
CUresult plain_enter(enum allocation_kind kind, const struct allocation_end *end, uint64_t size, uint32_t *number);
void     plain_leave(uint32_t number);

/* --- transfers.c: what work does to memory */
extern const struct work_kind work_touch;
extern const struct work_kind work_fill;
extern const struct work_kind work_write_word, work_wait_word;     /* of 4 or 8 bytes */
extern const struct work_kind work_expect;
extern const struct work_kind work_count;               /* adds to the word at `from` how many words at `to` differ */
extern const struct work_kind work_copy;
void     transfers_reset(void);
uint64_t transfers_mismatches(void);                    /* words that work_expect found different */

/* --- host.c: host memory the device may read and write */
CUresult host_alloc(void **at, size_t size);
CUresult host_alloc_with(void **at, size_t size, unsigned flags);
CUresult host_take(void **at, size_t size, enum allocation_kind kind, const struct allocation_end *end, unsigned flags);
void     host_close(uint32_t allocation);               /* it ends, with the memory itself if that is ours */
void     host_reset(void);                              /* before allocations_reset */
CUresult host_free(void *at);
bool     host_is_pinned(uint64_t at, uint64_t bytes);   /* or managed: the device reads and writes it in place */
CUresult host_register(void *at, size_t size, unsigned flags);
CUresult host_unregister(void *at);
CUresult host_device_pointer(CUdeviceptr *device, void *host, unsigned flags);
CUresult host_flags(unsigned *flags, void *at);

/* --- managed.c */
CUresult managed_alloc(CUdeviceptr *at, size_t size, unsigned flags);
CUresult managed_prefetch(CUdeviceptr at, size_t size, CUmemLocation location, unsigned flags, CUstream stream);
CUresult managed_prefetch_1(CUdeviceptr at, size_t size, CUdevice device, CUstream stream);
CUresult managed_advise(CUdeviceptr at, size_t size, CUmem_advise advice, CUmemLocation location);
CUresult managed_advise_1(CUdeviceptr at, size_t size, CUmem_advise advice, CUdevice device);
CUresult pitch_alloc(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element);

/* --- pools.c: stream-ordered allocation */
#define NO_AREA (HOST_AREA + 1)         /* of managed memory without a preferred location */
void     pools_reset(void);
uint32_t pool_open(int area, enum residence residence, uint64_t most, bool decompresses);  /* 0: no more */
void     pools_empty(int device);                       /* that is reset: all memory of its pools goes, and they stay */
void     pool_close(uint32_t pool);                     /* it ends with its last allocation */
bool     pool_is_of(uint32_t pool, int area, enum residence residence);
void     pools_synchronized(void);                      /* the device was waited for: give back what exceeds the thresholds */
const struct access *pool_access(uint32_t pool);
CUmemoryPool pool_handle(uint32_t pool);
CUresult pool_set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult pool_get_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult pool_set_access(CUmemoryPool pool, const CUmemAccessDesc *who, size_t count);
CUresult pool_get_access(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location);
CUresult pool_trim(CUmemoryPool pool, size_t keep);
uint32_t pool_find(CUmemoryPool handle, const char *call);  /* 0, and a violation: none */
int      pool_device(uint32_t pool);
bool     pool_decompresses(uint32_t pool);
CUresult pool_take(CUdeviceptr *at, size_t size, uint32_t pool, struct stream *s);  /* on a stream that does not capture, as is the next */
CUresult pool_give(CUdeviceptr at, struct stream *s);

/* --- pool_places.c: which pool a place has */
void     pool_places_reset(void);                       /* after pools_reset */
uint32_t pool_standard(int device);
uint32_t pool_chosen(int device);
CUresult pool_create(CUmemoryPool *pool, const CUmemPoolProps *properties);
CUresult pool_destroy(CUmemoryPool pool);
CUresult pool_default(CUmemoryPool *pool, CUdevice device);
CUresult pool_current(CUmemoryPool *pool, CUdevice device);
CUresult pool_set_current(CUdevice device, CUmemoryPool pool);
CUresult pool_default_of(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type);
CUresult pool_current_of(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type);
CUresult pool_set_current_of(const CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);

/* --- copies.c */
bool     memory_is_known(uint64_t at, uint64_t bytes);  /* of a device, or pinned; or of a graph, which has memory there when it runs */
CUresult copy_sync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult copy_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult copy_to_device(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult copy_to_device_async(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult copy_to_host(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult copy_to_host_async(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult copy_on_device(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult copy_on_device_async(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult fill_8(CUdeviceptr at, unsigned char value, size_t count, CUstream stream);
CUresult fill_16(CUdeviceptr at, unsigned short value, size_t count, CUstream stream);
CUresult fill_32(CUdeviceptr at, unsigned int value, size_t count, CUstream stream);

/* --- values.c */
CUresult value_write_32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags);
CUresult value_write_64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags);
CUresult value_wait_32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags);
CUresult value_wait_64(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags);
CUresult value_batch(CUstream stream, unsigned count, const CUstreamBatchMemOpParams *parts, unsigned flags);

/* --- pointers.c */
CUresult pointer_attribute(void *value, CUpointer_attribute attribute, CUdeviceptr at);
CUresult pointer_set_attribute(const void *value, CUpointer_attribute attribute, CUdeviceptr at);
CUresult pointer_attributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr at);
CUresult pointer_range(CUdeviceptr *start, size_t *size, CUdeviceptr at);

#endif
