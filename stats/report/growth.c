/*
 * growth.c: what has grown, in words: since a mark, and step by step.
 *
 * Everything is asked of the pool through the public calls; the text is made here. Memory for the picture of the pool is our own.
 *
 * LOCKING: none; no state.
 */
#include <cenote/cenote.h>
#include <cenote/report.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sized.h"
#include "stats/account/label.h"
#include "stats/text/out.h"
#include "stats/text/quantity.h"

#define STEPS_MAX 64   /* a bit for each */
#define LINES_MAX 12
#define TAGS_SHOWN 192

static void print_change(struct out *out, uint64_t before, uint64_t now)
{
    char bytes[QUANTITY_TEXT];
    out_print(out, "%c%s", now < before ? '-' : '+', quantity_write_bytes(bytes, now < before ? before - now : now - before));
}

/* ------------------------------------------------------------------------------------------------------------------------------ marks */

static int read_mark(cenote_pool *pool, const char *name, cenote_marked *now)
{
    cenote_row rows[CENOTE_KINDS];
    size_t count;
    int error = cenote_pool_rows(pool, CENOTE_BY_KIND, rows, CENOTE_KINDS, &count);
    *now = (cenote_marked){0};
    for (size_t i = 0; i < count && !error; i++) {
        now->kinds[rows[i].key] = rows[i].allocated.current;
        now->live += rows[i].allocated.current;
    }
    snprintf(now->name, sizeof now->name, "%s", name);
    return error;
}

size_t(cenote_pool_mark)(cenote_pool *pool, const char *name, cenote_marked *mark, char *text, size_t room, size_t size)
{
    struct out out = {text, room, 0};
    cenote_marked last = {0}, now;
    char bytes[QUANTITY_TEXT];
    if (!name || !mark) {
        error_set(CENOTE_INVALID, 0, "cenote_pool_mark needs a name and the mark before, zeros at first");
        return 0;
    }
    if (sized_in(&last, sizeof last, mark, size, "cenote_marked") || read_mark(pool, name, &now))
        return 0;
    out_print(&out, "%s: live %s", now.name, quantity_write_bytes(bytes, now.live));
    if (last.name[0]) {
        out_print(&out, ", ");
        print_change(&out, last.live, now.live);
        out_print(&out, " since %.*s", (int)sizeof(last.name) - 1, last.name);
    }
    for (int kind = 0, shown = 0; kind < CENOTE_KINDS; kind++) {
        if (!now.kinds[kind] && !last.kinds[kind])
            continue;
        out_print(&out, "%s%s %s", shown++ ? ", " : "; ", label_kinds[kind], quantity_write_bytes(bytes, now.kinds[kind]));
        if (last.name[0] && now.kinds[kind] != last.kinds[kind]) {
            out_print(&out, " (");
            print_change(&out, last.kinds[kind], now.kinds[kind]);
            out_print(&out, ")");
        }
    }
    sized_out(mark, size, &now, sizeof now);
    return out.length;
}

/* ------------------------------------------------------------------------------------------------------------------------------ steps */

/* Blocks of one site and label that the last steps left behind. */
struct heap_of {
    uint32_t site, tag;
    uint8_t  kind, phase;
    uint64_t bytes, blocks;
    uint64_t steps;         /* a bit for each step that left some, the last is bit 0 */
};

static int by_label(const void *a, const void *b)
{
    const cenote_piece *x = a, *y = b;
    if (x->site != y->site)
        return x->site < y->site ? -1 : 1;
    if (x->tag != y->tag)
        return x->tag < y->tag ? -1 : 1;
    return x->kind != y->kind ? x->kind - y->kind : x->phase - y->phase;
}

static int by_bytes(const void *a, const void *b)
{
    const struct heap_of *x = a, *y = b;
    return x->bytes == y->bytes ? 0 : x->bytes < y->bytes ? 1 : -1;
}

/* The pool's pieces in memory of our own; there may be more of them by the time there is room. */
static int picture(cenote_pool *pool, cenote_piece **pieces, size_t *count, size_t *room)
{
    int error = cenote_pool_pieces(pool, NULL, NULL, 0, count);
    *pieces = NULL;
    *room = 0;
    while (!error && *count > *room) {
        if (*pieces)
            memory_unmap(*pieces, *room * sizeof **pieces);
        *room = *count + *count / 4;
        *pieces = memory_map(*room * sizeof **pieces);
        if (!*pieces)
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a picture of the pool");
        error = cenote_pool_pieces(pool, NULL, *pieces, *room, count);
    }
    return error;
}

/* Keeps live blocks born in the steps (last - steps, last), which are over: `born` is the number of steps that were over before. */
static size_t keep_survivors(cenote_piece *pieces, size_t count, uint64_t last, uint32_t steps)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (pieces[i].state == CENOTE_PIECE_LIVE && pieces[i].born + 1 < last && pieces[i].born + 1 + steps >= last && last >= 2)
            pieces[kept++] = pieces[i];
    if (kept)
        qsort(pieces, kept, sizeof *pieces, by_label);
    return kept;
}

/* Pieces that have site and label in common come to one; they take the place of the pieces, which are larger. */
static size_t gather(cenote_piece *pieces, size_t count, uint64_t last, struct heap_of *heaps)
{
    _Static_assert(sizeof(struct heap_of) <= sizeof(cenote_piece), "a heap lies where its first piece was, or before");
    size_t made = 0;
    for (size_t i = 0; i < count;) {
        cenote_piece first = pieces[i];
        struct heap_of h = {.site = first.site, .tag = first.tag, .kind = first.kind, .phase = first.phase};
        for (; i < count && !by_label(&first, &pieces[i]); i++) {
            h.bytes += pieces[i].size;
            h.blocks++;
            h.steps |= 1ull << (last - 2 - pieces[i].born);
        }
        heaps[made++] = h;
    }
    if (made)
        qsort(heaps, made, sizeof *heaps, by_bytes);
    return made;
}

static void print_heap(struct out *out, const struct heap_of *h, uint32_t steps, const cenote_row *tags, size_t tag_count)
{
    char bytes[QUANTITY_TEXT], site[1024];
    uint64_t every = steps < 64 ? (1ull << steps) - 1 : UINT64_MAX;
    out_print(out, "%8s  in %" PRIu64 " blocks, %s", quantity_write_bytes(bytes, h->bytes), h->blocks,
          (h->steps & every) == every ? "each step leaves some" : "not from each step");
    for (size_t i = 0; i < tag_count && h->tag; i++)
        if (tags[i].key == h->tag)
            out_print(out, "; tag %s", tags[i].name);
    out_print(out, "; %s, %s", label_kinds[h->kind], label_phases[h->phase]);
    if (h->site && cenote_site_text(h->site, site, sizeof site))
        out_print(out, "; %s", site);
    out_print(out, "\n");
}

static void print_steps(struct out *out, const cenote_step_note *notes, size_t count, uint32_t steps)
{
    char live[QUANTITY_TEXT], peak[QUANTITY_TEXT], reserved[QUANTITY_TEXT];
    const cenote_step_note *last = notes, *first = &notes[count - 1 < steps ? count - 1 : steps];
    out_print(out, "step %" PRIu64 ": live %s, peak %s, reserved %s", last->step, quantity_write_bytes(live, last->live),
          quantity_write_bytes(peak, last->peak), quantity_write_bytes(reserved, last->reserved));
    if (last->step > first->step) {
        uint64_t between = last->step - first->step, change = last->live < first->live ? first->live - last->live : last->live - first->live;
        out_print(out, "; %c%s a step over the last %" PRIu64, last->live < first->live ? '-' : '+', quantity_write_bytes(live, change / between),
              between);
    }
    out_print(out, "\n");
}

/* A step older than the oldest that is asked for is compared with: one more note than steps. */
static int report(cenote_pool *pool, uint32_t steps, struct out *out)
{
    cenote_step_note notes[STEPS_MAX + 1];
    cenote_row *tags = NULL;
    cenote_piece *pieces;
    size_t count, room, tag_count = 0;
    int error = cenote_pool_steps(pool, notes, STEPS_MAX + 1, &count);
    if (error)
        return error;
    if (!count)
        return error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "no step is over yet: say cenote_pool_step at the end of each iteration");
    print_steps(out, notes, count < STEPS_MAX + 1 ? count : STEPS_MAX + 1, steps);
    error = picture(pool, &pieces, &count, &room);
    if (!error && !cenote_pool_rows(pool, CENOTE_BY_TAG, NULL, 0, &tag_count) && (tags = memory_map((tag_count + 1) * sizeof *tags))) {
        size_t tag_room = tag_count + 1;
        cenote_pool_rows(pool, CENOTE_BY_TAG, tags, tag_room, &tag_count);
        struct heap_of *heaps = (struct heap_of *)(void *)pieces;
        uint32_t over = steps < notes[0].step ? steps : (uint32_t)notes[0].step - 1; /* what a step left is known when the next is over */
        size_t made = gather(pieces, keep_survivors(pieces, count, notes[0].step, steps), notes[0].step, heaps);
        for (size_t i = 0; i < made && i < LINES_MAX; i++)
            print_heap(out, &heaps[i], over, tags, tag_count < tag_room ? tag_count : tag_room);
        if (made > LINES_MAX)
            out_print(out, "and %zu more\n", made - LINES_MAX);
        memory_unmap(tags, tag_room * sizeof *tags);
    }
    if (pieces)
        memory_unmap(pieces, room * sizeof *pieces);
    return error;
}

size_t cenote_pool_growth(cenote_pool *pool, uint32_t steps, char *text, size_t room)
{
    struct out out = {text, room, 0};
    if (steps < 2 || steps > STEPS_MAX) {
        error_set(CENOTE_INVALID, 0, "cenote_pool_growth looks at 2 to %d steps, not %u", STEPS_MAX, steps);
        return 0;
    }
    return report(pool, steps, &out) ? 0 : out.length;
}
