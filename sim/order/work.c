/*
 * work.c: work put on streams.
 *
 * When work is put on a stream everything that decides its moment is known: the stream's work before it, the events it waits for, the shape's lag and
 * its own length. So its end is a number, fixed at once, and an event is complete when its number has passed. The work's kind (struct work_kind) says
 * what it does then; queue.c keeps it until that moment, and nothing is looked up in memory before.
 *
 * Work whose moment is now, because nothing lags, is done at once and never sees the queue. Host functions are different: how long they take is not
 * known. One becomes due when all work before it is done, other streams' at that moment included; then the clock stands until it has returned, and
 * counts a nanosecond for it. See calls.c.
 *
 * LOCKING: the model's lock.
 */
#include "sim/order/stream.h"

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
    stream_extend(s, due + 1);
    if (due <= clock_seen() && !clock_is_held())
        clock_run_due(due);
    calls_expected();
    return CUDA_SUCCESS;
}

uint64_t work_end(struct stream *s, uint64_t not_before, uint64_t length)
{
    uint64_t start = stream_start(s);
    if (start < not_before)
        start = not_before;
    if (!model.shape.lag && !length && start <= clock_seen())
        return clock_seen();
    uint64_t ready = clock_look() + model.shape.lag;
    return (start > ready ? start : ready) + length;
}

CUresult work_submit(struct stream *s, const struct work *work)
{
    struct work w = *work;
    clock_submitted();
    w.context = s->context;
    uint64_t done = work_end(s, w.kind->not_before ? w.kind->not_before(&w) : 0, w.length);
    if (w.kind->waits_for_all)
        return submit_call(s, &w, done);
    bool now = done <= clock_seen();
    if (w.kind->run && !now && !queue_push(&w, done))
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream_extend(s, done);
    if (w.kind->placed)
        w.kind->placed(&w, done);
    if (w.kind->run && now)
        queue_run(&w);
    return CUDA_SUCCESS;
}

CUresult work_put(struct stream *s, const struct work *work)
{
    CUresult result = capture_legacy_conflict(s, work->name);
    if (result)
        return result;
    return s->capture ? capture_add(s, work) : work_submit(s, work);
}
