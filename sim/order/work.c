/*
 * work.c: work put on streams.
 *
 * When work is put on a stream everything that decides its moment is known: the stream's work before it, the events it waits for, the shape's lag and
 * its own length. So its end is a number, fixed at once, and an event is complete when its number has passed. The work's kind (struct work_kind) says
 * what it does then; queue.c keeps it until that moment, and nothing is looked up in memory before.
 *
 * One kind of work has no end that is known: a stream that waits for a word. Its end is a moment that becomes known when the word is there
 * (moments.c), and so are those of all that comes after it.
 *
 * Work whose moment is now, because nothing lags, is done at once and never sees the queue. Host functions are different: how long they take is not
 * known. One becomes due when all work before it is done, other streams' at that moment included; then the clock stands until it has returned, and
 * counts a nanosecond for it. See calls.c.
 *
 * LOCKING: the model's lock.
 */
#include "sim/order/stream.h"

#define TICK 50000u     /* ns between two looks at words that streams wait for */

static bool ticking;

void work_reset(void)
{
    ticking = false;
}

static void run_call(const struct work *w)
{
    calls_put(w->function, w->argument, true);
}

const struct work_kind work_wait = {.node = CU_GRAPH_NODE_TYPE_KERNEL};
const struct work_kind work_kernel = {.node = CU_GRAPH_NODE_TYPE_KERNEL};
const struct work_kind work_call = {.node = CU_GRAPH_NODE_TYPE_HOST, .waits_for_all = true, .run = run_call};

static CUresult submit_call(struct stream *s, const struct work *w, uint64_t due)
{
    if (!calls_ready() || !queue_push(w, due))
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream_extend(s, moment_sum(due, 0, 1));
    if (due <= clock_seen() && !clock_is_held())
        clock_run_due(due);
    calls_expected();
    return CUDA_SUCCESS;
}

uint64_t work_end(struct stream *s, uint64_t not_before, uint64_t length)
{
    uint64_t start = moment_later(stream_start(s), not_before);
    if (!model.shape.lag && !length && start <= clock_seen())
        return clock_seen();
    uint64_t ready = clock_look() + model.shape.lag;
    return moment_sum(start, ready, length);
}

/* A program may wait for what the device does after a wait without asking the driver anything: so this thread looks at words and clock. */
static void *tick(void *epoch)
{
    model_lock();
    while (atomic_load(&model.epoch) == (uint32_t)(uintptr_t)epoch && queue_is_watching()) {
        clock_look();
        model_nap(TICK);
    }
    if (atomic_load(&model.epoch) == (uint32_t)(uintptr_t)epoch) {
        ticking = false;
        calls_expected(); /* a host function that came after the wait may have its moment now */
    }
    model_unlock();
    return NULL;
}

/* When the stream goes on: from *done on, once the word lets it. False: no host memory. */
static bool watch(const struct work *w, uint64_t *done)
{
    if (*done <= clock_seen() && w->kind->passes(w))
        return true;
    uint64_t wait = moment_wait(*done, clock_seen());
    if (!queue_watch(w, *done, wait))
        return false;
    *done = wait;
    if (!ticking && !model.shape.manual_clock)
        ticking = model_start_thread(tick, (void *)(uintptr_t)atomic_load(&model.epoch));
    return true;
}

CUresult work_submit(struct stream *s, const struct work *work)
{
    struct work w = *work;
    clock_submitted();
    w.context = s->context;
    uint64_t length = w.length + (w.kind->lasts ? w.kind->lasts(&w) : 0);
    uint64_t done = work_end(s, w.kind->not_before ? w.kind->not_before(&w) : 0, length);
    if (w.kind->waits_for_all)
        return submit_call(s, &w, done);
    if (w.kind->passes && !watch(&w, &done))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool now = done <= clock_seen();
    if (w.kind->run && !now && !queue_push(&w, done))
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream_extend(s, done);
    if (w.kind->placed)
        w.kind->placed(&w, done);
    if (w.kind->run && now)
        queue_run(&w);
    if (queue_is_watching())
        clock_look();
    return CUDA_SUCCESS;
}

CUresult work_put(struct stream *s, const struct work *work)
{
    CUresult result = capture_legacy_conflict(s, work->name);
    if (result)
        return result;
    return s->capture ? capture_add(s, work) : work_submit(s, work);
}
