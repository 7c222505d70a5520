/*
 * queue.c: work that is put on streams and not done: one heap by (moment, order of submission) for all streams.
 *
 * It knows no kind of work: the item's kind says what is done when its moment has come. Work that waits for all other work of its moment (a host
 * function) comes last there.
 *
 * Where a stream waits for a word, the wait is watched: after all that may have changed the word its kind is asked whether it passes. Work after such
 * a wait has a moment that is not known (moments.c): it is parked, in the order of submission, until it has one.
 *
 * LOCKING: the model's lock.
 */
#include <stdlib.h>

#include "sim/order/work.h"

#define AFTER_ALL_OTHERS (1ull << 63)

struct due {
    uint64_t done;
    uint64_t order;
    uint32_t item;      /* in `items` */
};

struct parked {
    struct work work;
    uint64_t    moment;         /* parked: its own; watched: when its stream has come so far */
    uint64_t    wait;           /* watched: the moment that becomes known */
};

struct list {
    struct parked *items;
    uint32_t       count, room;
};

static struct {
    struct list  parked, watched;
    bool         looking;       /* at what is watched */
    struct due  *heap;
    struct work *items;
    uint32_t    *idle;          /* items not in the heap */
    uint32_t     count;         /* in the heap */
    uint32_t     room;
    uint32_t     last;          /* in the heap, that come after all others of their moment */
    uint64_t     submitted;
} queue;

void queue_reset(void)
{
    for (uint32_t i = 0; i < queue.room; i++)
        queue.idle[i] = i;
    queue.count = queue.last = queue.parked.count = queue.watched.count = 0;
    queue.looking = false;
    queue.submitted = 0;
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

static bool append(struct list *list, const struct parked *item)
{
    if (list->count == list->room) {
        uint32_t room = list->room ? 2 * list->room : 16;
        struct parked *items = realloc(list->items, room * sizeof *items);
        if (!items)
            return false;
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = *item;
    return true;
}

bool queue_push(const struct work *work, uint64_t done)
{
    if (!moment_is_known(done))
        return append(&queue.parked, &(struct parked){.work = *work, .moment = done});
    if (queue.count == queue.room && !heap_grow())
        return false;
    struct due due = {.done = done, .order = queue.submitted++, .item = queue.idle[queue.count]};
    if (work->kind->waits_for_all) {
        due.order |= AFTER_ALL_OTHERS;
        queue.last++;
    }
    queue.items[due.item] = *work;
    uint32_t i = queue.count++;
    for (; i && is_before(&due, &queue.heap[(i - 1) / 2]); i = (i - 1) / 2)
        queue.heap[i] = queue.heap[(i - 1) / 2];
    queue.heap[i] = due;
    return true;
}

static struct work pop(void)
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

void queue_run(const struct work *work)
{
    if (!context_at(work->context)->lost || work->kind->even_if_lost)
        work->kind->run(work);
}

/* Its moment has come: the queue looks at what is watched. */
static void arrive(const struct work *work)
{
    (void)work;
}

static const struct work_kind work_arrive = {.even_if_lost = true, .run = arrive};

bool queue_watch(const struct work *work, uint64_t start, uint64_t wait)
{
    struct work arrival = {.kind = &work_arrive, .context = work->context};
    return queue_push(&arrival, start) && append(&queue.watched, &(struct parked){*work, start, wait});
}

bool queue_is_watching(void)
{
    return queue.watched.count;
}

static bool passes(const struct parked *p, uint64_t now)
{
    uint64_t start = moment_by_now(p->moment);
    return (start <= now && p->work.kind->passes(&p->work)) || context_at(p->work.context)->lost;
}

/* Work whose moment has become known is due then, and in the order of submission. */
static void unpark(void)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < queue.parked.count; i++) {
        struct parked p = queue.parked.items[i];
        p.moment = moment_by_now(p.moment);
        if (!moment_is_known(p.moment) || !queue_push(&p.work, p.moment))
            queue.parked.items[left++] = p;
    }
    queue.parked.count = left;
}

/* Which of the waits that are watched pass at this moment? False: none. */
static bool look(uint64_t now)
{
    if (!queue.watched.count || queue.looking)
        return false;
    uint32_t left = 0;
    queue.looking = true; /* a question may lose a context, which does away with work */
    for (uint32_t i = 0; i < queue.watched.count; i++) {
        struct parked p = queue.watched.items[i];
        if (passes(&p, now))
            moment_pass(p.wait, now);
        else
            queue.watched.items[left++] = p;
    }
    bool passed = left < queue.watched.count;
    queue.watched.count = left;
    if (passed)
        unpark();
    queue.looking = false;
    return passed;
}

uint64_t queue_run_until(uint64_t when, const bool *stop)
{
    do {
        while (queue.count && queue.heap[0].done <= when) {
            uint64_t moment = queue.heap[0].done;
            struct work work = pop();
            queue.last -= work.kind->waits_for_all;
            queue_run(&work);
            if (*stop)
                return moment;
            look(moment);
        }
    } while (look(when));
    return when;
}

uint64_t queue_next(void)
{
    return queue.count ? queue.heap[0].done : 0;
}

uint64_t queue_call_due(void)
{
    return !queue.last ? 0 : queue.heap[0].done ? queue.heap[0].done : 1;
}
