/*
 * transfers.c: what work on streams does to memory: copies, fills, and what tests compare. The kinds of work that read and write.
 *
 * Nothing is looked up before the moment of the work has come: then each address leads to its bytes, or is illegal. Until then the mappings
 * it will touch are marked.
 *
 * Where copies take time (cost_of_copy) each device has two engines for them, one from the host and one to it. An engine does one copy after the
 * other, in the order in which they were put on streams.
 *
 * LOCKING: the model's lock.
 */
#include <string.h>

#include "sim/machine/cost.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

static uint64_t mismatches;
static uint64_t engines[DEVICES_MOST][2];   /* of each device, to it and to the host: when the copies put on it are done */

void transfers_reset(void)
{
    mismatches = 0;
    memset(engines, 0, sizeof engines);
}

uint64_t transfers_mismatches(void)
{
    return mismatches;
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
        return w->pinned && !host_is_pinned(at, bytes) ? "host memory that is not pinned, or no longer" : NULL;
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

static bool copy_row(const struct work *w, uint64_t to_row, uint64_t from_row)
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

static void fill(const struct work *w, const struct operand *o)
{
    if (o->on_host) {
        fill_host(o->at, w->pattern, w->width, o->bytes);
        return;
    }
    contents_fill(o->offset, w->pattern, w->width, o->bytes);
    struct mapping *m;
    for (uint64_t at = o->at; at < o->at + o->bytes && (m = virtual_mapping(at)); at = m->at + m->size)
        physical_at(m->physical)->written_at = m->at;
}

/* Part of what is read was written through another mapping of the same memory, which is still there. */
static bool is_stale(const struct operand *o)
{
    const struct mapping *m, *other;
    for (uint64_t at = o->at; at < o->at + o->bytes && (m = virtual_mapping(at)); at = m->at + m->size) {
        other = virtual_mapping(physical_at(m->physical)->written_at);
        if (other && other != m && other->physical == m->physical)
            return true;
    }
    return false;
}

static void compare(const struct work *w, const struct operand *o)
{
    if (sim_quirk(STALE_ALIASES) && !o->on_host && is_stale(o)) {
        mismatches += o->bytes / sizeof(w->pattern);
        return;
    }
    mismatches += o->on_host ? differ_host(o->at, w->pattern, o->bytes) : contents_differ(o->offset, w->pattern, o->bytes);
}

/* `apply` NULL: the addresses alone are checked. */
static bool run_over_range(const struct work *w, uint64_t row, bool write, void (*apply)(const struct work *, const struct operand *))
{
    for (uint64_t done = 0; done < w->bytes;) {
        struct operand o;
        const char *trouble = find_operand(w, row + done, w->bytes - done, write, &o);
        if (trouble)
            return illegal(w, row + done, trouble);
        if (apply)
            apply(w, &o);
        done += o.bytes;
    }
    return true;
}

/* What `compare` finds, kept in device memory instead of the model's books. */
static void count(const struct work *w)
{
    uint64_t before = mismatches, sum;
    struct operand o;
    bool going = run_over_range(w, w->to, false, compare);
    uint64_t found = mismatches - before;
    mismatches = before;
    const char *trouble = going ? find_operand(w, w->from, sizeof sum, true, &o) : NULL;
    if (trouble || (going && o.on_host))
        going = illegal(w, w->from, trouble ? trouble : "memory of the host");
    if (!going)
        return;
    contents_read(o.offset, &sum, sizeof sum);
    sum += found;
    contents_write(o.offset, &sum, sizeof sum);
}

static bool fill_row(const struct work *w, uint64_t to, uint64_t from)
{
    (void)from;
    return run_over_range(w, to, true, fill);
}

static bool expect_row(const struct work *w, uint64_t to, uint64_t from)
{
    (void)from;
    return run_over_range(w, to, false, compare);
}

static bool touch_row(const struct work *w, uint64_t to, uint64_t from)
{
    (void)from;
    return run_over_range(w, to, false, NULL);
}

/* Row by row, layer by layer; nothing more once an address was illegal. */
static void run_over_rows(const struct work *w, bool (*run)(const struct work *w, uint64_t to, uint64_t from))
{
    uint64_t rows = w->rows ? w->rows : 1, layers = w->layers ? w->layers : 1;
    bool going = true;
    for (uint64_t i = 0; i < rows * layers && going; i++) {
        uint64_t to = w->to + i / rows * w->to_layer + i % rows * w->to_pitch;
        uint64_t from = w->from + i / rows * w->from_layer + i % rows * w->from_pitch;
        going = run(w, to, from);
    }
}

static void copy(const struct work *w)
{
    run_over_rows(w, copy_row);
}

static void fill_all(const struct work *w)
{
    run_over_rows(w, fill_row);
}

static void expect(const struct work *w)
{
    run_over_rows(w, expect_row);
}

static void touch(const struct work *w)
{
    run_over_rows(w, touch_row);
}

/* At once, as the host sees it: a program may look at the word meanwhile. */
static void write_word(const struct work *w)
{
    struct operand o;
    const char *trouble = find_operand(w, w->to, w->bytes, true, &o);
    if (trouble)
        illegal(w, w->to, trouble);
    else if (!o.on_host)
        fill(w, &o);
    else if (w->width == 4)
        __atomic_store_n((uint32_t *)o.at, (uint32_t)w->pattern, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)o.at, w->pattern, __ATOMIC_RELEASE);
}

/* Has the word come that the stream waits for? A word that is not kept may be any: it has. */
static bool word_passes(const struct work *w)
{
    uint64_t word = 0;
    struct operand o;
    const char *trouble = find_operand(w, w->to, w->bytes, false, &o);
    if (trouble)
        return illegal(w, w->to, trouble);
    if (o.on_host)
        word = w->width == 4 ? __atomic_load_n((const uint32_t *)o.at, __ATOMIC_ACQUIRE)
                             : __atomic_load_n((const uint64_t *)o.at, __ATOMIC_ACQUIRE);
    else if (!contents_are_kept(o.offset))
        return true;
    else
        contents_read(o.offset, &word, w->width);
    int64_t ahead = w->width == 4 ? (int32_t)(uint32_t)(word - w->pattern) : (int64_t)(word - w->pattern);
    uint64_t all = w->width == 4 ? UINT32_MAX : UINT64_MAX;
    switch (w->number) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return ahead >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return word == w->pattern;
    case CU_STREAM_WAIT_VALUE_AND:
        return word & w->pattern;
    default: /* CU_STREAM_WAIT_VALUE_NOR */
        return ~(word | w->pattern) & all;
    }
}

/* From its first byte to its last, with gaps. */
static uint64_t extent_of(const struct work *w, uint64_t pitch, uint64_t layer)
{
    return w->bytes + (w->rows ? w->rows - 1 : 0) * pitch + (w->layers ? w->layers - 1 : 0) * layer;
}

/* Remembers on the mappings that work not yet done will touch them: to unmap one of them now is a violation. */
static void mark(uint64_t at, uint64_t bytes, uint64_t done)
{
    if (!virtual_is_device_address(at))
        return;
    struct mapping *m;
    for (uint64_t end = at + bytes; at < end && (m = virtual_mapping(at)); at = m->at + m->size)
        if (moment_by_now(m->busy) < done)
            m->busy = done;
}

static void mark_target(const struct work *w, uint64_t done)
{
    if (w->kind != &work_touch && virtual_is_device_address(w->to))
        unexplained_range(w->to, w->to + extent_of(w, w->to_pitch, w->to_layer));
    if (w->bytes && done > clock_seen())
        mark(w->to, extent_of(w, w->to_pitch, w->to_layer), done);
}

static void mark_read(const struct work *w, uint64_t done)
{
    if (done > clock_seen())
        mark(w->to, w->bytes, done);
}

static void mark_both(const struct work *w, uint64_t done)
{
    mark_target(w, done);
    if (done > clock_seen())
        mark(w->from, extent_of(w, w->from_pitch, w->from_layer), done);
}

/* Between host and device, how long does it have the engine of its device? */
static uint64_t copy_lasts(const struct work *w)
{
    bool to_host = !virtual_is_device_address(w->to);
    if (to_host == !virtual_is_device_address(w->from))
        return 0;
    return cost_of_copy(to_host, w->pinned, w->bytes * (w->rows ? w->rows : 1) * (w->layers ? w->layers : 1));
}

static uint64_t *engine_of(const struct work *w)
{
    return &engines[context_at(w->context)->device][!virtual_is_device_address(w->to)];
}

static uint64_t copy_not_before(const struct work *w)
{
    return copy_lasts(w) ? *engine_of(w) : 0;
}

/* The engine does not stand for a copy whose stream waits for a word: what writes that word may come after another copy. */
static void mark_copy(const struct work *w, uint64_t done)
{
    mark_both(w, done);
    if (copy_lasts(w) && moment_is_known(done))
        *engine_of(w) = done;
}

static void mark_count(const struct work *w, uint64_t done)
{
    mark_target(w, done);
    if (done > clock_seen())
        mark(w->from, sizeof(uint64_t), done);
}

const struct work_kind work_touch = {.node = CU_GRAPH_NODE_TYPE_KERNEL, .placed = mark_target, .run = touch};
const struct work_kind work_fill = {.node = CU_GRAPH_NODE_TYPE_MEMSET, .placed = mark_target, .run = fill_all};
const struct work_kind work_expect = {.node = CU_GRAPH_NODE_TYPE_KERNEL, .placed = mark_target, .run = expect};
const struct work_kind work_count = {.node = CU_GRAPH_NODE_TYPE_KERNEL, .placed = mark_count, .run = count};
const struct work_kind work_write_word = {.node = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .placed = mark_target, .run = write_word};
const struct work_kind work_wait_word = {.node = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .placed = mark_read, .passes = word_passes};
const struct work_kind work_copy = {.node = CU_GRAPH_NODE_TYPE_MEMCPY, .not_before = copy_not_before, .lasts = copy_lasts, .placed = mark_copy,
    .run = copy};
