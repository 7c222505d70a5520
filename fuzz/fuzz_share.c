/*
 * fuzz_share.c: any bytes as a share, as a request to the process that exported a block, or as its answer. The first byte says which, and
 * whether the rest is taken as it is or changes a right one: there sums are mended, so that what comes behind them is reached.
 *
 * Three blocks are exported: a small one, one of several pages, and one that was freed. Nothing but those two may be had, with their own
 * contents; what is refused is refused in words; and the card's books are as before.
 */
#include "fuzz/judge.h"

#include "share/share.h"
#include "sim/sim.h"

#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

enum { AS_SHARE, IN_SHARE, AS_REQUEST, IN_REQUEST, AS_REPLY, IN_REPLY, WAYS };

static struct exported {
    size_t bytes;
    bool freed;
    char *at;
    struct share_message message;
} exports[] = {{.bytes = 3000}, {.bytes = 5 * MIB + 512}, {.bytes = 2 * MIB, .freed = true}};

#define EXPORTS (sizeof exports / sizeof *exports)

static void open_world(void)
{
    struct sim_shape shape;
    CUcontext context;
    cenote_pool *pool;
    cenote_options options;
    sim_shape_default(&shape);
    shape.capacity = 64 * MIB;
    shape.context_bytes = 0;
    shape.manual_clock = true;
    sim_reset(&shape);
    sim_set_quiet(true);
    JUDGE(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxSetCurrent(context));
    JUDGE(!cenote_options_default(&options));
    options.page_mib = 2;
    JUDGE(!cenote_pool_create(0, &options, &pool));
    for (size_t i = 0; i < EXPORTS; i++) {
        void *at;
        cenote_share share;
        JUDGE(!cenote_alloc(pool, exports[i].bytes, NULL, &at) && !cenote_export(at, &share));
        exports[i].at = at;
        memcpy(&exports[i].message, &share, sizeof share);
        JUDGE(!sim_launch_fill(NULL, (CUdeviceptr)(uintptr_t)at, i + 1, exports[i].bytes & ~(size_t)7));
        JUDGE(!exports[i].freed || !cenote_free(at));
    }
    JUDGE(!cuCtxSynchronize());
    share_patience = 20;
}

/* `right` with the input's bytes over it. */
static void change(void *right, size_t bytes, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < bytes && i < size; i++)
        ((uint8_t *)right)[i] ^= data[i];
}

/* What was imported is what one of the blocks holds, from the message's offset on. */
static void judge_import(const struct share_message *m, void *at)
{
    uint64_t before = sim_mismatches();
    const struct exported *e = exports;
    while (e < exports + EXPORTS && e->message.block != m->block)
        e++;
    JUDGE(e < exports + EXPORTS && !e->freed && m->generation == e->message.generation && m->offset < (e->bytes + 511) / 512 * 512);
    if (m->offset % 8 == 0 && m->offset + 8 <= e->bytes)
        JUDGE(!sim_launch_expect(NULL, (CUdeviceptr)(uintptr_t)at, (uint64_t)(e - exports) + 1, (e->bytes - m->offset) & ~(size_t)7));
    JUDGE(!cuCtxSynchronize() && sim_mismatches() == before);
    JUDGE(!cenote_import_close(at));
}

static void try_import(const cenote_share *share, size_t length)
{
    struct share_message m;
    void *at = NULL;
    int error = cenote_import(share, length, 0, &at);
    JUDGE(error == CENOTE_OK || error == CENOTE_INVALID || error == CENOTE_GONE);
    JUDGE(error ? !at && cenote_message()[0] : at != NULL);
    memcpy(&m, share, sizeof m);
    if (!error)
        judge_import(&m, at);
}

static void try_request(const void *request, size_t length)
{
    struct share_reply reply;
    int file = -1;
    share_answer(request, length, &reply, &file);
    JUDGE(share_is_sound(&reply, sizeof reply));
    JUDGE(reply.error == CENOTE_OK || reply.error == CENOTE_INVALID || reply.error == CENOTE_GONE);
    JUDGE(!reply.error || file < 0);
    if (file >= 0)
        close(file);
}

/* What passes as an answer must add up: nothing in it may lead beyond the block's pages. */
static void try_reply(const struct share_reply *reply, size_t length)
{
    if (!share_is_sound(reply, length) || reply->error)
        return;
    JUDGE(length == sizeof *reply && reply->pages && reply->bytes && reply->lead + reply->bytes > reply->lead);
    JUDGE(!reply->shift || (reply->pages << reply->shift >> reply->shift == reply->pages &&
                            reply->lead + reply->bytes <= reply->pages << reply->shift));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool open;
    if (!open)
        open_world();
    open = true;
    if (!size)
        return 0;
    struct sim_books before, after;
    sim_books(&before);
    struct share_message m = exports[data[0] / WAYS % EXPORTS].message;
    struct share_request q = {m.exporter[1], 0, SHARE_MAGIC, SHARE_VERSION, m.block, m.generation, 0};
    struct share_reply reply = {.magic = SHARE_MAGIC, .shift = 21, .pages = 3, .serial = 1, .lead = 512, .bytes = 5 * MIB};
    cenote_share share = {{0}};
    unsigned way = data[0] % WAYS;
    data++, size--;
    change(way == IN_SHARE ? (void *)&m : way == IN_REQUEST ? (void *)&q : (void *)&reply,
           way == IN_SHARE ? sizeof m : way == IN_REQUEST ? sizeof q : way == IN_REPLY ? sizeof reply : 0, data, size);
    share_seal(&m);
    memcpy(&share, way == AS_SHARE ? (const void *)data : (const void *)&m, way == AS_SHARE && size < sizeof share ? size : sizeof share);
    if (way == AS_REPLY)
        memcpy(&reply, data, size < sizeof reply ? size : sizeof reply);
    if (way == AS_SHARE || way == IN_SHARE)
        try_import(&share, way == AS_SHARE ? size : sizeof share);
    else if (way == AS_REQUEST || way == IN_REQUEST)
        try_request(way == AS_REQUEST ? (const void *)data : (const void *)&q, way == AS_REQUEST ? size : sizeof q);
    else
        try_reply(&reply, way == AS_REPLY ? size : sizeof reply);
    sim_books(&after);
    JUDGE(after.mappings == before.mappings && after.handles == before.handles && after.reserved == before.reserved);
    JUDGE(after.violations == 0);
    return 0;
}
