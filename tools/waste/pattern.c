/*
 * pattern.c: makes random patterns, changes patterns a little, and makes the program that a pattern stands for.
 *
 * A pattern is a list of phases. A phase allocates blocks, with a few small ones among them that stay (pins), until a limit of live bytes; then
 * it frees most of its own blocks, and some that earlier phases left. That gives the lifetimes: blocks that live for a phase or for a window,
 * survivors scattered between freed blocks, pins that outlive several phases.
 *
 * The program knows no addresses: unlike the adversary of a proof it cannot look where a block lies. Real programs cannot, either.
 *
 * LOCKING: none.
 */
#include "tools/waste/pattern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common.h"
#include "stats/text/quantity.h"

#define UNIT 512              /* every allocator here rounds to it */
#define STREAM_NAMED_FROM 1   /* streams of the trace; 0 is the legacy default stream, which waits for others */

/* From 0 to below `n`. */
static uint32_t below(uint64_t *random, uint32_t n)
{
    return (uint32_t)((bench_random(random) >> 32) * n >> 32);
}

static uint64_t rounded(double bytes, uint64_t most)
{
    uint64_t size = bytes < UNIT ? UNIT : bytes > (double)most ? most : (uint64_t)bytes;
    return (size + UNIT - 1) / UNIT * UNIT;
}

/* The largest block: small enough that a full phase reaches more than half of the live limit. */
static uint64_t largest(const struct bounds *bounds)
{
    return bounds->live / 4;
}

/* A size like those of programs: often a power of two, or a little more. */
static uint64_t random_size(const struct bounds *bounds, uint64_t *random)
{
    uint64_t least = bounds->live / PATTERN_RECORDS * 4;
    uint64_t size = bench_random_size(random, least < UNIT ? UNIT : least, largest(bounds));
    switch (below(random, 3)) {
    case 0:
        return rounded(exp2(floor(log2((double)size))), largest(bounds));
    case 1:
        return rounded(exp2(floor(log2((double)size))) + UNIT, largest(bounds));
    default:
        return rounded((double)size, largest(bounds));
    }
}

/* 0, 1, or more, small ones more often. */
static uint32_t random_every(uint64_t *random, uint32_t most)
{
    return below(random, 3) ? (uint32_t)bench_random_size(random, 1, most) : 0;
}

static void phase_random(struct phase *phase, const struct bounds *bounds, uint64_t *random)
{
    *phase = (struct phase){
        .least = random_size(bounds, random),
        .most = random_size(bounds, random),
        .pin = rounded((double)bench_random_size(random, UNIT, 4 << 20), largest(bounds)),
        .pin_every = random_every(random, 64),
        .pin_phases = 1 + below(random, PHASES_MAX),
        .fill = below(random, 2) ? 100 : 20 + below(random, 81),
        .window = below(random, 4) ? 0 : 1 + below(random, 64),
        .keep = random_every(random, 64),
        .thin = random_every(random, 8),
        .use = below(random, 4) ? 0 : 1 + below(random, 16),
        .stream = below(random, bounds->streams + 1),
        .sizes = below(random, SIZES_KINDS),
        .order = below(random, ORDER_KINDS),
    };
}

void pattern_random(struct pattern *pattern, const struct bounds *bounds, uint64_t *random)
{
    *pattern = (struct pattern){.count = 1 + below(random, PHASES_MAX), .seed = bench_random(random)};
    for (uint32_t i = 0; i < pattern->count; i++)
        phase_random(&pattern->phases[i], bounds, random);
}

/* -------------------------------------------------------------------------------------------------------------------- changes */

/* A little more or less, exactly twice or half, or a new number. */
static uint64_t change_size(uint64_t size, const struct bounds *bounds, uint64_t *random)
{
    static const double factors[] = {0.5, 2, 0.9, 1.1, 0.75, 1.5, 0.99, 1.01};
    uint32_t kind = below(random, 12);
    if (kind < 8)
        return rounded((double)size * factors[kind], largest(bounds));
    if (kind < 10)
        return rounded((double)size + UNIT * (kind == 8 ? 1.0 : -1.0), largest(bounds));
    return random_size(bounds, random);
}

static uint32_t change_every(uint32_t every, uint32_t most, uint64_t *random)
{
    switch (below(random, 5)) {
    case 0:
        return every > 1 ? every / 2 : every;
    case 1:
        return every * 2 < most ? every * 2 : most;
    case 2:
        return every < most ? every + 1 : every;
    case 3:
        return every > 0 ? every - 1 : 0;
    default:
        return random_every(random, most);
    }
}

/* Changes one number of a phase. */
static void change_phase(struct phase *phase, const struct bounds *bounds, uint64_t *random)
{
    struct phase other;
    phase_random(&other, bounds, random);
    switch (below(random, 13)) {
    case 0:
    case 1:
        phase->least = change_size(phase->least, bounds, random);
        break;
    case 2:
        phase->most = change_size(phase->most, bounds, random);
        break;
    case 3:
        phase->pin = change_size(phase->pin, bounds, random);
        break;
    case 4:
        phase->pin_every = change_every(phase->pin_every, 256, random);
        break;
    case 5:
        phase->pin_phases = other.pin_phases;
        break;
    case 6:
        phase->fill = other.fill;
        break;
    case 7:
        phase->window = change_every(phase->window, 1024, random);
        break;
    case 8:
        phase->keep = change_every(phase->keep, 256, random);
        break;
    case 9:
        phase->thin = change_every(phase->thin, 256, random);
        break;
    case 10:
        phase->use = other.use;
        break;
    case 11:
        phase->stream = other.stream;
        break;
    default:
        phase->sizes = other.sizes;
        phase->order = other.order;
    }
}

/* Repeats a phase, as it is, with larger blocks, or on the next stream: what wastes once often wastes again. */
static void repeat_phase(struct pattern *pattern, const struct bounds *bounds, uint64_t *random)
{
    static const double factors[] = {1, 1.01, 1.1, 1.5, 2, 4};
    if (pattern->count == PHASES_MAX)
        return;
    uint32_t at = below(random, pattern->count);
    memmove(&pattern->phases[at + 1], &pattern->phases[at], (pattern->count - at) * sizeof(struct phase));
    pattern->count++;
    struct phase *phase = &pattern->phases[at + 1];
    double factor = factors[below(random, 6)];
    phase->least = rounded((double)phase->least * factor, largest(bounds));
    phase->most = rounded((double)phase->most * factor, largest(bounds));
    phase->pin = rounded((double)phase->pin * (below(random, 2) ? factor : 1), largest(bounds));
    if (below(random, 2))
        phase->stream = (phase->stream + 1) % (bounds->streams + 1);
}

static void remove_phase(struct pattern *pattern, uint64_t *random)
{
    if (pattern->count == 1)
        return;
    uint32_t at = below(random, pattern->count--);
    memmove(&pattern->phases[at], &pattern->phases[at + 1], (pattern->count - at) * sizeof(struct phase));
}

void pattern_change(struct pattern *pattern, const struct bounds *bounds, uint64_t *random)
{
    for (uint32_t changes = 1 + below(random, 3); changes; changes--) {
        uint32_t kind = below(random, 10), at = below(random, pattern->count), other = below(random, pattern->count);
        struct phase phase = pattern->phases[at];
        switch (kind) {
        case 0:
            repeat_phase(pattern, bounds, random);
            break;
        case 1:
            remove_phase(pattern, random);
            break;
        case 2:
            pattern->phases[at] = pattern->phases[other];
            pattern->phases[other] = phase;
            break;
        case 3:
            pattern->seed = bench_random(random);
            break;
        default:
            change_phase(&pattern->phases[at], bounds, random);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------------------- playing */

struct live {
    uint64_t bytes;
    uint32_t block, stream, phase;
    uint32_t until; /* pins: freed at the end of this phase; others: UINT32_MAX */
};

struct play {
    struct trace        *trace;
    const struct bounds *bounds;
    struct live         *live; /* in the order of allocation */
    uint32_t             count;
    uint64_t             bytes;
    uint64_t             random;
    bool                 full; /* from now on only frees are recorded */
};

static void write_record(struct play *p, enum record_op op, const struct live *l, uint32_t stream)
{
    struct trace *t = p->trace;
    t->length_ns = t->count * PATTERN_STEP_NS;
    t->records[t->count++] = (struct record){
        .t_ns = t->length_ns, .op = op, .id = l->block, .bytes = l->bytes, .stream = stream, .block = l->block};
}

static void take(struct play *p, uint64_t bytes, uint32_t stream, uint32_t phase, uint32_t until)
{
    if (p->trace->count + p->count + 3 > PATTERN_RECORDS || p->bytes + bytes > p->bounds->live) {
        p->full = true; /* live blocks have to be freed at the end */
        return;
    }
    struct live *l = &p->live[p->count++];
    *l = (struct live){.bytes = bytes, .block = p->trace->blocks++, .stream = stream, .phase = phase, .until = until};
    p->bytes += bytes;
    if (p->trace->live_peak < p->bytes)
        p->trace->live_peak = p->bytes;
    write_record(p, RECORD_ALLOC, l, stream);
}

static void give(struct play *p, const struct live *l)
{
    p->bytes -= l->bytes;
    write_record(p, RECORD_FREE, l, l->stream);
}

static uint64_t next_size(struct play *p, const struct phase *phase, uint32_t n, uint64_t done)
{
    switch (phase->sizes) {
    case SIZES_TWO:
        return n % 2 ? phase->most : phase->least;
    case SIZES_SPREAD:
        return rounded((double)phase->least + (double)(bench_random(&p->random) >> 11) * 0x1p-53 * ((double)phase->most - (double)phase->least),
                       UINT64_MAX / 2);
    case SIZES_GROWING: {
        double part = (double)done / ((double)p->bounds->live * phase->fill / 100 + 1);
        return rounded((double)phase->least * pow((double)phase->most / (double)phase->least, part < 1 ? part : 1), UINT64_MAX / 2);
    }
    default:
        return phase->least;
    }
}

/* If the phase has a window: frees the oldest block of the phase that is no pin. Those blocks lie behind `*oldest`. */
static void free_oldest(struct play *p, uint32_t phase, uint32_t *oldest)
{
    for (; *oldest < p->count; (*oldest)++) {
        struct live l = p->live[*oldest];
        if (l.phase != phase || l.until != UINT32_MAX)
            continue;
        memmove(&p->live[*oldest], &p->live[*oldest + 1], (p->count - *oldest - 1) * sizeof(l));
        p->count--;
        give(p, &l);
        return;
    }
}

static void fill(struct play *p, const struct phase *phase, uint32_t number, uint32_t phases)
{
    uint64_t most = p->bounds->live / 100 * phase->fill, done = 0;
    uint32_t oldest = p->count, streams = p->bounds->streams;
    size_t owed = p->trace->count + p->count; /* live blocks have to be freed */
    size_t owed_most = owed + (PATTERN_RECORDS - owed) / (phases - number);
    p->full = false;
    for (uint32_t n = 0; !p->full && p->trace->count + p->count < owed_most; n++) {
        uint32_t stream = STREAM_NAMED_FROM + (phase->stream < streams ? phase->stream : n % streams);
        uint64_t bytes = next_size(p, phase, n, done);
        if (phase->window && n >= phase->window)
            free_oldest(p, number, &oldest);
        if (p->bytes + bytes > most)
            break;
        take(p, bytes, stream, number, UINT32_MAX);
        done += bytes;
        if (!p->full && phase->use && n % phase->use == 0 && streams > 1)
            write_record(p, RECORD_USE, &p->live[p->count - 1], STREAM_NAMED_FROM + (stream - STREAM_NAMED_FROM + 1) % streams);
        if (!p->full && phase->pin_every && n % phase->pin_every == 0 && p->bytes + phase->pin <= most)
            take(p, phase->pin, stream, number, number + phase->pin_phases);
    }
}

/* Moves the blocks that are freed at the end of a phase behind those that stay. Returns how many stay. */
static uint32_t divide(struct play *p, const struct phase *phase, uint32_t number, struct live *gone, uint32_t *gone_count)
{
    uint32_t stay = 0, mine = 0, old = 0;
    *gone_count = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct live l = p->live[i];
        bool stays;
        if (l.until != UINT32_MAX)
            stays = l.until > number;
        else if (l.phase == number)
            stays = phase->keep && mine++ % phase->keep == 0;
        else
            stays = phase->thin && old++ % phase->thin == 0;
        if (stays)
            p->live[stay++] = l;
        else
            gone[(*gone_count)++] = l;
    }
    return stay;
}

static void empty(struct play *p, const struct phase *phase, uint32_t number, struct live *gone)
{
    uint32_t count;
    p->count = divide(p, phase, number, gone, &count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = phase->order == ORDER_RANDOM ? i + below(&p->random, count - i) : i;
        struct live l = gone[at];
        gone[at] = gone[i];
        gone[i] = l;
    }
    for (uint32_t i = 0; i < count; i++)
        give(p, &gone[phase->order == ORDER_LAST ? count - 1 - i : i]);
}

bool pattern_play(const struct pattern *pattern, const struct bounds *bounds, struct trace *trace)
{
    struct record *records = trace->records ? trace->records : malloc((PATTERN_RECORDS + 1) * sizeof(*records));
    struct live *live = malloc(2 * PATTERN_RECORDS * sizeof(*live));
    *trace = (struct trace){.records = records, .blocks = 1, .devices = 1, .streams = STREAM_NAMED_FROM + bounds->streams};
    if (!records || !live) {
        free(live);
        return false;
    }
    struct play play = {.trace = trace, .bounds = bounds, .live = live, .random = pattern->seed | 1};
    for (uint32_t i = 0; i < pattern->count; i++) {
        fill(&play, &pattern->phases[i], i, pattern->count);
        empty(&play, &pattern->phases[i], i, live + PATTERN_RECORDS);
    }
    for (uint32_t i = 0; i < play.count; i++)
        give(&play, &live[i]);
    trace->in_file = trace->count;
    free(live);
    return true;
}

/* ------------------------------------------------------------------------------------------------------------------- printing */

void pattern_print(FILE *file, const struct pattern *pattern, const struct bounds *bounds)
{
    static const char *const orders[ORDER_KINDS] = {"first in first", "last in first", "at random"};
    for (uint32_t i = 0; i < pattern->count; i++) {
        const struct phase *p = &pattern->phases[i];
        char least[QUANTITY_TEXT], most[QUANTITY_TEXT], pin[QUANTITY_TEXT];
        const char *const links[SIZES_KINDS] = {NULL, " and ", " to ", " growing to "};
        quantity_write_bytes(least, p->least);
        quantity_write_bytes(most, p->most);
        fprintf(file, "  phase %u: blocks of %s%s%s", i + 1, least, links[p->sizes] ? links[p->sizes] : "", links[p->sizes] ? most : "");
        if (p->stream < bounds->streams)
            fprintf(file, " on stream %u", STREAM_NAMED_FROM + p->stream);
        else
            fprintf(file, " on all streams");
        fprintf(file, " up to %u %%", p->fill);
        if (p->window)
            fprintf(file, ", each freed after %u more", p->window);
        if (p->pin_every)
            fprintf(file, ", after every %u one of %s that stays %u phases", p->pin_every, quantity_write_bytes(pin, p->pin), p->pin_phases);
        if (p->use && bounds->streams > 1)
            fprintf(file, ", one in %u used by the next stream", p->use);
        fprintf(file, "; freed %s", orders[p->order]);
        if (p->keep)
            fprintf(file, " but one in %u", p->keep);
        if (i && p->thin != 1)
            fprintf(file, p->thin ? "; of older ones one in %u stays" : "; and all older ones", p->thin);
        fprintf(file, "\n");
    }
}
