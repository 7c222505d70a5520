/*
 * work.c: work on streams, and the order in which it is done.
 *
 * When work is put on a stream everything that decides its moment is known: the stream's work before it, the events it waits for, the
 * shape's lag and its own length. So its end is a number, fixed at once; an event is complete when its number has passed; and one heap by
 * (end, order of submission) holds all work of all streams. Nothing is looked up in memory before that moment: see run().
 *
 * Work whose moment is now, because nothing lags, is done at once and never sees the heap. But for host functions: how long they take
 * nobody knows. One becomes due when all work before it is done, other streams' at that moment included; then the clock stands until it
 * has returned, and counts a nanosecond for it. See calls.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/graph/graph.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

#define AFTER_ALL_OTHERS (1ull << 63)

struct due {
    uint64_t done;
    uint64_t order;
    uint32_t item;      /* in `items` */
};

static struct {
    struct due  *heap;
    struct work *items;
    uint32_t    *idle;          /* items not in the heap */
    uint32_t     count;         /* in the heap */
    uint32_t     room;
    uint32_t     calls;         /* host functions in the heap */
    uint64_t     submitted;
    uint64_t     mismatches;
} queue;

void work_reset(void)
{
    for (uint32_t i = 0; i < queue.room; i++)
        queue.idle[i] = i;
    queue.count = queue.calls = 0;
    queue.submitted = 0;
    queue.mismatches = 0;
}

uint64_t work_mismatches(void)
{
    return queue.mismatches;
}

static bool heap_grow(void)
{
    uint32_t room = queue.room ? 2 * queue.room : 256;
    struct due *heap = realloc(queue.heap, room * sizeof *heap);
    if (heap)
        queue.heap = heap;
    struct work *items = realloc(queue.items, room * sizeof *items);
    if (items)
        queue.items = items;
    uint32_t *idle = realloc(queue.idle, room * sizeof *idle);
    if (idle)
        queue.idle = idle;
    if (!heap || !items || !idle)
        return false;
    for (uint32_t i = queue.room; i < room; i++)
        queue.idle[i] = i;
    queue.room = room;
    return true;
}

static bool is_before(const struct due *a, const struct due *b)
{
    return a->done != b->done ? a->done < b->done : a->order < b->order;
}

static bool heap_push(const struct work *work, uint64_t done)
{
    if (queue.count == queue.room && !heap_grow())
        return false;
    struct due due = {.done = done, .order = queue.submitted++, .item = queue.idle[queue.count]};
    if (work->kind == WORK_CALL) {
        due.order |= AFTER_ALL_OTHERS;
        queue.calls++;
    }
    queue.items[due.item] = *work;
    uint32_t i = queue.count++;
    for (; i && is_before(&due, &queue.heap[(i - 1) / 2]); i = (i - 1) / 2)
        queue.heap[i] = queue.heap[(i - 1) / 2];
    queue.heap[i] = due;
    return true;
}

static struct work heap_pop(void)
{
    struct work work = queue.items[queue.heap[0].item];
    uint32_t freed = queue.heap[0].item;
    struct due last = queue.heap[--queue.count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= queue.count)
            break;
        if (child + 1 < queue.count && is_before(&queue.heap[child + 1], &queue.heap[child]))
            child++;
        if (!is_before(&queue.heap[child], &last))
            break;
        queue.heap[i] = queue.heap[child];
        i = child;
    }
    if (queue.count)
        queue.heap[i] = last;
    queue.idle[queue.count] = freed;
    return work;
}

/* What a piece of memory is when work runs: the device's, or the program's own. */
struct operand {
    uint64_t at;
    bool     on_host;
    uint64_t offset;    /* of its contents */
    uint64_t bytes;     /* contiguous from here */
};

static const char *find_operand(const struct work *w, uint64_t at, uint64_t bytes, bool write, struct operand *o)
{
    *o = (struct operand){.at = at, .bytes = bytes, .on_host = !virtual_is_device_address(at)};
    if (o->on_host)
        return w->pinned && !host_is_pinned(at, bytes) ? "pinned host memory that was freed" : NULL;
    struct piece piece;
    const struct mapping *m = w->between_devices ? virtual_mapping(at) : NULL;
    uint32_t context = m ? model.devices[physical_at(m->physical)->device].primary : w->context; /* as its own device sees it */
    const char *trouble = virtual_piece(context, at, bytes, write, &piece);
    if (!trouble) {
        o->offset = piece.offset;
        o->bytes = piece.bytes;
    }
    return trouble;
}

/* The device reached for what it must not touch: its context is lost from now on. */
static bool illegal(const struct work *w, uint64_t at, const char *trouble)
{
    model_violation("%s: illegal address 0x%llx: %s when the work runs", w->name, (unsigned long long)at, trouble);
    context_lose(w->context, CUDA_ERROR_ILLEGAL_ADDRESS);
    return false;
}

static void copy_piece(const struct operand *to, const struct operand *from, uint64_t bytes)
{
    if (to->on_host && from->on_host)
        memmove((void *)to->at, (const void *)from->at, bytes);
    else if (to->on_host)
        contents_read(from->offset, (void *)to->at, bytes);
    else if (from->on_host)
        contents_write(to->offset, (const void *)from->at, bytes);
    else
        contents_copy(to->offset, from->offset, bytes);
}

static bool run_copy(const struct work *w, uint64_t to_row, uint64_t from_row)
{
    for (uint64_t done = 0; done < w->bytes;) {
        struct operand to, from;
        const char *trouble = find_operand(w, from_row + done, w->bytes - done, false, &from);
        if (trouble)
            return illegal(w, from_row + done, trouble);
        trouble = find_operand(w, to_row + done, w->bytes - done, true, &to);
        if (trouble)
            return illegal(w, to_row + done, trouble);
        uint64_t bytes = to.bytes < from.bytes ? to.bytes : from.bytes;
        copy_piece(&to, &from, bytes);
        done += bytes;
    }
    return true;
}

static void fill_host(uint64_t at, uint64_t pattern, unsigned width, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += width)
        memcpy((char *)at + i, &pattern, width);
}

static uint64_t differ_host(uint64_t at, uint64_t pattern, uint64_t bytes)
{
    uint64_t different = 0;
    for (uint64_t i = 0; i + 8 <= bytes; i += 8)
        different += memcmp((const char *)at + i, &pattern, 8) != 0;
    return different;
}

static void apply(const struct work *w, const struct operand *o)
{
    if (w->kind == WORK_FILL && o->on_host)
        fill_host(o->at, w->pattern, w->width, o->bytes);
    else if (w->kind == WORK_FILL)
        contents_fill(o->offset, w->pattern, w->width, o->bytes);
    else if (w->kind == WORK_EXPECT && o->on_host)
        queue.mismatches += differ_host(o->at, w->pattern, o->bytes);
    else if (w->kind == WORK_EXPECT)
        queue.mismatches += contents_differ(o->offset, w->pattern, o->bytes);
}

static bool run_over_range(const struct work *w, uint64_t row)
{
    for (uint64_t done = 0; done < w->bytes;) {
        struct operand o;
        const char *trouble = find_operand(w, row + done, w->bytes - done, w->kind == WORK_FILL, &o);
        if (trouble)
            return illegal(w, row + done, trouble);
        apply(w, &o);
        done += o.bytes;
    }
    return true;
}

/* Row by row, layer by layer; nothing more once an address was illegal. */
static void run_over_rows(const struct work *w)
{
    uint64_t rows = w->rows ? w->rows : 1, layers = w->layers ? w->layers : 1;
    bool going = true;
    for (uint64_t i = 0; i < rows * layers && going; i++) {
        uint64_t to = w->to + i / rows * w->to_layer + i % rows * w->to_pitch;
        uint64_t from = w->from + i / rows * w->from_layer + i % rows * w->from_pitch;
        going = w->kind == WORK_COPY ? run_copy(w, to, from) : run_over_range(w, to);
    }
}

/* The moment has come. Work of a lost context does nothing. */
static void run(const struct work *w)
{
    if (context_at(w->context)->lost && w->kind != WORK_GIVE && w->kind != WORK_VACATE && w->kind != WORK_REPLAYED)
        return;
    switch (w->kind) {
    case WORK_TOUCH:
    case WORK_FILL:
    case WORK_EXPECT:
    case WORK_COPY:
        run_over_rows(w);
        break;
    case WORK_VACATE:
        graph_memory_vacate(w->number);
        break;
    case WORK_REPLAYED:
        exec_replayed(w->number);
        break;
    case WORK_CALL:
        calls_put(w->function, w->argument, true);
        break;
    case WORK_GIVE:
        pool_finish_free(w->number);
        break;
    case WORK_KERNEL:
    case WORK_WAIT:
    case WORK_RECORD:
    case WORK_AWAIT:
        break; /* only their moment counts */
    }
}

uint64_t work_run_until(uint64_t when)
{
    while (queue.count && queue.heap[0].done <= when) {
        uint64_t moment = queue.heap[0].done;
        struct work work = heap_pop();
        queue.calls -= work.kind == WORK_CALL;
        run(&work);
        if (calls_hold_clock())
            return moment;
    }
    return when;
}

uint64_t work_call_due(void)
{
    return !queue.calls ? 0 : queue.heap[0].done ? queue.heap[0].done : 1;
}

static CUresult submit_call(struct stream *s, const struct work *w, uint64_t due)
{
    if (!calls_ready() || !heap_push(w, due))
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream_extend(s, due + 1);
    if (due <= clock_seen() && !calls_hold_clock())
        work_run_until(due);
    calls_expected();
    return CUDA_SUCCESS;
}

/* Remembers on the mappings that work not yet done will touch them: to unmap one of them now is a violation. */
static void mark_busy(uint64_t at, uint64_t bytes, uint64_t done)
{
    if (!virtual_is_device_address(at))
        return;
    struct mapping *m;
    for (uint64_t end = at + bytes; at < end && (m = virtual_mapping(at)); at = m->at + m->size)
        if (m->busy < done)
            m->busy = done;
}

uint64_t work_extent(const struct work *w, uint64_t pitch, uint64_t layer)
{
    return w->bytes + (w->rows ? w->rows - 1 : 0) * pitch + (w->layers ? w->layers - 1 : 0) * layer;
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
    uint64_t done = work_end(s, w.kind == WORK_AWAIT ? event_done(w.number) : 0, w.length);
    if (w.kind == WORK_RECORD)
        event_record_at(w.number, done);
    model.books.kernels += w.kind == WORK_KERNEL;

    if (w.kind == WORK_CALL)
        return submit_call(s, &w, done);
    if (done <= clock_seen()) {
        stream_extend(s, done);
        run(&w);
        return CUDA_SUCCESS;
    }
    bool has_effect = w.kind != WORK_WAIT && w.kind != WORK_RECORD && w.kind != WORK_AWAIT && w.kind != WORK_KERNEL;
    if (has_effect && !heap_push(&w, done))
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream_extend(s, done);
    if (w.bytes)
        mark_busy(w.to, work_extent(&w, w.to_pitch, w.to_layer), done);
    if (w.kind == WORK_COPY)
        mark_busy(w.from, work_extent(&w, w.from_pitch, w.from_layer), done);
    return CUDA_SUCCESS;
}

CUresult work_put(struct stream *s, const struct work *work)
{
    CUresult result = capture_legacy_conflict(s, work->name);
    if (result)
        return result;
    return s->capture ? capture_add(s, work) : work_submit(s, work);
}
