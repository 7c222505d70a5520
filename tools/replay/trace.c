/*
 * trace.c: loads a trace, and completes it so that it can be repeated.
 *
 * Blocks that the file never frees are freed at its end, so that a repetition begins as the first one did. The reader has checked everything;
 * this file only adds up. LOCKING: none.
 */
#include "tools/replay/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for one more; false: no memory. */
static bool make_room(struct trace *trace, size_t *room)
{
    if (trace->count < *room)
        return true;
    size_t larger = *room ? *room * 2 : 4096;
    struct record *records = realloc(trace->records, larger * sizeof(*records));
    if (!records)
        return false;
    trace->records = records;
    *room = larger;
    return true;
}

/* Frees the blocks that are live at the end, in the order of their allocation, and finds the peak. */
static bool close_circle(struct trace *trace, size_t *room)
{
    uint64_t live = 0;
    size_t *born = calloc(trace->blocks, sizeof(*born)); /* block -> 1 + place of its allocation, 0: not live */
    if (!born)
        return false;
    for (size_t i = 0; i < trace->in_file; i++) {
        const struct record *r = &trace->records[i];
        if (r->op == RECORD_ALLOC) {
            born[r->block] = i + 1;
            live += r->bytes;
        } else if (r->op == RECORD_FREE) {
            born[r->block] = 0;
            live -= r->bytes;
        }
        if (trace->live_peak < live)
            trace->live_peak = live;
    }
    bool fits = true;
    for (size_t i = 0; i < trace->in_file && fits; i++) {
        if (trace->records[i].op != RECORD_ALLOC || born[trace->records[i].block] != i + 1)
            continue;
        fits = make_room(trace, room);
        if (!fits)
            break;
        struct record *r = &trace->records[trace->count++];
        *r = trace->records[i];
        r->op = RECORD_FREE;
        r->t_ns = trace->length_ns;
    }
    free(born);
    return fits;
}

static void count_in(struct trace *trace, const struct record *r)
{
    trace->length_ns = r->t_ns;
    trace->allocations += r->op == RECORD_ALLOC;
    trace->steps += r->op == RECORD_STEP;
    if (trace->devices <= r->device)
        trace->devices = r->device + 1;
    if (trace->streams <= r->stream)
        trace->streams = r->stream + 1;
}

/* If all records of a file have the same time, the pace of the program is unknown. */
static void set_pace(struct trace *trace)
{
    trace->has_times = trace->length_ns > 0;
    for (size_t i = 0; i < trace->count && !trace->has_times; i++)
        trace->records[i].t_ns = i * TRACE_PACE_NS;
}

bool trace_load(struct trace *trace, const char *path)
{
    size_t room = 0;
    bool fits = true;
    enum records_result got = RECORDS_END;
    *trace = (struct trace){.devices = 1, .streams = 1};
    struct records_reader *reader = records_open(path);
    while (reader && (fits = make_room(trace, &room)) && (got = records_next(reader, &trace->records[trace->count])) == RECORDS_ONE)
        count_in(trace, &trace->records[trace->count++]);
    if (reader && got == RECORDS_BROKEN)
        fprintf(stderr, "%s\n", records_message(reader));
    if (reader && got == RECORDS_END && !trace->allocations) {
        fprintf(stderr, "%s: there is no allocation in it\n", path);
        got = RECORDS_BROKEN;
    }
    trace->in_file = trace->count;
    trace->blocks = reader ? records_blocks(reader) : 0;
    if (!reader || !fits || (got == RECORDS_END && !close_circle(trace, &room))) {
        fprintf(stderr, "%s: no host memory for this trace\n", path);
        got = RECORDS_BROKEN;
    }
    records_close(reader);
    set_pace(trace);
    if (got == RECORDS_BROKEN)
        trace_close(trace);
    return got == RECORDS_END;
}

uint64_t trace_step_records(const struct trace *trace)
{
    return trace->in_file / (trace->steps ? trace->steps : 1);
}

struct pending {
    uint64_t due, bytes; /* it counts until record `due` */
};

struct books {
    struct pending *queue;
    size_t          first, count, room;
    uint32_t       *stream; /* block -> of its allocation */
    bool           *used;   /* block -> on another stream */
    uint64_t        held, peak;
};

static void book(struct books *b, const struct record *r, uint64_t now, uint64_t lag)
{
    for (; b->count && b->queue[b->first].due <= now; b->count--) {
        b->held -= b->queue[b->first].bytes;
        b->first = (b->first + 1) % b->room;
    }
    if (r->op == RECORD_ALLOC) {
        b->stream[r->block] = r->stream;
        b->used[r->block] = false;
        b->held += r->bytes;
    } else if (r->op == RECORD_USE) {
        b->used[r->block] |= b->stream[r->block] != r->stream;
    } else if (r->op == RECORD_FREE && b->used[r->block] && lag) {
        b->queue[(b->first + b->count++) % b->room] = (struct pending){now + lag, r->bytes};
    } else if (r->op == RECORD_FREE) {
        b->held -= r->bytes;
    }
    b->peak = b->peak < b->held ? b->held : b->peak;
}

uint64_t trace_pending_peak(const struct trace *trace, uint64_t lag, uint32_t repeat)
{
    struct books b = {.room = lag + 1};
    b.queue = malloc(b.room * sizeof(*b.queue));
    b.stream = calloc(trace->blocks + 1, sizeof(*b.stream));
    b.used = calloc(trace->blocks + 1, sizeof(*b.used));
    for (uint64_t i = 0; b.queue && b.stream && b.used && i < (uint64_t)repeat * trace->count; i++)
        book(&b, &trace->records[i % trace->count], i, lag);
    if (!b.queue || !b.stream || !b.used)
        b.peak = UINT64_MAX;
    free(b.queue);
    free(b.stream);
    free(b.used);
    return b.peak;
}

void trace_close(struct trace *trace)
{
    free(trace->records);
    *trace = (struct trace){0};
}
