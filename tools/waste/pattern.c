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

#define RECORDS 10000         /* a pattern has at most so many allocations, frees and uses */
#define STEP_NS 10000         /* between two of them */
#define UNIT 512              /* every allocator here rounds to it */
#define STREAM_NAMED_FROM 1   /* streams of the trace; 0 is the legacy default stream, which waits for others */

/* From 0 to below `n`. */
static uint32_t below(uint64_t *random, uint64_t n)
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
    uint64_t least = bounds->live / RECORDS * 4;
    double size = (double)bench_random_size(random, least < UNIT ? UNIT : least, largest(bounds));
    uint32_t kind = below(random, 3);
    return rounded(kind < 2 ? exp2(floor(log2(size))) + kind * UNIT : size, largest(bounds));
}

/* 0, 1, or more, small ones more often. */
static uint64_t random_every(uint64_t *random, uint64_t most)
{
    return below(random, 3) ? bench_random_size(random, 1, most) : 0;
}

static struct phase random_phase(const struct bounds *bounds, uint64_t *random)
{
    struct phase p;
    p.n[LEAST] = random_size(bounds, random);
    p.n[MOST] = random_size(bounds, random);
    p.n[PIN] = rounded((double)bench_random_size(random, UNIT, 4 << 20), largest(bounds));
    p.n[PIN_EVERY] = random_every(random, 64);
    p.n[PIN_PHASES] = 1 + below(random, PHASES_MAX);
    p.n[FILL] = below(random, 2) ? 100 : 20 + below(random, 81);
    p.n[WINDOW] = below(random, 4) ? 0 : 1 + below(random, 64);
    p.n[KEEP] = random_every(random, 64);
    p.n[THIN] = random_every(random, 8);
    p.n[USE] = below(random, 4) ? 0 : 1 + below(random, 16);
    p.n[STREAM] = below(random, bounds->streams + 1);
    p.n[SIZES] = below(random, SIZES_KINDS);
    p.n[ORDER] = below(random, ORDER_KINDS);
    return p;
}

void pattern_random(struct pattern *pattern, const struct bounds *bounds, uint64_t *random)
{
    pattern->count = 1 + below(random, PHASES_MAX);
    pattern->seed = bench_random(random);
    for (uint32_t i = 0; i < pattern->count; i++)
        pattern->phases[i] = random_phase(bounds, random);
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

static uint64_t change_every(uint64_t every, uint64_t most, uint64_t *random)
{
    switch (below(random, 5)) {
    case 0:
        return every > 1 ? every / 2 : every;
    case 1:
        return every * 2 < most ? every * 2 : most;
    case 2:
        return every < most ? every + 1 : every;
    case 3:
        return every ? every - 1 : 0;
    default:
        return random_every(random, most);
    }
}

/* Changes one number of a phase, or the last two. */
static void change_phase(struct phase *phase, const struct bounds *bounds, uint64_t *random)
{
    static const struct {
        enum number number;
        uint64_t    most; /* of one in so many; 0: of no such number */
    } changes[] = {{LEAST, 0}, {LEAST, 0}, {MOST, 0}, {PIN, 0}, {PIN_EVERY, 256}, {PIN_PHASES, 0}, {FILL, 0}, {WINDOW, 1024}, {KEEP, 256},
                   {THIN, 256}, {USE, 0}, {STREAM, 0}, {SIZES, 0}};
    struct phase other = random_phase(bounds, random);
    uint32_t kind = below(random, sizeof(changes) / sizeof(changes[0]));
    enum number n = changes[kind].number;
    if (n <= PIN)
        phase->n[n] = change_size(phase->n[n], bounds, random);
    else
        phase->n[n] = changes[kind].most ? change_every(phase->n[n], changes[kind].most, random) : other.n[n];
    if (n == SIZES)
        phase->n[ORDER] = other.n[ORDER];
}

/* Repeats a phase, as it is, with larger blocks, or on the next stream: what wastes once often wastes again. */
static void repeat_phase(struct pattern *pattern, const struct bounds *bounds, uint64_t *random)
{
    static const double factors[] = {1, 1.01, 1.1, 1.5, 2, 4};
    if (pattern->count == PHASES_MAX)
        return;
    uint32_t at = below(random, pattern->count);
    memmove(&pattern->phases[at + 1], &pattern->phases[at], (pattern->count++ - at) * sizeof(struct phase));
    uint64_t *n = pattern->phases[at + 1].n;
    double factor = factors[below(random, 6)];
    n[LEAST] = rounded((double)n[LEAST] * factor, largest(bounds));
    n[MOST] = rounded((double)n[MOST] * factor, largest(bounds));
    n[PIN] = rounded((double)n[PIN] * (below(random, 2) ? factor : 1), largest(bounds));
    if (below(random, 2))
        n[STREAM] = (n[STREAM] + 1) % (bounds->streams + 1);
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
        if (kind == 0) {
            repeat_phase(pattern, bounds, random);
        } else if (kind == 1) {
            remove_phase(pattern, random);
        } else if (kind == 2) {
            pattern->phases[at] = pattern->phases[other];
            pattern->phases[other] = phase;
        } else if (kind == 3) {
            pattern->seed = bench_random(random);
        } else {
            change_phase(&pattern->phases[at], bounds, random);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------------------- playing */

#define NO_PIN UINT64_MAX

struct live {
    uint64_t bytes, stream, until; /* pins are freed at the end of phase `until`; others: NO_PIN */
    uint32_t block, phase;
};

struct play {
    struct trace        *trace;
    const struct bounds *bounds;
    struct live         *live, *gone; /* in the order of allocation; to be freed at the end of the phase */
    uint32_t             count;
    uint64_t             bytes;
    uint64_t             random;
    bool                 full; /* from now on only frees are recorded */
};

static void write_record(struct play *p, enum record_op op, const struct live *l, uint64_t stream)
{
    struct trace *t = p->trace;
    t->length_ns = t->count * STEP_NS;
    t->records[t->count++] = (struct record){
        .t_ns = t->length_ns, .op = op, .id = l->block, .bytes = l->bytes, .stream = (uint32_t)stream, .block = l->block};
}

static void take(struct play *p, uint64_t bytes, uint64_t stream, uint32_t phase, uint64_t until)
{
    if (p->trace->count + p->count + 3 > RECORDS || p->bytes + bytes > p->bounds->live) {
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

static uint64_t next_size(struct play *p, const uint64_t *number, uint32_t n, uint64_t done)
{
    double least = (double)number[LEAST], most = (double)number[MOST];
    if (number[SIZES] == SIZES_SPREAD)
        return rounded(least + (double)(bench_random(&p->random) >> 11) * 0x1p-53 * (most - least), UINT64_MAX / 2);
    if (number[SIZES] == SIZES_GROWING) {
        double part = (double)done / ((double)p->bounds->live * (double)number[FILL] / 100 + 1);
        return rounded(least * pow(most / least, part < 1 ? part : 1), UINT64_MAX / 2);
    }
    return number[SIZES] == SIZES_TWO && n % 2 ? number[MOST] : number[LEAST];
}

/* If the phase has a window: frees the oldest block of the phase that is no pin. Those blocks lie behind `*oldest`. */
static void free_oldest(struct play *p, uint32_t phase, uint32_t *oldest)
{
    for (; *oldest < p->count; (*oldest)++) {
        struct live l = p->live[*oldest];
        if (l.phase != phase || l.until != NO_PIN)
            continue;
        memmove(&p->live[*oldest], &p->live[*oldest + 1], (p->count - *oldest - 1) * sizeof(l));
        p->count--;
        give(p, &l);
        return;
    }
}

static void fill(struct play *p, const uint64_t *number, uint32_t phase, uint32_t phases)
{
    uint64_t most = p->bounds->live / 100 * number[FILL], done = 0, streams = p->bounds->streams;
    uint32_t oldest = p->count;
    size_t owed = p->trace->count + p->count; /* live blocks have to be freed */
    size_t owed_most = owed + (RECORDS - owed) / (phases - phase);
    p->full = false;
    for (uint32_t n = 0; !p->full && p->trace->count + p->count < owed_most; n++) {
        uint64_t stream = STREAM_NAMED_FROM + (number[STREAM] < streams ? number[STREAM] : n % streams);
        uint64_t bytes = next_size(p, number, n, done);
        if (number[WINDOW] && n >= number[WINDOW])
            free_oldest(p, phase, &oldest);
        if (p->bytes + bytes > most)
            break;
        take(p, bytes, stream, phase, NO_PIN);
        done += bytes;
        if (!p->full && number[USE] && n % number[USE] == 0 && streams > 1)
            write_record(p, RECORD_USE, &p->live[p->count - 1], STREAM_NAMED_FROM + (stream - STREAM_NAMED_FROM + 1) % streams);
        if (!p->full && number[PIN_EVERY] && n % number[PIN_EVERY] == 0 && p->bytes + number[PIN] <= most)
            take(p, number[PIN], stream, phase, phase + number[PIN_PHASES]);
    }
}

/* Does it outlive the phase? `mine` and `old` count those that were asked. */
static bool stays(const struct live *l, const uint64_t *number, uint32_t phase, uint64_t *mine, uint64_t *old)
{
    if (l->until != NO_PIN)
        return l->until > phase;
    if (l->phase == phase)
        return number[KEEP] && (*mine)++ % number[KEEP] == 0;
    return number[THIN] && (*old)++ % number[THIN] == 0;
}

static void empty(struct play *p, const uint64_t *number, uint32_t phase)
{
    uint32_t stay = 0, count = 0;
    uint64_t mine = 0, old = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct live l = p->live[i];
        *(stays(&l, number, phase, &mine, &old) ? &p->live[stay++] : &p->gone[count++]) = l;
    }
    p->count = stay;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = number[ORDER] == ORDER_RANDOM ? i + below(&p->random, count - i) : i;
        struct live l = p->gone[at];
        p->gone[at] = p->gone[i];
        p->gone[i] = l;
    }
    for (uint32_t i = 0; i < count; i++)
        give(p, &p->gone[number[ORDER] == ORDER_LAST ? count - 1 - i : i]);
}

void pattern_play(const struct pattern *pattern, const struct bounds *bounds, struct trace *trace)
{
    struct record *records = trace->records ? trace->records : malloc((RECORDS + 1) * sizeof(*records));
    struct live *live = malloc(2 * RECORDS * sizeof(*live));
    if (!records || !live)
        bench_fail("no host memory for a pattern");
    *trace = (struct trace){.records = records, .blocks = 1, .devices = 1, .streams = STREAM_NAMED_FROM + (uint32_t)bounds->streams};
    struct play play = {.trace = trace, .bounds = bounds, .live = live, .gone = live + RECORDS, .random = pattern->seed | 1};
    for (uint32_t i = 0; i < pattern->count; i++) {
        fill(&play, pattern->phases[i].n, i, pattern->count);
        empty(&play, pattern->phases[i].n, i);
    }
    for (uint32_t i = 0; i < play.count; i++)
        give(&play, &live[i]);
    trace->in_file = trace->count;
    free(live);
}
