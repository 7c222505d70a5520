/*
 * snapshot.h: what a snapshot keeps of a pool, before it is written down. snapshot.c copies it, snapshot_json.c writes it.
 *
 * Copies lie in one mapping of our own, a part behind the other: they name things by number and point nowhere.
 */
#ifndef CENOTE_STATS_REPORT_SNAPSHOT_H
#define CENOTE_STATS_REPORT_SNAPSHOT_H

#include "base/file.h"
#include "pool/pool.h"

enum part {
    PART_ROWS,                              /* cenote_row: one part for each division */
    PART_STEPS = PART_ROWS + CENOTE_BY_KIND + 1, /* cenote_step_note */
    PART_GROUPS,                            /* cenote_group */
    PART_ARENAS,                            /* struct arena_copy */
    PART_PIECES,                            /* cenote_piece */
    PART_PAGES,                             /* struct page_copy */
    PART_REGIONS,                           /* struct region_copy */
    PART_SLOTS,                             /* struct slot_copy, of all regions in their order */
    PART_WAITS,                             /* struct wait_copy */
    PART_SITES,                             /* words of bits: sites of pieces. None for a pool that keeps no sites */
    PARTS
};

struct arena_copy {
    uint32_t number, group, slow_path_users, regions;
    uint64_t stream, blocks, reserved;
    CUstream handle;
    tick     last_return_tick;
    bool     is_private, retired;
};

struct page_copy {
    uint32_t number, maps, pins, arena;
    uint64_t bytes;
    tick     freed;
    struct slot_ref owner, home;                /* region 0: none */
    bool     fixed, leaving, sole, complete;
};

struct region_copy {
    uint32_t number, arena, slots, copied;  /* copied: slots in PART_SLOTS */
    uint64_t base, bytes, top;
    bool     fixed, is_segment;
};

struct slot_copy {                          /* of one that maps a page or is not at rest; not of silent ones */
    uint32_t slot, page, edges, pins;
    tick     freed;
    bool     sole, home, busy, transit, broken;
};

/* A freed block, and one of the streams it waits for. */
struct wait_copy {
    uint64_t at, requested, stream;
    CUstream handle;
    tick     freed;
    int      device;
    bool     has_event, needs_fence;        /* neither: other devices are asked, and their answers are not under the lock */
};

struct snapshot {
    char  *memory;
    size_t room, used;                      /* used counts on where there is no room */
    struct {
        size_t at, count;
    } parts[PARTS];
    uint64_t now_ns;                        /* since the pool was opened, by its clock */
    bool     is_one_moment, is_default;
    int      device, provider;
    uint64_t steps;
    double   trim_above;
    CUresult lost;
    uint64_t pins;
    struct fences  fences;
    struct capture captures[CAPTURES_MAX];
    uint32_t capture_count;
    uint64_t records, records_lost;
    cenote_stats stats;
};

#define PART_AT(type, s, part) ((const type *)(const void *)((s)->memory + (s)->parts[part].at))

void snapshot_write(const struct snapshot *s, const cenote_pool *pool, struct file *file);

#endif
