/*
 * graph_memory.c: memory that belongs to graphs: nodes of cuMemAllocAsync and cuMemFreeAsync.
 *
 * The address of an allocation is fixed when its node is made; there is memory behind it only from a launch on. A graph keeps its
 * allocations of a device in an arena: chunks of addresses out of which they are cut. A place freed in a chain of nodes is taken again
 * further down the same chain; work in parallel chains never shares one, even where a join would allow it.
 *
 *     addresses ---the first of its nodes is launched---> memory ---the last allocation was freed, in stream order---> addresses
 *
 * Memory comes for the whole arena at once, from memory that graphs gave back earlier if there is any: that stays reserved until
 * cuDeviceGraphMemTrim, or until a launch would fail for want of it.
 */
#include <stdlib.h>

#include "sim/graph/graph.h"
#include "sim/machine/numbers.h"
#include "sim/memory/memory.h"

#define ARENAS_MAX 65536
#define MEMORIES_MAX (1u << 22)
#define CHUNK (32u << 20)       /* least that an arena grows by */
#define STEP 512

struct chunk {
    uint64_t at, size;
    uint32_t physical;          /* while there is memory */
};

struct place {                  /* freed in a chain */
    uint32_t      chain;
    struct ranges free;
};

struct arena {
    int           device;
    uint32_t      context;
    uint32_t      next;         /* of the same graph, on another device */
    uint32_t      memories;     /* allocations with a node, or alive */
    uint32_t      live;         /* allocations launched and not freed */
    uint32_t      generation;   /* of launches: an older free does not end what came after it */
    bool          placed;       /* there is memory */
    struct chunk *chunks;       /* owned */
    uint32_t      chunk_count;
    struct place *places;       /* owned */
    uint32_t      place_count;
    struct ranges fresh;        /* never allocated */
    struct ranges taken;        /* by allocations not freed in the graph; value: memory */
};

struct memory {
    uint32_t arena;
    uint32_t nodes;             /* that mean it */
    uint64_t at, size;
    uint64_t allocation;        /* lasting name, while alive */
};

struct usage {
    uint64_t used, used_high;
    uint64_t reserved, reserved_high;
};

static struct slots arenas;
static struct slots memories;
static struct usage usages[DEVICES_MOST];
static uint32_t *spare;             /* physical memory without place; owned */
static uint32_t spare_count, spare_room;

static struct arena *arena_at(uint32_t number)
{
    return slots_at(&arenas, number);
}

static struct memory *memory_at(uint32_t number)
{
    return slots_at(&memories, number);
}

static void free_arena(struct arena *a)
{
    free(a->chunks);
    for (uint32_t i = 0; i < a->place_count; i++)
        ranges_clear(&a->places[i].free);
    free(a->places);
    ranges_clear(&a->fresh);
    ranges_clear(&a->taken);
}

void graph_memory_reset(void)
{
    if (!arenas.items) {
        slots_open(&arenas, sizeof(struct arena), ARENAS_MAX, SLOTS_OLDEST_FIRST);
        slots_open(&memories, sizeof(struct memory), MEMORIES_MAX, SLOTS_OLDEST_FIRST);
    }
    for (uint32_t i = 1; i < arenas.used; i++)
        if (slots_is_live(&arenas, i))
            free_arena(arena_at(i));
    slots_clear(&arenas);
    slots_clear(&memories);
    spare_count = 0;
    for (int i = 0; i < DEVICES_MOST; i++)
        usages[i] = (struct usage){0};
}

static void count(int device, int64_t used, int64_t reserved)
{
    struct usage *u = &usages[device];
    u->used += (uint64_t)used;
    u->reserved += (uint64_t)reserved;
    if (u->used_high < u->used)
        u->used_high = u->used;
    if (u->reserved_high < u->reserved)
        u->reserved_high = u->reserved;
}

static void give_spare(uint32_t number)
{
    struct physical *p = physical_at(number);
    count(p->device, 0, -(int64_t)p->size);
    p->handles--;
    physical_drop(number);
}

static void trim(int device)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < spare_count; i++) {
        if (physical_at(spare[i])->device == device)
            give_spare(spare[i]);
        else
            spare[kept++] = spare[i];
    }
    spare_count = kept;
}

static uint32_t take_spare(int device, uint64_t size)
{
    for (uint32_t i = 0; i < spare_count; i++) {
        uint32_t number = spare[i];
        if (physical_at(number)->device != device || physical_at(number)->size != size)
            continue;
        spare[i] = spare[--spare_count];
        return number;
    }
    return 0;
}

/* Held by a reference of our own, so that it outlives its mapping. */
static CUresult take_physical(int device, uint64_t size, uint32_t *number)
{
    *number = take_spare(device, size);
    if (*number)
        return CUDA_SUCCESS;
    CUresult result = physical_take(device, size, number);
    if (result) {
        trim(device);
        result = physical_take(device, size, number);
    }
    if (result && context_current()) {  /* what is freed in stream order may come by waiting */
        clock_try(context_at(context_current())->all_done);
        trim(device);
        result = physical_take(device, size, number);
    }
    if (result)
        return result;
    physical_at(*number)->handles++;
    count(device, 0, (int64_t)size);
    return CUDA_SUCCESS;
}

static void keep_spare(uint32_t number)
{
    if (spare_count == spare_room) {
        uint32_t room = spare_room ? 2 * spare_room : 64;
        uint32_t *list = realloc(spare, room * sizeof *list);
        if (!list) {
            give_spare(number);
            return;
        }
        spare = list;
        spare_room = room;
    }
    spare[spare_count++] = number;
}

static void unplace(struct arena *a)
{
    for (uint32_t i = 0; i < a->chunk_count; i++) {
        struct chunk *c = &a->chunks[i];
        if (!c->physical)
            continue;
        virtual_own_leave(c->at);
        keep_spare(c->physical);
        c->physical = 0;
        count(a->device, -(int64_t)c->size, 0);
    }
    a->placed = false;
}

/* Memory for every chunk that has none. */
static CUresult place(struct arena *a)
{
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < a->chunk_count && !result; i++) {
        struct chunk *c = &a->chunks[i];
        if (c->physical)
            continue;
        result = take_physical(a->device, c->size, &c->physical);
        if (result)
            break;
        result = virtual_own_place(MAPPED_FOR_POOL, c->physical, pool_access(pool_standard(a->device)), c->at);
        if (result) {
            keep_spare(c->physical);
            c->physical = 0;
            break;
        }
        count(a->device, (int64_t)c->size, 0);
    }
    a->placed = true;
    if (result && !a->live)
        unplace(a);
    return result;
}

static void end_arena_if_done(uint32_t number)
{
    struct arena *a = arena_at(number);
    if (a->memories || a->live || a->placed)
        return;
    for (uint32_t i = 0; i < a->chunk_count; i++) {
        virtual_own_unreserve(a->chunks[i].at, a->chunks[i].size);
    }
    free_arena(a);
    slots_give(&arenas, number);
}

static bool add_chunk(uint32_t number, uint64_t bytes)
{
    struct arena *a = arena_at(number);
    uint64_t at, size = round_up(bytes < CHUNK ? CHUNK : bytes, model.shape.granularity);
    struct chunk *list = realloc(a->chunks, (a->chunk_count + 1) * sizeof *list);
    if (!list)
        return false;
    a->chunks = list;
    if (!virtual_own_reserve(size, number, &at))
        return false;
    if (!ranges_give(&a->fresh, at, size)) {
        virtual_own_unreserve(at, size);
        return false;
    }
    list[a->chunk_count++] = (struct chunk){.at = at, .size = size};
    return true;
}

static uint32_t arena_of(struct graph *g, int device)
{
    uint32_t number = g->arena;
    while (number && arena_at(number)->device != device)
        number = arena_at(number)->next;
    if (number)
        return number;
    number = slots_take(&arenas);
    if (!number)
        return 0;
    struct ranges fresh = arena_at(number)->fresh, taken = arena_at(number)->taken;
    *arena_at(number) = (struct arena){.device = device, .context = context_current(), .next = g->arena, .fresh = fresh, .taken = taken};
    g->arena = number;
    return number;
}

static struct ranges *freed_in(struct arena *a, uint32_t chain, bool make)
{
    for (uint32_t i = 0; i < a->place_count; i++)
        if (a->places[i].chain == chain)
            return &a->places[i].free;
    struct place *list = make ? realloc(a->places, (a->place_count + 1) * sizeof *list) : NULL;
    if (!list)
        return NULL;
    a->places = list;
    list[a->place_count] = (struct place){.chain = chain};
    ranges_clear(&list[a->place_count].free);
    return &list[a->place_count++].free;
}

static bool take_place(uint32_t number, uint64_t bytes, uint32_t chain, uint64_t *at)
{
    struct arena *a = arena_at(number);
    struct ranges *freed = chain ? freed_in(a, chain, false) : NULL;
    if (freed && ranges_take(freed, bytes, STEP, at))
        return true;
    if (ranges_take(&a->fresh, bytes, STEP, at))
        return true;
    return add_chunk(number, bytes) && ranges_take(&a->fresh, bytes, STEP, at);
}

CUresult graph_memory_new(struct graph *graph, int device, uint64_t size, uint32_t chain, uint32_t *number)
{
    if (!size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > model.devices[device].capacity)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t at, bytes = round_up(size, STEP);
    uint32_t arena = arena_of(graph, device);
    *number = arena ? slots_take(&memories) : 0;
    if (!*number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct arena *a = arena_at(arena);
    if (!take_place(arena, bytes, chain, &at) || !ranges_add(&a->taken, at, bytes, *number)) {
        slots_give(&memories, *number);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory_at(*number) = (struct memory){.arena = arena, .nodes = 1, .at = at, .size = bytes};
    a->memories++;
    return CUDA_SUCCESS;
}

uint32_t graph_memory_at(uint64_t at)
{
    const struct range *chunk = virtual_own_reservation(at);
    const struct range *r = chunk ? ranges_holding(&arena_at(chunk->value)->taken, at) : NULL;
    return r && r->start == at ? r->value : 0;
}

/* Only a graph that frees what it allocated itself may have the place again. */
void graph_memory_freed_in(const struct graph *graph, uint32_t number, uint32_t chain)
{
    const struct memory *m = memory_at(number);
    struct arena *a = arena_at(m->arena);
    uint32_t own = graph->arena;
    while (own && own != m->arena)
        own = arena_at(own)->next;
    if (!own || graph_memory_at(m->at) != number)
        return;
    ranges_remove(&a->taken, m->at);
    struct ranges *freed = freed_in(a, chain, true);
    if (freed)
        ranges_give(freed, m->at, m->size);
}

static void end_memory_if_done(uint32_t number)
{
    struct memory *m = memory_at(number);
    if (m->nodes || m->allocation)
        return;
    uint32_t arena = m->arena;
    slots_give(&memories, number);
    arena_at(arena)->memories--;
    end_arena_if_done(arena);
}

void graph_memory_hold(uint32_t number)
{
    memory_at(number)->nodes++;
}

void graph_memory_drop(uint32_t number)
{
    memory_at(number)->nodes--;
    end_memory_if_done(number);
}

uint64_t graph_memory_address(uint32_t number)
{
    return memory_at(number)->at;
}

uint64_t graph_memory_bytes(uint32_t number)
{
    return memory_at(number)->size;
}

int graph_memory_device(uint32_t number)
{
    return arena_at(memory_at(number)->arena)->device;
}

static void forget(struct memory *m)
{
    uint32_t allocation = allocation_named(m->allocation);
    if (allocation)
        allocation_remove(allocation);
    m->allocation = 0;
    arena_at(m->arena)->live--;
}

/* cuMemFree, which waits, and the end of a context. False: it has to wait. */
static bool free_now(uint32_t number)
{
    uint32_t arena = memory_at(number)->arena;
    if (!clock_go_to(context_at(arena_at(arena)->context)->all_done))
        return false;
    forget(memory_at(number));
    if (!arena_at(arena)->live)
        unplace(arena_at(arena));
    end_memory_if_done(number);
    return true;
}

static CUresult free_allocation(uint32_t allocation)
{
    return free_now(allocation_at(allocation)->pool) ? CUDA_SUCCESS : MODEL_AGAIN;
}

static const struct allocation_end graph_end = {.free = free_allocation};

CUresult graph_memory_begin(uint32_t number, bool again)
{
    struct memory *m = memory_at(number);
    struct arena *a = arena_at(m->arena);
    if (m->allocation && !again)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuGraphLaunch: memory at 0x%llx of an earlier launch was not freed",
                            (unsigned long long)m->at);
    if (m->allocation)
        forget(m);
    CUresult result = place(a);
    if (result)
        return result;
    uint32_t allocation = allocation_add(ALLOCATION_GRAPH, &graph_end, m->at, m->size);
    if (!allocation)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *made = allocation_at(allocation);
    made->device = a->device;
    made->context = a->context;
    made->pool = number;
    m->allocation = allocation_name(allocation);
    a->live++;
    a->generation++;
    return CUDA_SUCCESS;
}

/* The moment of a free has come; memory goes with the last allocation, unless the graph was launched again meanwhile. */
static void vacate(const struct work *w)
{
    uint32_t number = (uint32_t)w->number;
    struct arena *a = arena_at(number);
    if (!slots_is_live(&arenas, number) || a->live || !a->placed || a->generation != (uint32_t)(w->number >> 32))
        return;
    unplace(a);
    end_arena_if_done(number);
}

static const struct work_kind work_vacate = {.node = CU_GRAPH_NODE_TYPE_EMPTY, .even_if_lost = true, .run = vacate};

CUresult graph_memory_end(uint32_t number, struct stream *s)
{
    struct memory *m = memory_at(number);
    if (!m->allocation)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "memory of a graph at 0x%llx is freed twice", (unsigned long long)m->at);
    struct arena *a = arena_at(m->arena);
    struct work work = {.kind = &work_vacate, .name = "free of a graph's memory", .number = (uint64_t)a->generation << 32 | m->arena};
    forget(m);
    bool last = !a->live;
    end_memory_if_done(number);
    return last ? work_submit(s, &work) : CUDA_SUCCESS;
}

void graph_memory_close_all(uint32_t context)
{
    for (uint32_t i = 1; i < memories.used; i++)
        if (slots_is_live(&memories, i) && memory_at(i)->allocation && arena_at(memory_at(i)->arena)->context == context)
            free_now(i);
}

static bool known(CUdevice device, CUgraphMem_attribute attribute, const void *value)
{
    return device_exists(device) && (unsigned)attribute <= CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH && value;
}

CUresult graph_memory_trim(CUdevice device)
{
    if (!device_exists(device))
        return CUDA_ERROR_INVALID_DEVICE;
    clock_look();
    trim(device);
    return CUDA_SUCCESS;
}

CUresult graph_memory_get(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    if (!known(device, attribute, value))
        return CUDA_ERROR_INVALID_VALUE;
    clock_look();
    const struct usage *u = &usages[device];
    const uint64_t answers[] = {u->used, u->used_high, u->reserved, u->reserved_high};
    *(cuuint64_t *)value = answers[attribute];
    return CUDA_SUCCESS;
}

/* The highest figures can be reset to what is now. */
CUresult graph_memory_set(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    if (!known(device, attribute, value) || *(cuuint64_t *)value)
        return CUDA_ERROR_INVALID_VALUE;
    struct usage *u = &usages[device];
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        u->used_high = u->used;
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        u->reserved_high = u->reserved;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
