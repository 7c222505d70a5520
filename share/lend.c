/*
 * lend.c: memory that a program does not use for a while, and that other processes of its user on the same card may have meanwhile.
 *
 *     cenote_pool_lend ---> lent ---another process wants memory: it goes to sleep---> taken
 *                            |                                                           |  cenote_loan_end
 *                            +---cenote_loan_end: nothing happens---> ended <---it wakes-+
 *
 * The loan goes as a whole: what it names sleeps as after cenote_pool_pause. So kernels must not touch it until the loan has ended. What wakes needs
 * memory: if the card has too little, cenote_loan_end asks the other processes in turn, and if they have none either, the loan goes on and the
 * contents sleep on. Who asks is answered in a bounded time (wants.c): nobody waits for a process that waits for him, because a thread of its own
 * answers, and needs no memory of the card to do so.
 *
 * It is not sleep (pool/sleep/): which pages go, and how they come back, is decided there.
 *
 * LOCKING: `lending` guards the table, but not while a loan is `going` or `coming`: then the loan is its thread's. `working` is held while memory
 * goes, across driver calls: the end of the process waits for it. It is taken with no other lock held, and before all that cenote_pool_pause takes.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cenote/sleep.h>

#include "base/check.h"
#include "pool/arenas/locate.h"
#include "pool/life/pool.h"
#include "pool/life/turn.h"
#include "pool/mapping/trim.h"
#include "share/lend.h"

#define LOANS_MAX 256
#define TRIES 8                     /* of one end: what others gave may have gone to a third */

enum loan_state { NO_LOAN, LENT, GOING, TAKEN, COMING };

struct cenote_loan {
    enum loan_state state;
    uintptr_t    handle;            /* what the program has: the loan's place and its number, in no other loan's handle. No address */
    cenote_pool *pool;
    uint64_t     serial;            /* of the pool */
    cenote_sleep what;
    const void **list;              /* what.blocks, a copy of our own; NULL: none */
    uint32_t    *names;             /* the number of each, behind the list */
    uint32_t     group;             /* the number of what.group */
    uint64_t     listed;            /* how long the list was at first */
    uint64_t     pages;             /* bytes that went, while it is taken */
};

static LOCK_OF_PROCESS struct lock lending = LOCK_INITIALIZER(LOCK_SHARE);
static struct lock working = LOCK_INITIALIZER(LOCK_SHARE);  /* not of the order of ranks: lock_take_plain */
static struct cenote_loan loans[LOANS_MAX];
static uintptr_t loans_made;
static _Atomic(uint32_t) changes;   /* one more whenever a loan stops going or coming */
static atomic_bool stopped;

/* ------------------------------------------------------------------------------------------------------------------------------- the table */

/* NULL: all places are taken. LOCKING: `lending`. */
static cenote_loan *add(const cenote_loan *loan)
{
    uintptr_t place = 0;
    while (place < LOANS_MAX && loans[place].state != NO_LOAN)
        place++;
    if (place == LOANS_MAX)
        return NULL;
    loans[place] = *loan;
    loans[place].handle = ++loans_made * LOANS_MAX + place;
    return &loans[place];
}

static size_t list_bytes(uint64_t count)
{
    return count * (sizeof(void *) + sizeof(uint32_t));
}

static void forget(cenote_loan *loan)
{
    if (loan->list)
        memory_unmap((void *)loan->list, list_bytes(loan->listed));
    memset(loan, 0, sizeof *loan);
}

static void settle(cenote_loan *loan, enum loan_state state)
{
    lock_take(&lending);
    if (state == NO_LOAN)
        forget(loan);
    loan->state = state;
    atomic_fetch_add(&changes, 1);
    lock_give(&lending);
    syscall(SYS_futex, &changes, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Waits while another thread has the loan. LOCKING: `lending`, let go of meanwhile. */
static void await(const cenote_loan *loan)
{
    uintptr_t handle = loan->handle;
    while (loan->handle == handle && (loan->state == GOING || loan->state == COMING)) {
        uint32_t seen = atomic_load(&changes);
        lock_give(&lending);
        syscall(SYS_futex, &changes, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        lock_take(&lending);
    }
}

/* A loan of a pool that is there still. LOCKING: `lending`. */
static bool is_of(const cenote_loan *loan, const unsigned char card[LEND_CARD_BYTES])
{
    return !pool_usable(loan->pool) && loan->pool->config.serial == loan->serial && !memcmp(loan->pool->config.device->uuid, card, LEND_CARD_BYTES);
}

/* ----------------------------------------------------------------------------------------------------------------------- memory that goes */

static uint64_t held(cenote_pool *pool)
{
    if (pool_take_lock(pool))
        return 0;
    uint64_t bytes = pool->store.pages.reserved;
    lock_give(&pool->lock);
    return bytes;
}

/* What the device is done with. Sources keep what is theirs. */
static void give_back_what_is_free(cenote_pool *pool)
{
    if (!device_context(pool->config.device) || turn_begin(pool))
        return;
    if (!events_poll(&pool->clock, UINT64_MAX) && !pool_is_capturing(pool)) {
        pending_poll(pool);
        trim_flush(pool);
        trim_without_sources(pool, 0, UINT64_MAX);
    }
    turn_end(pool);
}

/* What has ended since is named no more. False: nothing is left. LOCKING: none; the loan is ours. */
static bool names_something(cenote_loan *loan)
{
    cenote_pool *pool = loan->pool;
    uint64_t count = 0;
    if (pool_take_lock(pool))
        return false;
    bool has_group = !loan->what.group || (loan->what.group->lent == loan->group && !loan->what.group->destroyed);
    for (uint64_t i = 0; i < loan->what.count; i++)
        if (index_find(&pool->lent.by_block, (uint64_t)(uintptr_t)loan->list[i]) == loan->names[i]) {
            loan->list[count] = loan->list[i];
            loan->names[count++] = loan->names[i];
        }
    lock_give(&pool->lock);
    loan->what.count = count;
    return has_group && (count || !loan->list);
}

/*
 * What is free in the loan's pool goes, and then, if that is too little, the loan. How many bytes went. No function of the program is called: this is
 * a thread of ours, and such a function may end a loan, for which it would wait. LOCKING: `working`; the loan is ours.
 */
static uint64_t let_go(cenote_loan *loan, uint64_t bytes, bool *taken)
{
    cenote_pool *pool = loan->pool;
    uint64_t before = held(pool);
    give_back_what_is_free(pool);
    uint64_t now = held(pool), gone = before > now ? before - now : 0;
    if (!*taken && gone < bytes && names_something(loan)) {
        cenote_sleep what = loan->what;
        pool->config.hooks->pause(pool, &what); /* after an error a part of it may sleep */
        loan->pages += what.pages;
        *taken = loan->pages != 0;
        gone += what.pages;
    }
    return gone;
}

/* The next loan on the card that was not looked at for this want; its thread is the caller then. */
static cenote_loan *take_next(const unsigned char card[LEND_CARD_BYTES], int *next, bool *taken)
{
    cenote_loan *found = NULL;
    lock_take(&lending);
    for (; !found && *next < LOANS_MAX; ++*next) {
        cenote_loan *loan = &loans[*next];
        if ((loan->state != LENT && loan->state != TAKEN) || !is_of(loan, card))
            continue;
        found = loan;
        *taken = loan->state == TAKEN;
        loan->state = GOING;
    }
    lock_give(&lending);
    return found;
}

/*
 * Bytes of the card go to the driver: of pools that lend, what is free, and what is lent, until it is enough. How many went. That a pool ends
 * meanwhile is no mistake of the program. LOCKING: none.
 */
static uint64_t give(const unsigned char card[LEND_CARD_BYTES], uint64_t bytes)
{
    uint64_t gave = 0;
    bool taken;
    int next = 0;
    struct error_aside aside;
    error_lay_aside(&aside);
    lock_take_plain(&working);
    for (cenote_loan *loan; !atomic_load(&stopped) && gave < bytes && (loan = take_next(card, &next, &taken));) {
        gave += let_go(loan, bytes - gave, &taken);
        settle(loan, taken ? TAKEN : LENT);
    }
    lock_give_plain(&working);
    error_take_back(&aside);
    return gave;
}

/* The process ends: nothing goes from now on (rule 10). */
static void stop(void)
{
    if (driver_is_forked())
        return;
    atomic_store(&stopped, true);
    lock_settle(&working, EXIT_PATIENCE);
}

/* ---------------------------------------------------------------------------------------------------------------------------- the interface */

/* The number of the block's name in loans; 0: it is no live block of the pool, or there is no host memory. */
static uint32_t name_block(cenote_pool *pool, const void *block)
{
    struct block_ref w = {0};
    uint64_t at = (uint64_t)(uintptr_t)block;
    uint32_t name = 0;
    cenote_pool *owner = locate_lock(block, &w);
    if (owner == pool && locate_at(pool, at, &w) == FOUND_LIVE && !(name = index_find(&pool->lent.by_block, at)) &&
        index_reserve(&pool->lent.by_block, 1))
        index_add(&pool->lent.by_block, at, name = ++pool->lent.last);
    if (owner)
        lock_give(&owner->lock);
    return name;
}

/* LOCKING: none; no other thread knows the loan. */
static int take_names(cenote_loan *loan)
{
    const void *const *blocks = loan->what.blocks;
    cenote_group *group = loan->what.group;
    int error = group ? pool_take_lock(loan->pool) : CENOTE_OK;
    if (group && !error) {
        loan->group = group->lent = group->lent ? group->lent : ++loan->pool->lent.last;
        lock_give(&loan->pool->lock);
    }
    if (error || !loan->what.count)
        return error;
    loan->listed = loan->what.count;
    loan->list = memory_map(list_bytes(loan->listed));
    if (!loan->list)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a loan of %llu blocks", (unsigned long long)loan->listed);
    loan->names = (uint32_t *)(void *)(loan->list + loan->listed);
    loan->what.blocks = loan->list;
    for (uint64_t i = 0; i < loan->listed; i++) {
        loan->list[i] = blocks[i];
        if (!(loan->names[i] = name_block(loan->pool, blocks[i])))
            return error_set(CENOTE_NOT_OURS, 0, "%p, number %llu of the list, is not the start of a live block of the pool, or there is no "
                             "host memory", blocks[i], (unsigned long long)i);
    }
    return CENOTE_OK;
}

int(cenote_pool_lend)(cenote_pool *pool, const cenote_sleep *sleep, cenote_loan **loan, size_t size)
{
    static const unsigned char unnamed[LEND_CARD_BYTES];
    static const struct lend_books books = {give, stop};
    cenote_sleep what = {0};
    int error = pool_usable(pool);
    if (error || (sleep && (error = sized_in(&what, sizeof what, sleep, size, "cenote_sleep"))))
        return error;
    if (what.group && (what.group->pool != pool || what.group->destroyed))
        return error_set(CENOTE_INVALID, 0, "the group is of another pool, or was destroyed: give one of this pool, or NULL");
    if (!loan || what.contents > CENOTE_CONSTANT || what.unused || what.count > SIZE_MAX / 2 / sizeof *what.blocks || (what.count && !what.blocks))
        return error_set(CENOTE_INVALID, 0, "a loan names what cenote_pool_pause takes, and has a place for the loan");
    if (!memcmp(pool->config.device->uuid, unnamed, sizeof unnamed))
        return error_set(CENOTE_NOT_SUPPORTED, 0, "the driver does not say which card device %d is: no other process could ask for its memory",
                         pool->config.device->ordinal);
    if (!wants_serve(&books))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no socket or thread to hear what others want: %s", strerror(errno));
    cenote_loan ours = {.state = LENT, .pool = pool, .serial = pool->config.serial, .what = what};
    error = take_names(&ours);
    lock_take(&lending);
    cenote_loan *made = error ? NULL : add(&ours);
    if (made)
        *loan = (cenote_loan *)made->handle; /* NOLINT: it is no address */
    else
        forget(&ours);
    lock_give(&lending);
    if (!made && !error)
        return error_set(CENOTE_BUSY, 0, "%d loans are there: end one first", LOANS_MAX);
    return error;
}

/* Others are asked for what the pages need; what they gave may go to a third, so several times. LOCKING: none. */
static int bring_back(cenote_loan *loan, cenote_sleep *what)
{
    uint64_t until = 0;
    int error = (cenote_pool_resume)(loan->pool, what, sizeof *what);
    for (int tries = 0; error == CENOTE_OUT_OF_MEMORY && tries < TRIES && wants_ask(loan->pool, loan->pages, &until); tries++)
        error = (cenote_pool_resume)(loan->pool, what, sizeof *what);
    return error;
}

int(cenote_loan_end)(cenote_loan *handle, cenote_sleep *result, size_t size)
{
    cenote_sleep what = {0};
    cenote_loan *loan = &loans[(uintptr_t)handle % LOANS_MAX];
    int error = pool_process_usable();
    if (error || (error = sized_check(size, "cenote_sleep")))
        return error;
    lock_take(&lending);
    if (loan->handle == (uintptr_t)handle)
        await(loan);
    bool known = loan->state != NO_LOAN && loan->handle == (uintptr_t)handle;
    bool taken = known && loan->state == TAKEN;
    if (known && !taken)
        forget(loan);
    if (taken) {
        loan->state = COMING;
        what = loan->what;
    }
    lock_give(&lending);
    if (!known)
        return error_set(CENOTE_INVALID, 0, "there is no such loan: it has ended, or its pool has");
    if (taken) {
        bool is_there = names_something(loan);
        what.count = loan->what.count;
        error = is_there ? bring_back(loan, &what) : pool_usable(loan->pool);
        settle(loan, error ? TAKEN : NO_LOAN);
    }
    if (!error && result) {
        what.blocks = NULL;
        sized_out(result, size, &what, sizeof what);
    }
    return error;
}

/* The pool is closed for calls: its loans end with it. LOCKING: none, not inside a device. */
void lend_pool_ends(const cenote_pool *pool)
{
    lock_take(&lending);
    for (int i = 0; i < LOANS_MAX; i++)
        if (loans[i].state != NO_LOAN && loans[i].pool == pool && loans[i].serial == pool->config.serial) {
            await(&loans[i]);
            if (loans[i].state != NO_LOAN)
                forget(&loans[i]);
        }
    lock_give(&lending);
}
