/*
 * explain.c: gathers the facts of an explanation and has them printed (stats/text/explain.c). Nothing here decides anything.
 *
 * The facts are taken one after the other, each at its own moment, and nothing is held while the driver, the management library and the
 * program are asked: figures of a busy program may miss each other by what happened in between. What cannot be asked is left unknown.
 *
 * LOCKING: none held by the caller, not inside a device. `moment_lock` guards the function of the program, and is not held while it runs.
 */
#include "stats/report/explain.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/process.h"
#include "driver/nvml.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "pool/life/pools.h"
#include "pool/provider/provider.h"
#include "stats/account/count.h"
#include "stats/report/pieces.h"
#include "stats/text/facts.h"

#define EMPTY_PART 10   /* our choice: a device of which less than a tenth is in use is called empty */

static LOCK_OF_PROCESS struct lock moment_lock = LOCK_INITIALIZER(LOCK_GLOBAL);
static cenote_moment_fn moment_function;
static void *moment_arg;
static size_t moment_size; /* of the cenote_moment that the function knows */
static _Thread_local bool is_asking; /* the program's function runs on this thread */

int(cenote_on_moment)(cenote_moment_fn function, void *arg, size_t size)
{
    int error = pool_process_usable();
    if (error || (error = sized_check(size, "cenote_moment")))
        return error;
    lock_take(&moment_lock);
    moment_function = function;
    moment_arg = arg;
    moment_size = size;
    lock_give(&moment_lock);
    return CENOTE_OK;
}

int cenote_pool_set_user(cenote_pool *pool, const char *name)
{
    int error = pool_usable(pool);
    if (error)
        return error;
    bool fits = name && *name && strlen(name) < sizeof pool->report.user;
    for (const char *c = name; fits && *c; c++)
        fits = *c > ' ' && *c <= '~';
    if (!fits)
        return error_set(CENOTE_INVALID, 0, "a name for explanations has 1 to %zu letters of ASCII: give another", sizeof pool->report.user - 1);
    if ((error = pool_take_lock(pool)))
        return error;
    memset(pool->report.user, 0, sizeof pool->report.user);
    strcpy(pool->report.user, name);
    lock_give(&pool->lock);
    return CENOTE_OK;
}

/* ----------------------------------------------------------------------------------------------------------------------------- the pool */

/*
 * What the arena holds beside blocks, live or pending, serves no other arena if it is private or its segments stay.
 * LOCKING: the pool's lock.
 */
static void look_at_arena(const cenote_pool *pool, const struct arena *a, uint64_t held, struct facts *f)
{
    const cenote_group *g = a->group ? group_of(pool, a->group) : NULL;
    bool moves = provider_moves_pages(pool, a), is_whole = g && g->flags & CENOTE_GROUP_WHOLE;
    f->in_groups += g ? a->row.current : 0;
    if (!a->is_private && moves && !is_whole)
        return;
    uint64_t used = a->row.current + a->pending, unused = held > used ? held - used : 0;
    *(a->is_private ? &f->frozen : moves ? &f->whole : &f->immovable) += unused;
}

/* In portions, as there may be thousands. LOCKING: the pool's lock. */
static void look_at_groups(struct look *look, const struct arena_sums *sums, struct facts *f)
{
    const cenote_pool *pool = look->pool;
    for (uint32_t number = 1; number < pool->groups.table.used; number++, look_goes_on(look, 1)) {
        const cenote_group *g = group_of(pool, number);
        if (!g->number || !(g->flags & CENOTE_GROUP_PRIVATE) || g->destroyed)
            continue;
        f->private_pools++;
        f->idle_pools += !g->row.blocks && !g->captures && g->arenas;
    }
    for (uint32_t number = 1; number < pool->store.arenas.used; number++, look_goes_on(look, 1)) {
        const struct arena *a = arena_of(pool, number);
        if (!a->number)
            continue;
        look_at_arena(pool, a, sum_of_arena(sums, number), f);
        const cenote_group *g = a->group ? group_of(pool, a->group) : NULL;
        if (g && a->is_private && !g->row.blocks && !g->captures) /* of a destroyed one none is private */
            f->idle += sum_of_arena(sums, number);
    }
}

/* How many of the last steps each left more behind than the one before. LOCKING: the pool's lock. */
static void look_at_steps(const cenote_pool *pool, struct facts *f)
{
    const uint64_t kept = pool->steps.count < CENOTE_STEPS_KEPT ? pool->steps.count : CENOTE_STEPS_KEPT;
    const cenote_step_note *newer = NULL;
    bool grows = true;
    for (uint64_t i = 0; i < kept; i++) {
        const cenote_step_note *note = &pool->steps.notes[(pool->steps.count - 1 - i) % CENOTE_STEPS_KEPT];
        if (note->peak > f->moment.training_peak)
            f->moment.training_peak = note->peak;
        grows = grows && (!newer || newer->live > note->live);
        if (newer && grows) {
            f->growing++;
            f->grown += newer->live - note->live;
        }
        newer = note;
    }
    f->steps = pool->steps.count;
}

/* What is small is one moment's, what is summed up over regions, arenas and groups about that moment's. */
static void look_at_books(cenote_pool *pool, struct facts *f)
{
    struct look look;
    struct arena_sums held = {0};
    pieces_sums_open(&held, pool); /* without host memory nothing is said of arenas */
    if (look_begin(&look, pool)) { /* it has ended: there is nothing to tell of */
        pieces_sums_close(&held);
        return;
    }
    const cenote_stats *s = &pool->account.stats;
    f->moves = pool->config.provider == CENOTE_VMM;
    f->page = 1ull << pool->store.pages.shifts[GRADE_LARGE];
    f->limit = pool->limits.bytes;
    f->reserved = pool->store.pages.reserved;
    f->asleep = pool->store.pages.asleep;
    f->allocated = s->allocated.current;
    f->blocks = s->blocks.current;
    f->waiting = s->active.current - s->allocated.current;
    look_at_steps(pool, f);
    if (pool->account.is_labelled) {
        f->activations = pool->account.by_kind[CENOTE_KIND_ACTIVATIONS].current;
        f->moment.gradients = pool->account.by_kind[CENOTE_KIND_GRADIENTS].current;
    }
    struct pages_sums sums = report_sum(&look).pages;
    f->harvestable = sums.harvestable;
    f->waiting += sums.in_flight;
    f->is_unannounced = !touch_captures_are_announced();
    f->frozen = sums.pinned;
    pieces_sum(&look, &held);
    look_at_groups(&look, &held, f);
    look_end(&look);
    pieces_sums_close(&held);
}

static void look_at_pools(cenote_pool *pool, struct facts *f)
{
    look_at_books(pool, f);
    for (cenote_pool *other = NULL; (other = pool_next_on_device(pool, other));) {
        if (other == pool)
            continue;
        lock_take(&other->lock);
        f->elsewhere += other->life.open ? other->store.pages.reserved : 0;
        f->pools += other->life.open;
        lock_give(&other->lock);
    }
}

/* --------------------------------------------------------------------------------------------------------------------------- the device */

static void ask_driver(cenote_pool *pool, struct facts *f)
{
    size_t left = 0, total = 0;
    CUresult result = device_enter_as_it_is(pool->config.device, pool->config.generation);
    if (!result)
        result = !device_context(pool->config.device) ? CUDA_ERROR_INVALID_CONTEXT : pool->config.device->driver->cuMemGetInfo(&left, &total);
    device_leave(pool->config.device);
    if (result || left > total)
        return;
    f->left = left;
    f->capacity = total;
}

static enum facts_kin kin_of(unsigned pid, const struct process *p)
{
    return p->parent == getpid() ? KIN_CHILD : process_is_left((int)pid, p) ? KIN_LEFT : KIN_STRANGER;
}

/* Those with most come first; those beyond our room are summed up. */
static void sort_by_bytes(struct nvml_process *list, unsigned count)
{
    for (unsigned i = 1; i < count; i++) {
        struct nvml_process held = list[i];
        unsigned at = i;
        for (; at && list[at - 1].bytes < held.bytes; at--)
            list[at] = list[at - 1];
        list[at] = held;
    }
}

/* A device that is divided (MIG) is listed as a whole: of its instances only ours concerns us. */
static const struct nvml_process *find_own(const struct nvml_process *list, unsigned count)
{
    unsigned me = (unsigned)getpid(), at = 0;
    while (at < count && list[at].pid != me)
        at++;
    return at < count ? &list[at] : NULL;
}

static void ask_who_else(cenote_pool *pool, struct facts *f, struct process words[FACTS_PROCESSES])
{
    struct nvml_process list[NVML_MAX];
    unsigned count;
    f->unlisted = nvml_processes(pool->config.device->driver, pool->config.device->ordinal, list, &count);
    sort_by_bytes(list, count);
    const struct nvml_process *own = find_own(list, count);
    if (own && own->bytes != NVML_UNKNOWN)
        f->own = own->bytes;
    f->are_strangers = !own && count && f->ours;
    for (unsigned i = 0; i < count; i++) {
        if (&list[i] == own || (own && list[i].instance != own->instance))
            continue;
        if (f->listed == FACTS_PROCESSES) {
            f->more++;
            f->more_bytes += list[i].bytes == NVML_UNKNOWN ? 0 : list[i].bytes;
            continue;
        }
        struct process *p = &words[f->listed];
        struct facts_process *entry = &f->processes[f->listed++];
        bool is_told = !f->are_strangers && process_read((int)list[i].pid, p);
        *entry = (struct facts_process){.pid = list[i].pid, .bytes = list[i].bytes, .command = ""};
        entry->is_gone = !is_told && !f->are_strangers && process_is_gone((int)list[i].pid);
        if (!is_told)
            continue;
        entry->command = p->command;
        entry->is_others = p->is_others;
        entry->kin = kin_of(list[i].pid, p);
    }
}

/* Other devices of which nearly nothing is in use. */
static void ask_other_devices(const cenote_pool *pool, struct facts *f)
{
    const struct driver *driver = pool->config.device->driver;
    struct nvml_memory memory;
    int count = 0;
    if (f->unlisted || driver->cuDeviceGetCount(&count))
        return;
    for (int ordinal = 0; ordinal < count && ordinal < DEVICES_MAX; ordinal++)
        if (ordinal != pool->config.device->ordinal && nvml_memory(driver, ordinal, &memory) && memory.used < memory.total / EMPTY_PART)
            f->empty |= 1ull << ordinal;
}

static void ask_program(cenote_pool *pool, struct facts *f)
{
    if (is_asking)
        return;
    lock_take(&moment_lock);
    cenote_moment_fn function = moment_function;
    void *arg = moment_arg;
    size_t size = moment_size;
    lock_give(&moment_lock);
    is_asking = true;
    struct callback c;
    callback_begin(&c, pool, &moment_lock);
    if (function) {
        union { cenote_moment moment; char room[SIZED_MAX]; } told; /* one of a later header has room, too */
        sized_out(&told, size, &f->moment, sizeof f->moment);
        function(pool, &told.moment, arg);
        memcpy(&f->moment, &told, size < sizeof f->moment ? size : sizeof f->moment);
    }
    callback_end();
    is_asking = false;
}

/* ------------------------------------------------------------------------------------------------------------------------ the whole text */

static void gather(cenote_pool *pool, uint64_t bytes, struct facts *f, struct process words[FACTS_PROCESSES])
{
    *f = (struct facts){.bytes = bytes, .device = pool->config.device->ordinal, .user = pool->report.user[0] ? pool->report.user : "cenote",
                        .capacity = pool->config.device->capacity, .left = FACTS_UNKNOWN,
                        .before = pool->config.device->card->before, .own = FACTS_UNKNOWN};
    f->gap = driver_is_exiting() ? FACTS_EXITING : pool->life.lost ? FACTS_LOST : FACTS_WHOLE;
    f->capturing = device_is_captured(pool->config.device);
    f->moment = (cenote_moment){.bytes = bytes, .phase = cenote_phase_now(), .keeps_history = -1};
    look_at_pools(pool, f);
    f->ours = f->reserved + f->elsewhere;
    if (f->gap == FACTS_WHOLE)
        ask_driver(pool, f);
    if (f->gap == FACTS_EXITING) {
        f->unlisted = "the process is exiting";
    } else {
        ask_who_else(pool, f, words);
        ask_other_devices(pool, f);
        ask_program(pool, f);
    }
    facts_derive(f);
}

size_t cenote_pool_explain(cenote_pool *pool, uint64_t bytes, char *text, size_t room)
{
    struct facts f;
    struct process words[FACTS_PROCESSES];
    const char *nothing = pool_strict_callbacks && callback_runs(NULL) ? "A watch function or a clock must not ask for an explanation." :
                          !pool ? "There is no pool to explain: it is NULL." : !pool->life.open ? "There is no pool to explain: it was destroyed." :
                          driver_is_forked() ? "This process is a fork of the one that owns the pool: only that one knows what it holds." : NULL;
    if (nothing)
        return (size_t)snprintf(text, text ? room : 0, "%s", nothing);
    gather(pool, bytes, &f, words);
    return explain_print(&f, text, text ? room : 0);
}

/* The message of an allocation that ran out of memory. LOCKING: none. */
int explain_shortage(cenote_pool *pool, uint64_t bytes)
{
    struct facts f;
    struct process words[FACTS_PROCESSES];
    size_t size;
    gather(pool, bytes, &f, words);
    char *text = error_sheet(CENOTE_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY, &size); /* not before: the program may fail meanwhile */
    explain_print(&f, text, size);
    return CENOTE_OUT_OF_MEMORY;
}
