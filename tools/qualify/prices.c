/*
 * prices.c: measures what the driver's calls cost, by the size of a page and the number of pages in a run: alone, while another thread launches
 * kernels, and beside other processes (crowd.c). Some drivers make a launch wait meanwhile, so the longest launch is measured as well.
 *
 * Times are of the host's clock. The calls for a run are those of cenote: cuMemCreate and cuMemMap for each page, cuMemSetAccess and cuMemUnmap once.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/qualify/qualify.h"

#define RUN_MAX 32u
#define REPEATS 5u
#define SAMPLES (REPEATS * RUN_MAX)
#define LAUNCHES_ALONE 2000u
#define LAUNCH_PAUSE 10000              /* ns, chosen */
#define LAUNCHES_BETWEEN_WAITS 256u     /* else the driver makes launches wait once too many are in flight */

static const uint32_t runs[] = {1, 8, RUN_MAX};
static const uint64_t larger_pages[] = {8ull << 20, 32ull << 20};

struct meter {
    struct card *card;
    uint64_t     page;
    uint32_t     run;
    CUmemGenericAllocationHandle handles[RUN_MAX];
    uint64_t     samples[PRICES][SAMPLES];
    uint32_t     count[PRICES];
};

const char *price_name(enum price price)
{
    static const char *const names[PRICES] = {
#define PRICE(name) [PRICE_##name] = #name,
#include "tools/qualify/prices.def"
#undef PRICE
    };
    return names[price];
}

static bool is_by_handle(enum price price)
{
    enum { CALL, HANDLE, MIB };
#define PRICES(list, text)
#define COST(call, unit, ...)                                  \
    if (!strcmp(price_name(price), #call))                     \
        return unit == HANDLE;
#include "sim/machine/cost.def"
#undef PRICES
#undef COST
    return false;
}

static void add_sample(struct meter *m, enum price price, uint64_t begin)
{
    uint64_t ns = clock_ns() - begin;
    if (m->count[price] < SAMPLES)
        m->samples[price][m->count[price]++] = is_by_handle(price) ? ns / m->run : ns;
}

/* In an experiment: measures a call, and ends the experiment if the call fails. */
#define TIME(name, arguments)                          \
    do {                                               \
        uint64_t begin_ = clock_ns();                  \
        TRY(card->d->name arguments);                  \
        add_sample(m, PRICE_##name, begin_);                 \
    } while (0)

static enum outcome time_pages(struct meter *m)
{
    struct card *card = m->card;
    CUmemAllocationProp prop = card_prop(card);
    uint64_t size = m->run * m->page;
    CUdeviceptr at;
    TIME(cuMemAddressReserve, (&at, size, 0, 0, 0));
    for (uint32_t i = 0; i < m->run; i++)
        TIME(cuMemCreate, (&m->handles[i], m->page, &prop, 0));
    for (uint32_t i = 0; i < m->run; i++)
        TIME(cuMemMap, (at + i * m->page, m->page, 0, m->handles[i], 0));
    uint64_t begin = clock_ns();
    TRY(card_open_access(card, at, size));
    add_sample(m, PRICE_cuMemSetAccess, begin);
    TIME(cuMemUnmap, (at, size));
    for (uint32_t i = 0; i < m->run; i++)
        TIME(cuMemRelease, (m->handles[i]));
    TIME(cuMemAddressFree, (at, size));
    return HOLDS;
}

static enum outcome time_others(struct meter *m)
{
    struct card *card = m->card;
    CUdeviceptr at;
    CUevent event;
    TIME(cuMemAlloc, (&at, m->run * m->page));
    TIME(cuMemFree, (at));
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TIME(cuEventRecord, (event, card->streams[0]));
    TRY(card->more.cuStreamSynchronize(card->streams[0]));
    TIME(cuEventQuery, (event));
    if (card->d->cuCtxRecordEvent)
        TIME(cuCtxRecordEvent, (card->context, event));
    TRY(card->d->cuEventDestroy(event));
    return HOLDS;
}

/* --- the thread that launches */

struct launcher {
    struct card     *card;
    atomic_bool      stop;
    _Atomic uint64_t longest;   /* ns of the longest launch since the last wait_for_launches */
    _Atomic(CUresult) failed;
};

static void launch_once(struct launcher *l, unsigned i)
{
    CUstream stream = l->card->streams[1];
    uint64_t begin = clock_ns();
    l->failed = card_wait(l->card, stream, 1000);
    uint64_t ns = clock_ns() - begin;
    if (ns > atomic_load(&l->longest))
        atomic_store(&l->longest, ns);
    if (!l->failed && i % LAUNCHES_BETWEEN_WAITS == 0)
        l->failed = l->card->more.cuStreamSynchronize(stream);
}

static void *launch_on(void *argument)
{
    static const struct timespec pause = {.tv_nsec = LAUNCH_PAUSE};
    struct launcher *l = argument;
    l->failed = l->card->d->cuCtxPushCurrent(l->card->context);
    for (unsigned i = 1; !l->failed && !atomic_load(&l->stop); i++) {
        launch_once(l, i);
        nanosleep(&pause, NULL); /* the measuring thread has to get into the driver, too */
    }
    return NULL;
}

/* --- the table */

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Forgets the launches so far, and waits for the next launch. */
static void wait_for_launches(struct launcher *l)
{
    atomic_store(&l->longest, 0);
    while (!atomic_load(&l->longest) && !l->failed)
        sched_yield();
}

/* `launcher`: of LAUNCHES; else NULL. */
static enum outcome measure(struct meter *m, enum beside beside, struct launcher *launcher, int pipe)
{
    struct message message = {.kind = PRICE_MEASURED, .u.price = {.page = m->page, .run = m->run, .beside = beside}};
    enum outcome outcome = HOLDS;
    if (launcher)
        wait_for_launches(launcher);
    for (unsigned i = 0; i < REPEATS && outcome == HOLDS; i++) {
        outcome = m->card->granularity ? time_pages(m) : HOLDS;
        if (outcome == HOLDS)
            outcome = time_others(m);
    }
    for (int i = 0; i < PRICES; i++) {
        qsort(m->samples[i], m->count[i], sizeof m->samples[i][0], compare);
        message.u.price.ns[i] = m->count[i] ? m->samples[i][m->count[i] / 2] : 0;
    }
    message.u.price.launch_ns = launcher ? atomic_load(&launcher->longest) : 0;
    if (outcome == HOLDS)
        steps_tell(pipe, &message);
    return outcome;
}

/* Leaves out runs that would take more than half of the free memory. */
static enum outcome measure_all(struct card *card, enum beside beside, struct launcher *launcher, int pipe)
{
    static struct meter m; /* too large for the stack */
    size_t free_bytes, total;
    TRY(card->d->cuMemGetInfo(&free_bytes, &total));
    enum outcome outcome = HOLDS;
    for (unsigned i = 0; i < 9 && outcome == HOLDS; i++) {
        uint64_t smallest = card->granularity ? card->granularity : 2u << 20;
        m = (struct meter){.card = card, .page = i < 3 ? smallest : larger_pages[i / 3 - 1], .run = runs[i % 3]};
        if (m.page % smallest == 0 && m.page * m.run <= free_bytes / 2 && (i < 3 || m.page > smallest))
            outcome = measure(&m, beside, launcher, pipe);
    }
    return outcome;
}

enum outcome prices_run(struct card *card, int pipe)
{
    struct launcher launcher = {.card = card};
    struct message message = {.kind = LAUNCHES_ALONE};
    pthread_t thread;
    for (unsigned i = 1; i <= LAUNCHES_ALONE; i++) {
        launch_once(&launcher, i);
        if (launcher.failed)
            return card_failed(card, "a launch", launcher.failed);
    }
    message.u.ns = atomic_load(&launcher.longest);
    steps_tell(pipe, &message);
    enum outcome outcome = measure_all(card, ALONE, NULL, pipe);
    if (outcome != HOLDS)
        return outcome;
    if (pthread_create(&thread, NULL, launch_on, &launcher)) {
        card_note(card, "a thread could not be started");
        return FAILS;
    }
    outcome = measure_all(card, LAUNCHES, &launcher, pipe);
    atomic_store(&launcher.stop, true);
    pthread_join(thread, NULL);
    return launcher.failed ? card_failed(card, "a launch beside other calls", launcher.failed) : outcome;
}

enum outcome prices_run_in_crowd(struct card *card, int pipe)
{
    return measure_all(card, PROCESSES, NULL, pipe);
}

void prices_keep_busy(struct card *card, int pipe)
{
    static struct meter m; /* too large for the stack */
    m = (struct meter){.card = card, .page = card->granularity ? card->granularity : 2u << 20, .run = runs[1]};
    enum outcome (*once)(struct meter *) = card->granularity ? time_pages : time_others;
    if (once(&m) != HOLDS || write(pipe, "", 1) != 1)
        return;
    while (once(&m) == HOLDS)
        ;
}
