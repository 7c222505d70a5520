/*
 * test_clock_random.c: the room of time alone, without a pool, against a model that is a few plain arrays: what each
 * stream had been given when something was freed. Random programs of streams, frees, uses of freed blocks, captures,
 * private groups that end, and streams that end with or without a word, once where captures are announced and once
 * where they are not.
 *
 * Safe: what the room says is done, the device has done. Alive: when all captures have ended, the device has done all
 * and each stream that lives has been named, all has come back but what streams left behind that ended without a word.
 * And the driver was asked nothing that does harm (gpu.h).
 */
#include "base/lock.h"
#include "pool/clock/clock.h"

#include "tests/base/random.h"
#include "tests/clock/gpu.h"
#include "tests/harness.h"
#include "tests/rounds.h"

#define HANDLES  5u             /* of created streams; they are given again */
#define FOREVER  2u             /* of these live as long as the program */
#define ARENAS  64u
#define FREES 4096u
#define BLOCKS 1024u
#define STEPS  400u

struct freed {                  /* by an arena */
    tick     at;
    uint32_t arena, stream;     /* its stream at that moment; the number of gpu.h */
    bool     is_private;        /* its private group ended then */
    bool     is_done;
    uint32_t given[GPU_STREAMS];
};

struct block {                  /* that is used on streams */
    uint32_t uses;              /* its first one */
    bool     is_freed, is_back;
    bool     is_used[GPU_STREAMS];
    uint32_t given[GPU_STREAMS]; /* of those on which it is used; 0: not of that */
};

static struct clock c;
static struct lock lock;
static struct table horizons;
static _Atomic(struct device *) others[DEVICES_MAX];
static _Atomic(bool) ending;
static _Atomic(CUresult) lost;

static struct random rnd;
static bool announced;
static uint32_t arenas, frees, blocks;
static struct { uint32_t stream; tick freed; bool is_retired; } arena[ARENAS];
static bool is_retired[GPU_STREAMS];
static struct freed freed[FREES];
static struct block block[BLOCKS];
static tick captured_until[GPU_STREAMS];    /* a fence that was begun up to here may have left the stream out */

static uint32_t below(uint32_t end) { return random_below(&rnd, end); }
static struct horizon *horizon_at(uint32_t number) { return TABLE_AT(struct horizon, &horizons, number); }

static uint64_t key_of(uint32_t stream)
{
    return stream == GPU_DEFAULT ? KEY_LEGACY : stream == GPU_THREAD ? key_of_thread() : gpu_stream[stream].id;
}

static bool lives_for_ever(uint32_t stream) { return stream < 2 + FOREVER; }

/* -------------------------------------------------------------------------------------------------- what must be so */

static bool has_done(uint32_t stream, uint32_t given) { return gpu_stream[stream].done >= given; }

/* Is the device done with what was freed, as far as the room promises to know? */
static bool is_done(const struct freed *f)
{
    bool done = announced || has_done(f->stream, f->given[f->stream]);
    for (uint32_t i = 0; i < gpu_streams; i++) {
        bool covered = lives_for_ever(i) && i != GPU_THREAD && captured_until[i] < f->at;
        if (announced || covered || (lives_for_ever(i) && f->is_private))
            done = done && has_done(i, f->given[i]);
    }
    return done;
}

static void check_frees(void)
{
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < frees; i++) {
        struct freed *f = &freed[i];
        if (f->is_done || !fence_has_passed(&c.fences, f->at, f->arena))
            continue;
        f->is_done = true;
        wrong += !is_done(f);
    }
    EXPECT_EQ(wrong, 0);
    EXPECT(fences_are_valid(&c.fences));
    EXPECT_EQ(gpu_mistakes, 0);
}

static void take_back(uint32_t uses)
{
    struct block *b = &block[use_of(&c, uses)->at];
    EXPECT(!b->is_back && b->uses == uses);
    b->is_back = true;
    for (uint32_t i = 0; i < gpu_streams; i++)
        EXPECT(has_done(i, b->given[i]));
}

/* -------------------------------------------------------------------------------------------------------- the steps */

/* Looks, as a thread of which the call names that stream. */
static void look(uint32_t stream)
{
    struct lanes_call outer = lanes_call_names(key_of(stream), gpu_stream[stream].handle);
    struct uses_walk walk;
    REQUIRE(device_enter(&gpu_device, 1) == CUDA_SUCCESS);
    EXPECT_EQ(events_poll(&c, below(3) ? UINT64_MAX : c.fences.now), CUDA_SUCCESS);
    lock_take(&lock);
    if (uses_begin_walk(&c, &walk, UINT32_MAX))
        for (uint32_t uses; (uses = uses_take_done(&c, &walk)); uses_end(&c, uses))
            take_back(uses);
    check_frees();
    lock_give(&lock);
    device_leave(&gpu_device);
    lanes_call_ends(outer);
}

static uint32_t any_stream(void)
{
    uint32_t stream;
    do
        stream = below(gpu_streams);
    while (gpu_stream[stream].has_ended);
    return stream;
}

static void note_given(uint32_t *given)
{
    for (uint32_t i = 0; i < gpu_streams; i++)
        given[i] = gpu_stream[i].given;
}

static void free_in(uint32_t number, bool is_private)
{
    struct freed *f = &freed[frees];
    if (frees == FREES)
        return;
    *f = (struct freed){.arena = number, .stream = arena[number].stream, .is_private = is_private};
    note_given(f->given);
    f->at = arena[number].freed = fences_stamp(&c.fences);
    horizon_at(number)->stream->freed = f->at;
    frees++;
}

static bool may_be_taken(uint32_t number)
{
    return arena[number].is_retired && horizon_has_passed(&c.fences, arena[number].freed, horizon_at(number));
}

/* A stream gets an arena: a new one, or that of one that has ended if the device is done with it. */
static void join(uint32_t stream)
{
    uint32_t lane = lane_for(&c, gpu_stream[stream].handle, key_of(stream), NULL), number = 1;
    REQUIRE(lane);
    lane_hold(&c, lane);
    while (number <= arenas && !may_be_taken(number))
        number++;
    if (number > arenas && arenas + 1 < ARENAS)
        number = arenas = table_take(&horizons);
    else if (number <= arenas)
        lane_leave(&c, horizon_at(number));
    if (number <= arenas) {
        arena[number].stream = stream;
        arena[number].is_retired = false;
        lane_join(&c, horizon_at(number), lane, arena[number].freed);
    }
    lane_drop(&c, lane);
}

/* A block is used on up to three streams. */
static void use_block(void)
{
    struct block *b = &block[blocks];
    if (blocks == BLOCKS)
        return;
    *b = (struct block){0};
    lock_take(&lock);
    for (uint32_t i = 1 + below(3); i--;) {
        uint32_t stream = any_stream();
        gpu_stream[stream].given += !gpu_stream[stream].capture;
        b->is_used[stream] = true;
        EXPECT(uses_enter(&c, &b->uses, &(struct use){.at = blocks}, gpu_stream[stream].handle, key_of(stream), NULL));
    }
    blocks++;
    lock_give(&lock);
}

/* A block is freed; streams that used it may have ended by then. */
static void free_block(uint32_t number)
{
    struct block *b = &block[number];
    if (b->is_freed)
        return;
    b->is_freed = true;
    for (uint32_t i = 0; i < gpu_streams; i++)
        b->given[i] = b->is_used[i] ? gpu_stream[i].given : 0;
    lock_take(&lock);
    use_of(&c, b->uses)->freed = fences_stamp(&c.fences);
    lock_give(&lock);
    uses_record(&c, b->uses);
    lock_give(&lock);
}

static void begin_stream(void)
{
    CUstream handle = (CUstream)(uintptr_t)(0x100 * (1 + below(HANDLES)));
    for (uint32_t i = 0; i < gpu_streams; i++)
        if (gpu_stream[i].handle == handle && !gpu_stream[i].has_ended)
            return;
    if (gpu_streams == GPU_STREAMS)
        return;
    uint32_t stream = gpu_begin(handle);
    lock_take(&lock);
    join(stream);
    lock_give(&lock);
}

static void end_arenas(uint32_t stream)
{
    for (uint32_t i = 1; i <= arenas; i++)
        arena[i].is_retired = arena[i].is_retired || arena[i].stream == stream;
}

/* With a word or without. */
static void end_stream(bool says_so)
{
    uint32_t stream = any_stream();
    struct gpu_stream *s = &gpu_stream[stream];
    if (lives_for_ever(stream) || s->capture)
        return;
    lock_take(&lock);
    uint32_t lane = says_so ? lane_find(&c, key_of(stream), NULL) : 0;
    if (lane)
        lane_hold(&c, lane);
    lock_give(&lock);
    if (lane) {
        gpu_moments = 0; /* in a row they would be an answer, too: it is captured */
        EXPECT_EQ(lane_ends_record(&c, lane, s->handle), CUDA_SUCCESS);
        gpu_moments = announced ? 0 : 7;
        lock_take(&lock);
        lane_drop(&c, lane);
        end_arenas(stream);
        lock_give(&lock);
    }
    is_retired[stream] = says_so;
    s->has_ended = true;
}

static uint32_t captures;

/* A capture of a created stream begins, or ends. */
static void turn_capture(void)
{
    uint32_t stream = any_stream();
    struct gpu_stream *s = &gpu_stream[stream];
    if (stream < 2)
        return;
    s->capture = s->capture ? 0 : ++captures;
    if (announced)
        s->capture ? atomic_fetch_add(&gpu_device.card->captures, 1) : atomic_fetch_sub(&gpu_device.card->captures, 1);
    captured_until[stream] = s->capture ? UINT64_MAX : c.fences.now;
}

/* A private group ends, whose graphs may have run on any stream. */
static void release(void)
{
    uint32_t number = 1 + below(arenas);
    struct horizon *h = horizon_at(number);
    /* it comes to another private group only after that */
    bool was_released = h->released && !horizon_has_passed(&c.fences, h->released, h);
    if (was_released || arena[number].is_retired || gpu_stream[arena[number].stream].has_ended)
        return;
    lock_take(&lock);
    free_in(number, true);
    lane_release(&c, h, arena[number].freed);
    lanes_note_replays(&c);
    lock_give(&lock);
    if (!events_await_replays(&c))
        return;
    REQUIRE(device_enter(&gpu_device, 1) == CUDA_SUCCESS);
    events_cover_replays(&c);
    device_leave(&gpu_device);
}

static void do_all(void)
{
    for (uint32_t i = 0; i < gpu_streams; i++)
        gpu_stream[i].done = gpu_stream[i].given;
}

/* The program waits for the context, which ends captures: only where none is open. */
static void sync(void)
{
    for (uint32_t i = 0; i < gpu_streams; i++)
        if (gpu_stream[i].capture && !gpu_stream[i].has_ended)
            return;
    tick now = c.fences.now;
    do_all();
    if (frees < FREES && below(2))
        free_in(1, false);
    REQUIRE(device_enter(&gpu_device, 1) == CUDA_SUCCESS);
    lock_take(&lock);
    EXPECT(clock_synced(&c, &gpu_device, now));
    EXPECT(!clock_synced(&c, &gpu_device, c.fences.now + 1));
    lock_give(&lock);
    device_leave(&gpu_device);
}

static void step(void)
{
    uint32_t stream = any_stream(), kind = below(100);
    if (kind < 25) {
        gpu_stream[stream].given += !gpu_stream[stream].capture;
    } else if (kind < 50) {
        stream = below(gpu_streams);
        gpu_stream[stream].done += gpu_stream[stream].done < gpu_stream[stream].given;
    } else if (kind < 65) {
        uint32_t number = 1 + below(arenas);
        lock_take(&lock);
        if (!gpu_stream[arena[number].stream].has_ended && !arena[number].is_retired)
            free_in(number, false);
        lock_give(&lock);
    } else if (kind < 72) {
        below(2) || !blocks ? use_block() : free_block(below(blocks));
    } else if (kind < 87) {
        look(stream);
    } else if (kind < 91) {
        begin_stream();
    } else if (kind < 93) {
        end_stream(true);
    } else if (kind < 94) {
        end_stream(false);
    } else if (kind < 97) {
        turn_capture();
    } else if (kind < 99) {
        release();
    } else {
        sync();
    }
}

/* -------------------------------------------------------------------------------------------------------- a program */

static void open_all(uint64_t seed)
{
    rnd = (struct random){seed};
    arenas = frees = blocks = captures = 0;
    memset(&c, 0, sizeof c);
    memset(arena, 0, sizeof arena);
    memset(is_retired, 0, sizeof is_retired);
    memset(captured_until, 0, sizeof captured_until);
    gpu_open();
    gpu_moments = announced ? 0 : 7;
    lock_open(&lock, LOCK_POOL);
    REQUIRE(table_open(&horizons, sizeof(struct horizon), ARENAS));
    c.lock = &lock;
    c.device = &gpu_device;
    c.generation = 1;
    c.others = others;
    c.ending = &ending;
    c.lost = &lost;
    c.fences.arenas = &horizons;
    REQUIRE(clock_open(&c));
    for (uint32_t i = 0; i < FOREVER; i++) {
        uint32_t stream = gpu_begin((CUstream)(uintptr_t)(0x1000 * (1 + i)));
        touch_add(&gpu_device, gpu_stream[stream].handle, key_of(stream));
        key_add_immortal(&c.immortals, gpu_stream[stream].handle, key_of(stream), NULL);
    }
    for (uint32_t i = 0; i < gpu_streams; i++)
        join(i);
}

static void end_captures(void)
{
    for (uint32_t i = 0; i < gpu_streams; i++) {
        if (gpu_stream[i].capture)
            captured_until[i] = c.fences.now;
        gpu_stream[i].capture = 0;
    }
    atomic_store(&gpu_device.card->captures, 0);
}

/* Ended without a word: with announced:0 nothing covers what it left. */
static bool is_lost_track_of(uint32_t stream)
{
    return !announced && gpu_stream[stream].has_ended && !is_retired[stream];
}

static void finish(void)
{
    end_captures();
    gpu_moments = 0;
    for (uint32_t i = 0; i < blocks; i++)
        free_block(i);
    do_all();
    for (int again = 0; again < 3; again++)
        for (uint32_t i = 0; i < gpu_streams; i++)
            if (!gpu_stream[i].has_ended)
                look(i);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < frees; i++)
        kept += !freed[i].is_done && !is_lost_track_of(freed[i].stream) &&
                !is_lost_track_of(arena[freed[i].arena].stream);
    EXPECT_EQ(kept, 0);
    for (uint32_t i = 0; i < blocks; i++) {
        bool waits = false;
        for (uint32_t stream = 0; stream < gpu_streams; stream++)
            waits = waits || (block[i].is_used[stream] && is_lost_track_of(stream));
        kept += !block[i].is_back && !waits;
    }
    EXPECT_EQ(kept, 0);
    EXPECT_EQ(gpu_mistakes, 0);
}

static void close_all(void)
{
    REQUIRE(device_enter(&gpu_device, 1) == CUDA_SUCCESS);
    clock_end(&c);
    device_leave(&gpu_device);
    clock_close(&c);
    table_close(&horizons);
    gpu_close();
}

static void run(uint64_t seed)
{
    open_all(seed);
    for (uint32_t i = 0; i < STEPS; i++)
        step();
    finish();
    close_all();
}

CASE(captures_are_announced)
{
    announced = true;
    for (int i = 0; i < rounds(1000); i++)
        run((uint64_t)i);
}

CASE(captures_are_not_announced)
{
    announced = false;
    touch_be_careful(true);
    for (int i = 0; i < rounds(1000); i++)
        run(1000u + (uint64_t)i);
    touch_be_careful(false);
}

SUITE_MAIN("clock_random")
