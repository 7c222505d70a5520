/*
 * card.h: a small simulated card for a program that knows the driver alone and runs with libcenote_preload.so. Each case is a process of its own,
 * as the preload opens its pools once. Contents are the judge, as in tests/api/scene.h, whose blocks these are. The tests look into cenote only to
 * see whether a block is its.
 *
 *     ON_CARD(name) { ... }    `card` is open; at the end everything is synchronised and judged
 *
 * LOCKING: none.
 */
#ifndef CENOTE_TESTS_PRELOAD_CARD_H
#define CENOTE_TESTS_PRELOAD_CARD_H

#include "tests/processes/process.h"

#include <dlfcn.h>
#include <link.h>

#define CAPACITY (256 * MIB)

static struct scene card; /* without a pool of its own */

static inline void card_open(size_t capacity, int devices)
{
    struct sim_shape shape = scene_card(capacity);
    shape.devices = devices;
    scene_open_card(&card, &shape);
}

static inline void card_close(void)
{
    scene_judge(&card);
    scene_is_open = false;
}

#define ON_CARD(name) ON_CARD_OF(name, CAPACITY)
#define ON_CARD_OF(name, capacity)          \
    static void name##_on_card(void);       \
    ENDS_WITH(name, 0)                      \
    {                                       \
        card_open(capacity, 1);             \
        name##_on_card();                   \
        card_close();                       \
    }                                       \
    static void name##_on_card(void)

static inline bool is_ours(CUdeviceptr at)
{
    cenote_block block;
    return cenote_find((void *)(uintptr_t)at, &block) == CENOTE_OK;
}

/* What the driver itself has handed out: nothing, if cenote served all. */
static inline uint64_t driver_allocations(void)
{
    struct sim_books books;
    sim_books(&books);
    return books.allocations;
}

static inline uint64_t used(void)
{
    struct sim_books books;
    sim_books(&books);
    return books.used;
}

/* Memory for every stream, with contents that `stream` writes. `at` is 0 if there is none. */
static inline struct held plain_take(size_t bytes, CUstream stream)
{
    CUdeviceptr at = 0;
    struct held none = {0};
    CUresult result = cuMemAlloc(&at, bytes);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    return result ? none : held_of((void *)(uintptr_t)at, bytes, stream);
}

/* Memory in the order of a stream. */
static inline struct held stream_take(size_t bytes, CUstream stream)
{
    CUdeviceptr at = 0;
    struct held none = {0};
    CUresult result = cuMemAllocAsync(&at, bytes, stream);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    return result ? none : held_of((void *)(uintptr_t)at, bytes, stream);
}

static inline CUdeviceptr at_of(const struct held *held)
{
    return device_address(held->at);
}

/* A function out of the library's own table of symbols, past dlsym. The table ends where the names begin. */
static inline void *out_of_the_file(const struct link_map *map, const char *name)
{
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        symbols = entry->d_tag == DT_SYMTAB ? (const void *)entry->d_un.d_ptr : symbols;
        names = entry->d_tag == DT_STRTAB ? (const void *)entry->d_un.d_ptr : names;
    }
    for (const ElfW(Sym) *s = symbols; (const char *)s < names; s++)
        if (!strcmp(names + s->st_name, name))
            return (void *)(map->l_addr + s->st_value);
    return NULL;
}

/* A function of the driver itself: a route past the hooks. */
static inline void *past_the_hooks(const char *name)
{
    struct link_map *map = NULL;
    Dl_info of;
    REQUIRE(dladdr1((void *)(uintptr_t)sim_books, &of, (void **)&map, RTLD_DL_LINKMAP) && map);
    return out_of_the_file(map, name);
}

#define PRELOAD_MAIN(name) SUITE_MAIN_AROUND("preload: " name, NULL, process_after)

#endif
