/*
 * sizes.h: calls a function with its struct as every other header has it: cut after each member in turn, longer than the library knows, and of
 * sizes that no struct has. The struct ends where a page begins that nothing may touch, and what lies before it must stay.
 *
 * Not how the structs lie: tools/check/abi.def says that, and the cuts are its rows.
 */
#ifndef CENOTE_TESTS_SIZES_H
#define CENOTE_TESTS_SIZES_H

#include "tests/harness.h"

#include <cenote/cenote.h>
#include <cenote/host.h>
#include <sys/mman.h>

#define SIZES_ROOM 16384 /* before the page that nothing may touch */
#define SIZES_MORE 40    /* bytes that only a later header has */

struct sized_call {
    const char *type;
    size_t known;
    int (*ask)(void *at, size_t size); /* the call under test; 0 or its error */
    bool goes_in, comes_out;
    size_t more;                       /* elements of an array beyond the first */
    size_t least;                      /* a shorter struct lacks what the call cannot do without: CENOTE_INVALID */
};

static const struct sized_cut {
    const char *type;
    size_t size;
} sized_cuts[] = {
#define MEMBER(type, member, offset, bytes) {#type, (offset) + (bytes)},
#define VALUE(name, number)
#include "tools/check/abi.def"
#undef MEMBER
#undef VALUE
};

/* Memory of that size with nothing behind it. */
static inline char *sizes_place(size_t bytes)
{
    static char *room;
    if (!room) {
        room = mmap(NULL, SIZES_ROOM + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(room != MAP_FAILED);
        REQUIRE(!mprotect(room + SIZES_ROOM, 4096, PROT_NONE));
    }
    memset(room, 0xbb, SIZES_ROOM);
    return room + SIZES_ROOM - bytes;
}

static inline bool sizes_are(const char *at, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)at[i] != value)
            return false;
    return true;
}

/* A compiler gives each of these structs whole words, and none a single one. */
static inline bool sizes_can_be(size_t size)
{
    return size % 8 == 0 && size > 8;
}

/* One call with elements of `size` bytes, whose members go in and must come out as in `whole`. */
static inline void sizes_try(const struct sized_call *call, const char *whole, size_t size)
{
    size_t elements = 1 + call->more, all = size * elements, shared = size < call->known ? size : call->known;
    char *at = sizes_place(all);
    memset(at, call->goes_in ? 0 : 0xaa, all);
    for (size_t i = 0; i < elements && call->goes_in; i++)
        memcpy(at + i * size, whole + i * call->known, shared);
    bool is_refused = !sizes_can_be(size) || size < call->least;
    EXPECT_EQ(call->ask(at, size), is_refused ? CENOTE_INVALID : CENOTE_OK);
    bool fine = sizes_are(at - (SIZES_ROOM - all), SIZES_ROOM - all, 0xbb);
    for (size_t i = 0; i < elements && call->comes_out && !is_refused; i++)
        fine = fine && !memcmp(at + i * size, whole + i * call->known, shared) && sizes_are(at + i * size + shared, size - shared, 0);
    if (!fine)
        fprintf(stderr, "%s of %zu bytes\n", call->type, size);
    EXPECT(fine);
}

/* `whole`: the struct of this header, as it goes in or with room for what comes out. */
static inline void sizes_try_all(const struct sized_call *call, void *whole)
{
    unsigned cuts = 0;
    REQUIRE_EQ(call->ask(whole, call->known), CENOTE_OK);
    for (size_t i = 0; i < sizeof sized_cuts / sizeof sized_cuts[0]; i++)
        if (!strcmp(sized_cuts[i].type, call->type)) {
            sizes_try(call, whole, sized_cuts[i].size);
            cuts++;
        }
    EXPECT(cuts > 0);
    sizes_try(call, whole, call->known + SIZES_MORE);

    size_t newer = call->known + SIZES_MORE, all = newer * (1 + call->more);
    char *at = sizes_place(all);
    memset(at, 0, all);
    memcpy(at, whole, call->known);
    at[newer - 1] = 1; /* a later header sets what this library cannot do */
    EXPECT_EQ(call->ask(at, newer), call->goes_in ? CENOTE_INVALID : CENOTE_OK);
    const size_t none[] = {0, 1, 3, sizeof whole, call->known - 1, call->known + 4, 4097, SIZE_MAX};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        EXPECT_EQ(call->ask(whole, none[i]), CENOTE_INVALID);
}

#endif
