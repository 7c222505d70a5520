/*
 * unexplained.c: what runs on the device without an explanation, and numbers that copies to the host take instead of what is in memory.
 *
 * Kernels do nothing here. A library that follows the program above the driver may know what they would write; it then explains what its thread
 * puts on streams, and asks what else was written: by kernels that it did not see, which may write anywhere, and by copies and fills.
 *
 * It also knows numbers that kernels would have left for the host, such as how many elements a selection has: the next small copies of its thread
 * to the host take them.
 *
 * LOCKING: the model's lock for the ranges; the rest belongs to a thread.
 */
#include <stdatomic.h>
#include <string.h>

#include "sim/machine/model.h"

#define RANGES 256u     /* that are remembered: a library that asks less often hears that all may be written */

static struct sim_range ranges[RANGES];
static _Atomic uint64_t count;
static _Thread_local bool explains;
static _Thread_local struct {
    uint64_t numbers[SIM_ANSWERS_MAX];
    int      next, end;
} answers;

bool sim_explain(bool on)
{
    bool before = explains;
    explains = on;
    return before;
}

const _Atomic uint64_t *sim_unexplained_count(void)
{
    return &count;
}

uint64_t sim_unexplained(uint64_t since, struct sim_range *out, int room)
{
    model_lock();
    uint64_t now = count, told = now - since;
    if (told > RANGES || since > now)
        told = 0;
    if (told > (uint64_t)(room > 0 ? room : 0))
        told = (uint64_t)(room > 0 ? room : 0);
    for (uint64_t i = 0; i < told; i++)
        out[i] = ranges[(since + i) % RANGES];
    model_unlock();
    return told;
}

void unexplained_range(uint64_t from, uint64_t to)
{
    if (explains)
        return;
    ranges[count % RANGES] = (struct sim_range){from, to};
    atomic_fetch_add_explicit(&count, 1, memory_order_release);
}

void unexplained_kernel(void)
{
    unexplained_range(0, UINT64_MAX);
}

int sim_answer(const uint64_t *numbers, int number)
{
    int left = answers.end - answers.next;
    answers.next = 0;
    answers.end = number < 0 ? 0 : number < SIM_ANSWERS_MAX ? number : SIM_ANSWERS_MAX;
    memcpy(answers.numbers, numbers, sizeof *numbers * (size_t)answers.end);
    return left;
}

bool answer_take(size_t bytes, uint64_t *number)
{
    if (answers.next == answers.end || bytes > sizeof *number)
        return false;
    *number = answers.numbers[answers.next++];
    return true;
}
