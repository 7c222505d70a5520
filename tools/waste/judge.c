/*
 * judge.c: the measure of cenote-fuzz, and the allocators that it knows.
 *
 * Waste is peak reserved divided by peak requested: it says how large a card has to be for a program that needs so much. Memory that is reserved
 * and not requested is either a cache, or the allocator cannot give it back. judge_smallest() tells the two apart: on the smallest card that
 * suffices, nothing is kept as a cache.
 *
 * LOCKING: none.
 */
#include "tools/waste/judge.h"

#include <string.h>

#include "sim/sim.h"
#include "tools/waste/models.h"

const struct allocator allocators[] = {
    {"cenote", NULL, true, "the library itself"},
    {"native", play_native, false, "a model of PyTorch's caching allocator"},
    {"expandable", play_expandable, false, "a model of PyTorch's expandable segments"},
    {"async", play_async, true, "cudaMallocAsync as PyTorch calls it, on the simulated driver's pool"},
};
const size_t allocators_count = sizeof(allocators) / sizeof(allocators[0]);

const struct allocator *allocator_named(const char *name)
{
    for (size_t i = 0; i < allocators_count; i++)
        if (!strcmp(allocators[i].name, name))
            return &allocators[i];
    return NULL;
}

/* Memory that the context takes of the simulated GPU. The models have no context, and get so much less memory. */
static uint64_t context_bytes(void)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    return shape.context_bytes;
}

void judge(const struct allocator *allocator, const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    struct replay_plan own = *plan;
    own.play = allocator->play;
    if (allocator->apart) {
        replay_apart(trace, &own, result);
    } else {
        own.capacity -= own.capacity < context_bytes() ? own.capacity : context_bytes();
        own.play(trace, &own, result);
    }
}

double judge_waste(const struct trace *trace, const struct replay_result *result, uint64_t live)
{
    if (trace->live_peak < live / 2 || trace->live_peak == 0 || result->ooms)
        return 0;
    return (double)result->reserved_peak / (double)trace->live_peak;
}

uint64_t judge_smallest(const struct allocator *allocator, const struct trace *trace, const struct replay_plan *plan)
{
    struct replay_plan tried = *plan;
    struct replay_result result;
    uint64_t context = context_bytes();
    judge(allocator, trace, &tried, &result);
    tried.options.page_mib = result.page_bytes >> 20;
    uint64_t bad = trace->live_peak - 1, good = result.reserved_peak;
    for (;; good += good / 8) {
        tried.capacity = good + context;
        if (tried.capacity >= plan->capacity)
            break;
        judge(allocator, trace, &tried, &result); /* the peak that was held is nearly always enough */
        if (!result.failed && !result.ooms)
            break;
    }
    while (good > bad && good - bad > good / 100) {
        tried.capacity = bad + (good - bad) / 2 + context;
        judge(allocator, trace, &tried, &result);
        *(!result.failed && !result.ooms ? &good : &bad) = tried.capacity - context;
    }
    return good;
}
