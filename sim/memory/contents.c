/*
 * contents.c: the bytes of all physical memory of the machine, as far as they are kept.
 *
 * Physical memory is numbered by offset (model.c gives each device its area) and divided in leaves of 64 KiB. A leaf gets a place in the
 * store when it is first written, until the store is full: it has shape.data bytes. A write beyond that is dropped, and its leaf is LOST: its
 * contents are unknown, differ from nothing, and read as zero, which is said once. Few programs read back what they wrote so much of. It gets a
 * place again when all of it is written: beside a part that is kept the rest would seem to be zero. A leaf that was not written is zero.
 *
 * Memory that other processes may map has its bytes elsewhere: flat, in a file that all of them map (shared.c). Its offset then
 * says where, as FLAT plus the address; so finding its bytes takes no table. Such memory has a budget of its own, again shape.data bytes,
 * by its full size, counted where it was exported. What is exported beyond that keeps its bytes here, for this process alone; in others
 * it is memory without bytes, at NOWHERE. Bytes dropped before the memory was exported read as zero afterwards.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "sim/memory/memory.h"

#define LEAF (64u << 10)
#define RUN_LEAST 16u       /* leaves given back side by side whose pages go back to the host */
#define LOST UINT32_MAX     /* in the place of a place */
#define FLAT (1ull << 63)
#define NOWHERE (1ull << 62)
#define IS_SHARED(offset) ((offset) >> 62)

static struct {
    char     *store;
    uint32_t *place;        /* of each leaf in the store, from 1; 0: not kept; LOST */
    uint32_t *given_back;   /* stack of places */
    uint64_t  leaves;
    uint32_t  places;       /* in the store */
    uint32_t  used;         /* places ever taken */
    uint32_t  back_count;
    uint32_t  run, run_length;  /* the last places given back, if they are neighbours in the store */
    uint64_t  shared;       /* bytes of memory exported */
    bool      dropped;      /* something was written that is not kept */
    bool      told;         /* ... and such a place was read */
} contents;

static void *map(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_DONTDUMP);
    return memory;
}

static uint64_t place_bytes(void)
{
    return contents.leaves * sizeof *contents.place + 1;
}

static uint64_t store_bytes(void)
{
    return (uint64_t)contents.places * LEAF + 1;
}

static uint64_t stack_bytes(void)
{
    return contents.places * sizeof *contents.given_back + 1;
}

static bool open_store(uint64_t leaves, uint32_t places)
{
    contents.leaves = leaves;
    contents.places = places;
    contents.place = map(place_bytes());
    contents.store = map(store_bytes());
    contents.given_back = map(stack_bytes());
    return contents.place && contents.store && contents.given_back;
}

static void close_store(void)
{
    if (!contents.place)
        return;
    munmap(contents.place, place_bytes());
    munmap(contents.store, store_bytes());
    munmap(contents.given_back, stack_bytes());
}

bool contents_reset(uint64_t bytes)
{
    uint64_t places = model.shape.data / LEAF;
    uint32_t most = places < UINT32_MAX ? (uint32_t)places : UINT32_MAX - 1;
    bool fits = contents.place && contents.leaves == bytes / LEAF && contents.places == most;
    bool opened = true;
    if (!fits) {
        close_store();
        opened = open_store(bytes / LEAF, most);
    } else if (contents.used || contents.dropped) {
        madvise(contents.place, place_bytes(), MADV_DONTNEED);
        madvise(contents.store, store_bytes(), MADV_DONTNEED);
    }
    contents.used = contents.back_count = contents.run_length = 0;
    contents.shared = 0;
    contents.dropped = contents.told = false;
    return opened;
}

/* The bytes at `offset`, up to the end of its leaf; NULL where nothing is kept. */
static char *bytes_at(uint64_t offset)
{
    if (IS_SHARED(offset))
        return offset & FLAT ? (char *)(offset & ~FLAT) : NULL;
    uint32_t place = contents.place[offset / LEAF];
    return place && place != LOST ? contents.store + (uint64_t)(place - 1) * LEAF + offset % LEAF : NULL;
}

void contents_drop(void)
{
    contents.dropped = true;
}

/* False: something was written there which was dropped. */
bool contents_are_kept(uint64_t offset)
{
    return IS_SHARED(offset) ? offset & FLAT : contents.place[offset / LEAF] != LOST;
}

static void tell_unknown(void)
{
    if (!contents.told && !model.quiet)
        fprintf(stderr, "simulated GPU: more than %llu bytes were written: what the program reads now was not kept, and is zero; "
                "CENOTE_SIM=data:SIZE keeps more\n", (unsigned long long)model.shape.data);
    contents.told = true;
}

/* A zeroed place in the store; 0: it is full. */
static uint32_t take_place(void)
{
    if (contents.back_count) {
        uint32_t place = contents.given_back[--contents.back_count];
        memset(contents.store + (uint64_t)(place - 1) * LEAF, 0, LEAF);
        return place;
    }
    return contents.used < contents.places ? ++contents.used : 0;
}

/* Where `bytes`, inside one leaf, are to be written; NULL: they are dropped. */
static char *bytes_to_write(uint64_t offset, uint64_t bytes)
{
    if (IS_SHARED(offset))
        return bytes_at(offset);
    uint32_t *place = &contents.place[offset / LEAF], taken = 0;
    if (!*place || (*place == LOST && bytes == LEAF))
        *place = (taken = take_place()) ? taken : LOST;
    if (*place == LOST)
        contents_drop();
    return bytes_at(offset);
}

static uint64_t leaf_part(uint64_t offset, uint64_t bytes)
{
    uint64_t left = LEAF - offset % LEAF;
    return bytes < left ? bytes : left;
}

/* After each call that gave places back. */
static void end_run(void)
{
    if (contents.run_length >= RUN_LEAST)
        madvise(contents.store + (uint64_t)(contents.run - 1) * LEAF, (uint64_t)contents.run_length * LEAF, MADV_DONTNEED);
    contents.run_length = 0;
}

/* Places are taken again last first: so runs go down as often as up. */
static void give_place(uint32_t place)
{
    contents.given_back[contents.back_count++] = place;
    bool above = contents.run_length && place == contents.run + contents.run_length;
    bool below = contents.run_length && place + 1 == contents.run;
    if (!above && !below)
        end_run();
    if (!above)
        contents.run = place;
    contents.run_length++;
}

/*
 * Zeros, inside one leaf: a leaf that is zero as a whole is not kept, nor is zero written where nothing is kept. Most fills of programs
 * are zeros of whole tensors; they cost neither memory nor time.
 */
static void clear(uint64_t offset, uint64_t bytes)
{
    uint32_t *place = IS_SHARED(offset) ? NULL : &contents.place[offset / LEAF];
    if (place && *place && bytes == LEAF) {
        if (*place != LOST)
            give_place(*place);
        *place = 0;
    } else if (bytes_at(offset)) {
        memset(bytes_at(offset), 0, bytes);
    }
}

/* A leaf at an edge may be shared with a neighbour (where the granularity is small): only its part is cleared then. */
void contents_forget(uint64_t offset, uint64_t bytes)
{
    for (uint64_t end = offset + bytes, part; offset < end && (contents.dropped || contents.used > contents.back_count); offset += part) {
        part = leaf_part(offset, end - offset);
        clear(offset, part);
    }
    end_run();
}

/* One element is written; what is there is copied behind itself, twice as much each time. */
static void fill_bytes(char *to, uint64_t pattern, unsigned width, uint64_t bytes)
{
    memcpy(to, &pattern, width);
    for (uint64_t done = width, part; done < bytes; done += part) {
        part = bytes - done < done ? bytes - done : done;
        memcpy(to + done, to, part);
    }
}

/* `bytes` is a multiple of `width`, and so is `offset`, which keeps an element inside one leaf. */
void contents_fill(uint64_t offset, uint64_t pattern, unsigned width, uint64_t bytes)
{
    for (uint64_t end = offset + bytes, part; offset < end; offset += part) {
        part = leaf_part(offset, end - offset);
        char *to = pattern ? bytes_to_write(offset, part) : NULL;
        if (to)
            fill_bytes(to, pattern, width, part);
        else if (!pattern)
            clear(offset, part);
    }
    end_run();
}

/* How many of the words at `at` are not `pattern`: mostly none, and then the bytes are equal to themselves a word further on. */
static uint64_t words_that_differ(const char *at, uint64_t pattern, uint64_t bytes)
{
    uint64_t different = 0, word;
    if (bytes < sizeof word || (!memcmp(at, &pattern, sizeof word) && !memcmp(at, at + sizeof word, bytes - sizeof word)))
        return 0;
    for (uint64_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        different += word != pattern;
    }
    return different;
}

uint64_t contents_differ(uint64_t offset, uint64_t pattern, uint64_t bytes)
{
    uint64_t different = 0;
    for (uint64_t end = offset + bytes, part; offset < end; offset += part) {
        part = leaf_part(offset, end - offset);
        const char *at = bytes_at(offset);
        if (at)
            different += words_that_differ(at, pattern, part);
        else
            different += pattern && contents_are_kept(offset) ? part / 8 : 0;
    }
    return different;
}

void contents_write(uint64_t offset, const void *from, uint64_t bytes)
{
    const char *source = from;
    for (uint64_t end = offset + bytes, part; offset < end; offset += part, source += part) {
        part = leaf_part(offset, end - offset);
        char *to = bytes_to_write(offset, part);
        if (to)
            memcpy(to, source, part);
    }
}

void contents_read(uint64_t offset, void *to, uint64_t bytes)
{
    char *target = to;
    for (uint64_t end = offset + bytes, part; offset < end; offset += part, target += part) {
        part = leaf_part(offset, end - offset);
        const char *from = bytes_at(offset);
        if (from) {
            memcpy(target, from, part);
            continue;
        }
        memset(target, 0, part);
        if (!contents_are_kept(offset))
            tell_unknown();
    }
}

static void lose(uint64_t offset)
{
    if (IS_SHARED(offset))
        return;
    if (bytes_at(offset))
        give_place(contents.place[offset / LEAF]);
    contents.place[offset / LEAF] = LOST;
    contents_drop();
}

void contents_copy(uint64_t to, uint64_t from, uint64_t bytes)
{
    static const char zeros[LEAF];
    for (uint64_t end = from + bytes, part; from < end; from += part, to += part) {
        part = leaf_part(from, end - from);
        part = leaf_part(to, part);
        const char *source = bytes_at(from);
        char *target = source || bytes_at(to) ? bytes_to_write(to, part) : NULL;
        if (!contents_are_kept(from))
            lose(to);
        else if (target)
            memmove(target, source ? source : zeros, part);
        else if (!source)
            clear(to, part);
    }
    end_run();
}

bool contents_may_share(uint64_t bytes)
{
    return bytes <= model.shape.data && contents.shared <= model.shape.data - bytes;
}

bool contents_are_shared(uint64_t offset)
{
    return IS_SHARED(offset);
}

/* What was never written is not written now either: the file stays sparse. */
uint64_t contents_export(uint64_t offset, uint64_t bytes, void *at)
{
    for (uint64_t done = 0, part; done < bytes; done += part) {
        part = leaf_part(offset + done, bytes - done);
        const char *from = bytes_at(offset + done);
        if (from)
            memcpy((char *)at + done, from, part);
    }
    contents_forget(offset, bytes);
    contents.shared += bytes;
    return FLAT | (uint64_t)at;
}

uint64_t contents_import(void *at)
{
    if (!at)
        contents_drop();
    return at ? FLAT | (uint64_t)at : NOWHERE;
}

void contents_detach(uint64_t offset, uint64_t bytes, bool exported)
{
    if (!(offset & FLAT))
        return;
    munmap(bytes_at(offset), bytes);
    if (exported)
        contents.shared -= bytes;
}
