/*
 * streams.c: streams: created ones, the default stream of each context (handles 0 and 1), and one for each thread and context (handle 2).
 * What waits for them, and how they end: stream_calls.c.
 *
 * A stream is little more than the moment at which all its work is done. The default stream waits for all streams that were not created
 * with CU_STREAM_NON_BLOCKING, and they for it.
 *
 * The handle of a destroyed stream is used again at once, as real drivers do; its id never is. Ids stand in an array of their own that is
 * read without the lock, because programs ask for them at every allocation.
 */
#include "sim/order/stream.h"

#define STREAMS_MAX 65536

static struct slots streams;
static _Atomic uint64_t ids[STREAMS_MAX];
static uint64_t last_id;    /* over all resets: an id is unique for the life of the program */

void streams_reset(void)
{
    enum slots_order order = model.shape.reuse_handles ? SLOTS_NEWEST_FIRST : SLOTS_OLDEST_FIRST;
    if (!streams.items)
        slots_open(&streams, sizeof(struct stream), STREAMS_MAX, order);
    for (uint32_t i = 1; i < streams.used; i++)
        atomic_store(&ids[i], 0);
    slots_clear(&streams);
    streams.order = order;
}

uint32_t stream_next(uint32_t number)
{
    while (++number < streams.used)
        if (slots_is_live(&streams, number))
            return number;
    return 0;
}

uint32_t stream_created(CUstream handle)
{
    uint32_t number = slots_number(&streams, handle);
    return number && stream_at(number)->kind == STREAM_CREATED ? number : 0;
}

void stream_shut(uint32_t number)
{
    model.books.streams -= stream_at(number)->kind == STREAM_CREATED;
    atomic_store(&ids[number], 0);
    slots_give(&streams, number);
}

void stream_orphan(uint32_t number)
{
    stream_at(number)->orphaned = true;
    atomic_store(&ids[number], 0); /* questions for its id go the slow way, which finds out */
}

struct stream *stream_at(uint32_t number)
{
    return slots_at(&streams, number);
}

uint32_t stream_number(const struct stream *s)
{
    return (uint32_t)(((const char *)s - streams.items) / sizeof(struct stream));
}

uint64_t stream_unique(const struct stream *s)
{
    return atomic_load(&ids[stream_number(s)]);
}

uint32_t stream_part(const struct stream *s)
{
    return s->green ? s->green : s->context;
}

bool stream_is_blocking(const struct stream *s)
{
    return s->kind != STREAM_LEGACY && !(s->flags & CU_STREAM_NON_BLOCKING);
}

uint32_t stream_open(uint32_t context, enum stream_kind kind, unsigned flags, int priority)
{
    uint32_t number = slots_take(&streams);
    if (!number)
        return 0;
    *stream_at(number) = (struct stream){.kind = kind, .context = context_whole(context), .flags = flags, .priority = priority};
    stream_at(number)->green = context_at(context)->whole ? context : 0;
    atomic_store(&ids[number], ++last_id);
    return number;
}

/* This thread's default stream in a context, if it was used before and both still live. Takes no lock. */
static const struct own_stream *find_own(const struct thread *t, uint32_t context)
{
    for (int i = 0; i < OWN_STREAMS_MAX && t->own[i].context; i++)
        if (t->own[i].context == context && atomic_load(&ids[t->own[i].stream]) == t->own[i].id)
            return &t->own[i];
    return NULL;
}

static uint32_t own_stream(uint32_t context)
{
    struct thread *t = model_thread();
    const struct own_stream *known = find_own(t, context);
    if (known)
        return known->stream;
    for (int i = 0; i < OWN_STREAMS_MAX; i++) {
        struct own_stream *own = &t->own[i];
        if (own->context && atomic_load(&ids[own->stream]) == own->id)
            continue;
        uint32_t number = stream_open(context, STREAM_PER_THREAD, 0, 0);
        if (!number)
            return 0;
        stream_at(number)->thread = t->number;
        *own = (struct own_stream){.context = context, .stream = number, .id = atomic_load(&ids[number])};
        return number;
    }
    return 0;
}

/* The number behind a handle, 0: none. Handles 0, 1 and 2 mean a stream of the current context. */
static CUresult find_number(CUstream handle, uint32_t *number)
{
    if (handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        *number = stream_created(handle);
        if (!*number)
            return model_refuse(CUDA_ERROR_INVALID_HANDLE, "stream %p was destroyed or never created", (void *)handle);
        if (stream_at(*number)->orphaned)
            return model_refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the green context of stream %p was destroyed", (void *)handle);
        return CUDA_SUCCESS;
    }
    uint32_t context = context_top();
    CUresult result = context_usable(context);
    if (!result && handle == CU_STREAM_PER_THREAD && context_at(context)->whole)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "a green context has no default streams of threads");
    if (result)
        return result;
    *number = handle == CU_STREAM_PER_THREAD ? own_stream(context) : context_at(context)->legacy;
    return *number ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult stream_find(CUstream handle, struct stream **stream)
{
    uint32_t number = 0;
    CUresult result = find_number(handle, &number);
    if (result)
        return result;
    *stream = stream_at(number);
    return context_at((*stream)->context)->lost;
}

uint64_t stream_start(const struct stream *s)
{
    const struct context *c = context_at(stream_part(s));
    uint64_t other = 0, start = moment_later(s->done, c->not_before);
    if (s->kind == STREAM_LEGACY)
        other = c->blocking_done;
    else if (stream_is_blocking(s))
        other = stream_at(c->legacy)->done;
    return moment_later(start, other);
}

void stream_extend(struct stream *s, uint64_t done)
{
    struct context *c = context_at(stream_part(s)), *whole = context_at(s->context);
    s->done = done;
    c->all_done = moment_later(c->all_done, done);
    if (whole != c)
        whole->all_done = moment_later(whole->all_done, done);
    if (stream_is_blocking(s))
        c->blocking_done = moment_later(c->blocking_done, done);
}

CUresult stream_create_in(CUstream *stream, uint32_t context, unsigned flags, int priority)
{
    if (!stream || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    if (priority > STREAM_PRIORITY_LEAST)
        priority = STREAM_PRIORITY_LEAST;
    if (priority < STREAM_PRIORITY_GREATEST)
        priority = STREAM_PRIORITY_GREATEST;
    uint32_t number = stream_open(context, STREAM_CREATED, flags, priority);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    model.books.streams++;
    *stream = slots_handle(&streams, number);
    return CUDA_SUCCESS;
}

CUresult stream_create_with_priority(CUstream *stream, unsigned flags, int priority)
{
    return stream_create_in(stream, context_top(), flags, priority);
}

CUresult stream_create(CUstream *stream, unsigned flags)
{
    return stream_create_with_priority(stream, flags, 0);
}

/* The id of a stream; 0: only a look with the lock tells. Takes none. */
uint64_t stream_known_id(CUstream handle)
{
    uintptr_t distance = (uintptr_t)handle - (uintptr_t)streams.handles;
    uint32_t context = context_top();
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        return context ? atomic_load(&ids[context_at(context)->legacy]) : 0;
    if (handle == CU_STREAM_PER_THREAD) {
        const struct own_stream *own = context ? find_own(model_thread(), context) : NULL;
        return own ? own->id : 0;
    }
    return distance / SLOTS_HANDLE_STEP < STREAMS_MAX && distance % SLOTS_HANDLE_STEP == 0 ? atomic_load(&ids[distance / SLOTS_HANDLE_STEP]) : 0;
}
