/*
 * sleep.h: memory that leaves the device and comes back, at the same addresses. docs/sleep.md says what for.
 *
 *     cenote_sleep sleep = {.group = engine};
 *     cenote_pool_pause(pool, &sleep);         its pages go to the driver, what lies on them to the host
 *     cenote_pool_resume(pool, &sleep);        they come back, and blocks are as they were
 *
 * Conventions are those of cenote.h.
 */
#ifndef CENOTE_SLEEP_H
#define CENOTE_SLEEP_H

#include <cenote/cenote.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What becomes of the bytes of blocks that sleep. */
enum cenote_contents {
    CENOTE_KEEP,       /* they come back */
    CENOTE_DISCARD,    /* they do not, but for blocks under 1 MiB, which come back: programs write such once and never again */
    CENOTE_DISCARD_ALL, /* they do not, of no block */
    CENOTE_CONSTANT    /* they come back, and the copy stays on the host: as long as no block is taken from the same stream and group, later pauses
                          with CENOTE_CONSTANT copy nothing. The program does not write to the blocks before it has paused them otherwise */
};

/* What is to sleep or to wake, and what a call did. All 0: the whole pool, and contents are kept. */
typedef struct cenote_sleep {
    cenote_group      *group;     /* the blocks of this group alone */
    const void *const *blocks;    /* these blocks alone, each by its start, in any order */
    uint64_t           count;     /* of `blocks` */
    uint32_t           contents;  /* of enum cenote_contents, for pauses */
    uint32_t           unused;

    uint64_t           pages;     /* the call sets it, and what follows: bytes of memory that went to the driver, or came back from it */
    uint64_t           kept;      /* bytes of contents that were copied */
    uint64_t           discarded; /* bytes of blocks whose contents were not, of pauses alone */
    uint64_t           awake;     /* bytes of pages that stay although a named block lies there (what has no pages, of cuMemAlloc, stays and is
                                     not counted), of pauses alone: the page is pinned or was
                                     exported, a block lies there that was not named, or one that waits for a stream, or the device may still use
                                     what was freed there (announced:0) */
    uint64_t           ns;        /* how long the call took, by the clock of the pool */
} cenote_sleep;

/*
 * What `sleep` names goes to sleep; NULL is the whole pool. The call waits until the device, and all that have access, are done with it. If a pool
 * of the process has the option announced:0, it waits for streams alone that cenote may touch, and for no other device: the program waits for all
 * others that have used what sleeps, before the call. It copies what is to be kept, and gives the pages back to the driver. Until
 * cenote_pool_resume no kernel may touch the blocks. Addresses stay theirs: no allocation gets them or waits for them. A block that sleeps may be
 * freed, and then its copy goes with it. What is allocated from the group meanwhile is awake. Free pages of a private group sleep too if the group
 * or the pool is named, because a graph may know them. Memory that the pool has whole (segments, and the memory of a cenote_source) stays awake.
 * CENOTE_CAPTURE, while an announced capture is open on the device. CENOTE_BUSY: a capture is open on a device that has access; nothing sleeps.
 * CENOTE_OUT_OF_HOST_MEMORY, if the host has no room for a copy; CENOTE_DRIVER, if the driver refuses a call. After an error what has gone to sleep
 * by then sleeps, and `sleep` says how much; the rest is awake, and nothing is lost.
 * CENOTE_NOT_OURS: an address of `blocks` is not the start of a live block of the pool; nothing happens.
 */
CENOTE_API int cenote_pool_pause(cenote_pool *pool, cenote_sleep *sleep, size_t size);
#define cenote_pool_pause(...) cenote_pool_pause(__VA_ARGS__, sizeof(cenote_sleep))

/*
 * All that sleeps of what `sleep` names gets memory again, and its contents, before the call returns. All or nothing: after an error all of it
 * sleeps on with its contents. CENOTE_OUT_OF_MEMORY: the device has no room, and the message says who holds it. Contents that were discarded are
 * undefined. CENOTE_CAPTURE as above. What is awake stays so.
 */
CENOTE_API int cenote_pool_resume(cenote_pool *pool, cenote_sleep *sleep, size_t size);
#define cenote_pool_resume(...) cenote_pool_resume(__VA_ARGS__, sizeof(cenote_sleep))

typedef struct cenote_loan cenote_loan; /* memory that other processes may have for a while */

/*
 * The program does not use what `sleep` names (as for cenote_pool_pause) until cenote_loan_end, and other processes may have its memory meanwhile.
 * If a process of the same user is short of memory of this card, in an allocation or at the end of a loan of its own, what is free in pools that lend
 * goes to the driver; if that is too little, what is lent goes to sleep. A thread of cenote's does it. As long as nobody asks, nothing happens. The
 * process that asks waits for it, 30 seconds at most, and only if a process lends. It must be in the same network namespace. A block that is freed,
 * or a group that is destroyed, is lent no more. CENOTE_BUSY: 256 loans are there. CENOTE_NOT_SUPPORTED: the driver does not say which card it is.
 * CENOTE_NOT_OURS: an address of `blocks` is not the start of a live block of the pool.
 */
CENOTE_API int cenote_pool_lend(cenote_pool *pool, const cenote_sleep *sleep, cenote_loan **loan, size_t size);
#define cenote_pool_lend(...) cenote_pool_lend(__VA_ARGS__, sizeof(cenote_sleep))

/*
 * The program has it back: if it was taken, it wakes as by cenote_pool_resume before the call returns. If the card has too little memory, the call
 * asks the other processes that lend. CENOTE_OUT_OF_MEMORY: they have none either; the loan goes on, and what it names sleeps on with its contents.
 * `result` says what came back, and may be NULL. A loan ends with its pool. A loan that has ended is CENOTE_INVALID.
 */
CENOTE_API int cenote_loan_end(cenote_loan *loan, cenote_sleep *result, size_t size);
#define cenote_loan_end(...) cenote_loan_end(__VA_ARGS__, sizeof(cenote_sleep))

/*
 * Copies to the host what was kept of a block that sleeps: `bytes` from `from` on, an address inside the block, to `to`. The caller keeps the block
 * live meanwhile. After a reset of the device it is there still. CENOTE_INVALID: a part of it is awake, or was discarded.
 */
CENOTE_API int cenote_block_read_asleep(const void *from, void *to, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
