/*
 * entries.c: the exported functions. Each does the same around one function of the model: refuse a forked child, lock, count and charge,
 * check what the call needs, and report a context lost on the way.
 */
#include "sim/entries/entries.h"

#include "sim/code/kernel.h"
#include "sim/entries/errors.h"
#include "sim/entries/start.h"
#include "sim/graph/graph.h"
#include "sim/machine/cost.h"
#include "sim/machine/settings.h"
#include "sim/memory/memory.h"
#include "sim/memory/region.h"
#include "sim/order/stream.h"

enum need { START, INIT, DEVICE, CONTEXT };
enum in_capture { SAFE, UNSAFE };

#define NAP_LEAST 10000u        /* ns between two looks at what another process does */
#define NAP_MAX 1000000u
#define NAPS_TO_MAX 7u

/* One per exported function; the cost is looked up at the first call. */
struct entry {
    const char     *name;
    enum need       need;
    enum in_capture in_capture;
    int             cost;   /* -1: not looked up */
};

/* Calls of a thread that took no lock join the others with its next call that takes it. */
static uint64_t take_unlocked(struct thread *t)
{
    uint64_t calls = t->unlocked_calls;
    t->unlocked_calls = 0;
    return calls;
}

uint64_t entries_calls(void)
{
    return model.books.calls += take_unlocked(model_thread());
}

static CUresult check(const struct entry *e)
{
    if (e->need == START)
        return CUDA_SUCCESS;
    if (!model.initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    uint32_t context = context_current();
    CUresult result = CUDA_SUCCESS;
    if (e->need == CONTEXT)
        result = context_usable(context_top());
    else if (e->need == DEVICE && context)
        result = context_at(context)->lost;
    if (result)
        return result;
    return e->in_capture == UNSAFE ? capture_forbids(e->name) : CUDA_SUCCESS;
}

/* Holds the lock when it returns CUDA_SUCCESS. */
static CUresult call_begin(struct entry *e)
{
    CUresult gone = model_gone();
    if (gone)
        return gone;
    if (model_thread()->in_host_function)
        return model_refuse_call(e->name);
    model_lock();
    if (e->cost < 0)
        e->cost = (int)cost_find(e->name);
    model.books.calls += 1 + take_unlocked(model_thread());
    cost_charge_call((enum cost_call)e->cost);
    CUresult result = check(e);
    if (result)
        model_unlock();
    return result;
}

/* It has to wait, or has waited. True: it has to be made again. The lock is dropped meanwhile: what is in `model` may change. */
static bool wait_outside(const struct entry *e, CUresult *result)
{
    struct thread *t = model_thread();
    bool again = *result == MODEL_AGAIN;
    uint64_t until = model.until;
    model.until = model.waited = 0;
    model.again = false;
    if (until) {
        clock_wait(until);
    } else if (again) {
        model_nap(t->naps < NAPS_TO_MAX ? NAP_LEAST << t->naps : NAP_MAX);
        t->naps++;
        clock_look(); /* our own device goes on meanwhile */
    }
    if (again)
        *result = check(e);
    if (again && !*result) {
        model.waited = until;
        model.again = true;
        return true;
    }
    t->naps = 0;
    return false;
}

static inline bool call_again(const struct entry *e, CUresult *result)
{
    return __builtin_expect(model.again || model.until || *result == MODEL_AGAIN, 0) && wait_outside(e, result);
}

static CUresult call_end(const struct entry *e, CUresult result)
{
    if (!result && e->need == CONTEXT && context_current())
        result = context_at(context_current())->lost;
    model_unlock();
    cost_spend();
    return result;
}

/* --- the table for cuGetProcAddress. Only addresses count, also of what CUDA calls deprecated. */

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define ALIAS(name, symbol, since)
#define PLAIN(name, symbol, since, need, capture, function, parameters, arguments) CUresult symbol parameters;
#define STREAM(name, symbol, since, need, capture, function, parameters, arguments) \
    CUresult symbol parameters;                                                     \
    CUresult symbol##_ptsz parameters;
#define DEFAULT(name, symbol, since, need, capture, function, parameters, arguments) \
    CUresult symbol parameters;                                                      \
    CUresult symbol##_ptds parameters;
#define INSIDE(...) STREAM(__VA_ARGS__)
#include "sim/entries/entries.def"
#undef ALIAS
#undef PLAIN
#undef STREAM
#undef DEFAULT
#undef INSIDE

static const struct entry_address addresses[] = {
#define ALIAS(name, symbol, since) {#name, since, (void *)symbol, (void *)symbol},
#define PLAIN(name, symbol, since, need, capture, function, parameters, arguments) {#name, since, (void *)symbol, (void *)symbol},
#define STREAM(name, symbol, since, need, capture, function, parameters, arguments) {#name, since, (void *)symbol, (void *)symbol##_ptsz},
#define DEFAULT(name, symbol, since, need, capture, function, parameters, arguments) {#name, since, (void *)symbol, (void *)symbol##_ptds},
#define INSIDE(...) STREAM(__VA_ARGS__)
#include "sim/entries/entries.def"
#undef ALIAS
#undef PLAIN
#undef STREAM
#undef DEFAULT
#undef INSIDE
};

static CUresult find(const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    return lookup_find(addresses, sizeof addresses / sizeof addresses[0], symbol, function, version, flags, status);
}

static CUresult find_1(const char *symbol, void **function, int version, cuuint64_t flags)
{
    return find(symbol, function, version, flags, NULL);
}

/* --- the functions */

#define CALL_UNDER_LOCK(label, need, capture, function, arguments)             \
    static struct entry entry = {#label, need, capture, -1};                   \
    CUresult result = call_begin(&entry);                                      \
    if (result)                                                                \
        return result;                                                         \
    do                                                                         \
        result = function arguments;                                           \
    while (call_again(&entry, &result));                                       \
    return call_end(&entry, result)

#define CALL_START(label, capture, function, arguments) CALL_UNDER_LOCK(label, START, capture, function, arguments)
#define CALL_INIT(label, capture, function, arguments) CALL_UNDER_LOCK(label, INIT, capture, function, arguments)
#define CALL_DEVICE(label, capture, function, arguments) CALL_UNDER_LOCK(label, DEVICE, capture, function, arguments)
#define CALL_CONTEXT(label, capture, function, arguments) CALL_UNDER_LOCK(label, CONTEXT, capture, function, arguments)
#define CALL_NOTHING(label, capture, function, arguments)                      \
    CUresult gone = model_gone();                                              \
    if (gone)                                                                  \
        return gone;                                                           \
    model_thread()->unlocked_calls++;                                          \
    return function arguments

#define ALIAS(name, symbol, since)
#define PLAIN(name, symbol, since, need, capture, function, parameters, arguments)     \
    CUresult symbol parameters;                                                        \
    CUresult symbol parameters                                                         \
    {                                                                                  \
        CALL_##need(name, capture, function, arguments);                               \
    }
#define STREAM(name, symbol, since, need, capture, function, parameters, arguments)    \
    PLAIN(name, symbol, since, need, capture, function, parameters, arguments)         \
    CUresult symbol##_ptsz parameters;                                                 \
    CUresult symbol##_ptsz parameters                                                  \
    {                                                                                  \
        stream = stream ? stream : CU_STREAM_PER_THREAD;                               \
        CALL_##need(name, capture, function, arguments);                               \
    }
#define DEFAULT(name, symbol, since, need, capture, function, parameters, arguments)   \
    ON_DEFAULT(name, symbol, symbol##_ptds, need, capture, function, parameters, arguments)
#define INSIDE(name, symbol, since, need, capture, function, parameters, arguments)    \
    ON_DEFAULT(name, symbol, symbol##_ptsz, need, capture, function, parameters, arguments)
#define ON_DEFAULT(name, legacy, per_thread, need, capture, function, parameters, arguments) \
    CUresult legacy parameters;                                                        \
    CUresult legacy parameters                                                         \
    {                                                                                  \
        CUstream stream = CU_STREAM_LEGACY;                                            \
        CALL_##need(name, capture, function, arguments);                               \
    }                                                                                  \
    CUresult per_thread parameters;                                                    \
    CUresult per_thread parameters                                                     \
    {                                                                                  \
        CUstream stream = CU_STREAM_PER_THREAD;                                        \
        CALL_##need(name, capture, function, arguments);                               \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter" /* not_there looks at none, and at no stream */
#pragma GCC diagnostic ignored "-Wunused-variable"
#include "sim/entries/entries.def"
#undef ALIAS
#undef PLAIN
#undef STREAM
#undef DEFAULT
#undef INSIDE
#undef ON_DEFAULT
