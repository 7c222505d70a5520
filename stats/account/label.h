/*
 * label.h: what a block is born with, for accounting only: its mark. See labels.c.
 *
 *      63         42   41     40   39      20 19  17 16   14 13     0
 *     | steps over  | held | lent |   site   | kind | phase |   tag  |
 *
 * LOCKING: none; what a thread has pushed is its own, what all threads have in common is one atomic word.
 */
#ifndef CENOTE_STATS_ACCOUNT_LABEL_H
#define CENOTE_STATS_ACCOUNT_LABEL_H

#include <cenote/cenote.h>
#include <cenote/report.h>

#include <stdatomic.h>

#define MARK_TAG_BITS   14
#define MARK_PHASE_AT   14
#define MARK_KIND_AT    17
#define MARK_SITE_AT    20
#define MARK_LENT_AT    40
#define MARK_HELD_AT    41
#define MARK_BORN_AT    42
#define MARK_SITES_MAX ((1u << (MARK_LENT_AT - MARK_SITE_AT)) - 1)
#define MARK_STEPS_MAX ((1ull << (64 - MARK_BORN_AT)) - 1)

#define MARK_TAG    ((1ull << MARK_TAG_BITS) - 1)
#define MARK_PHASE  (7ull << MARK_PHASE_AT)
#define MARK_KIND   (7ull << MARK_KIND_AT)
#define MARK_LENT   (1ull << MARK_LENT_AT)   /* the block is of no group: this one lent the memory */
#define MARK_HELD   (1ull << MARK_HELD_AT)   /* a call makes it, or makes it longer: a reset of its group leaves it */
#define MARK_LABELS (MARK_TAG | MARK_PHASE | MARK_KIND)

_Static_assert(CENOTE_TAGS_MAX <= MARK_TAG && CENOTE_KINDS <= 8 && CENOTE_PHASES <= 8, "labels fit their bits");
_Static_assert(MARK_PHASE_AT == MARK_TAG_BITS && MARK_KIND_AT == MARK_PHASE_AT + 3 && MARK_SITE_AT == MARK_KIND_AT + 3 &&
               MARK_HELD_AT == MARK_LENT_AT + 1 && MARK_BORN_AT == MARK_HELD_AT + 1, "no two labels share a bit");

static inline uint32_t mark_tag(uint64_t mark) { return (uint32_t)(mark & MARK_TAG); }
static inline uint32_t mark_phase(uint64_t mark) { return (uint32_t)(mark >> MARK_PHASE_AT) & 7; }
static inline uint32_t mark_kind(uint64_t mark) { return (uint32_t)(mark >> MARK_KIND_AT) & 7; }
static inline uint32_t mark_site(uint64_t mark) { return (uint32_t)(mark >> MARK_SITE_AT) & MARK_SITES_MAX; }
static inline uint64_t mark_born(uint64_t mark) { return mark >> MARK_BORN_AT; }

#define LABEL_PUSHED (1ull << 63)               /* in label_common: some thread has pushed a tag */

extern _Thread_local uint32_t label_tag;        /* pushed by this thread, 0: none */
extern _Atomic(uint64_t) label_common;          /* phase and kind for all threads, and the tag of those without one */

/* Labels for what this thread allocates now. A thread's own storage is looked at only in programs that push tags. */
static inline uint64_t label_now(void)
{
    uint64_t common = atomic_load_explicit(&label_common, memory_order_relaxed);
    if (__builtin_expect(!(common & LABEL_PUSHED), 1))
        return common;
    return label_tag ? (common & (MARK_PHASE | MARK_KIND)) | label_tag : common & ~LABEL_PUSHED;
}

void label_path(uint32_t tag, char *text, size_t room);

extern const char *const label_kinds[CENOTE_KINDS], *const label_phases[CENOTE_PHASES]; /* their names */

#endif
