/*
 * arguments.c: in the parameters of the headers, NULL for every pointer and BAD(a wrong value) for every number, size and stream; calls.c compares
 * with the headers, and names the parameters of which no value is wrong. The text of the call is the case's name. A call that fails sets no result.
 */
#include <cenote/share.h>
#include <cenote/sleep.h>

#include "tests/death/misuse.h"

#define NULLED_AT(line, text, error, words, aborts, call)                 \
    MISUSE_AS(text, argument_##line, error, words, aborts)                \
    {                                                                     \
        struct givens g = givens_of(s), before;                           \
        memcpy(&before, &g, sizeof g);                                    \
        int answer = call;                                                \
        before.share = g.share; /* of the call before the wrong one */    \
        EXPECT(!answer || !memcmp(&before, &g, sizeof g));                \
        return close_group(g.group, answer);                              \
    }
#define NULLED(line, text, error, words, aborts, call) NULLED_AT(line, text, error, words, aborts, call)
#define WRONG(error, words, call) NULLED(__LINE__, #call, error, words, true, call)
#define INVALID(words, call) NULLED(__LINE__, #call, CENOTE_INVALID, words, true, call)
#define RIGHT(result, call) NULLED(__LINE__, #call, result, NULL, false, call)
#define REFUSED(error, words, call) NULLED(__LINE__, #call, error, words, false, call) /* what may be the machine's or another's fault */
#define STRAY(words, call) NULLED(__LINE__, #call, CENOTE_INVALID, words, true, (s->violations = true, call))
#define BAD(value) (value)

static void watch_nothing(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)notice, (void)arg;
}

struct givens {
    cenote_pool    *pool, *made;
    cenote_group   *group, *next;
    cenote_loan    *loan;
    CUstream        stream;
    void           *block;
    cenote_block    found;
    cenote_options  options;
    cenote_stats    stats;
    cenote_available left;
    cenote_request  request;
    cenote_share    share;
    cenote_row      row;
    cenote_piece    piece;
    cenote_step_note note;
    cenote_marked   marked;
    size_t          count;
    uint64_t        bytes;
    char            text[128];
};

static struct givens givens_of(struct scenery *s)
{
    struct givens g = {.pool = s->scene.pool, .stream = s->scene.stream[A], .options = scene_options(), .group = group_of(s, CENOTE_GROUP_PRIVATE)};
    DONE(cenote_pool_stats(g.pool, &g.stats));
    return g;
}

#define NO_POOL "the pool is NULL: cenote_pool_default or cenote_pool_create gives one"
#define NO_GROUP "the group is NULL: cenote_group_create gives one"

/* clang-format off: one call a line */
INVALID("options is NULL", cenote_options_default(NULL))
INVALID("there is no cenote_options: the pointer is NULL", cenote_options_parse(NULL, ""))
INVALID("conf is NULL", cenote_options_parse(&g.options, NULL))
INVALID("the last argument is NULL", cenote_pool_default(0, NULL))
RIGHT(CENOTE_OK, cenote_pool_create(0, NULL, &g.made) || cenote_pool_destroy(g.made))
INVALID("the last argument is NULL", cenote_pool_create(0, &g.options, NULL))
INVALID("no context to make a pool in", cenote_pool_create_in(NULL, &g.options, &g.made))
RIGHT(CENOTE_OK, cenote_pool_create_in(s->scene.context, NULL, &g.made) || cenote_pool_destroy(g.made))
INVALID("the last argument is NULL", cenote_pool_create_in(s->scene.context, &g.options, NULL))
INVALID(NO_POOL, cenote_pool_destroy(NULL))
INVALID(NO_POOL, cenote_pool_set_limit(NULL, 0))
INVALID(NO_POOL, cenote_pool_set_trim_above(NULL, 0))
RIGHT(-1, cenote_pool_device(NULL))
RIGHT(-1, cenote_pool_provider(NULL))
INVALID(NO_POOL, cenote_pool_grant(NULL, 0))
INVALID(NO_POOL, cenote_pool_available(NULL, &g.left))
INVALID("the last argument is NULL", cenote_pool_available(g.pool, NULL))
INVALID(NO_POOL, cenote_pool_on_shortage(NULL, NULL, NULL))
RIGHT(CENOTE_OK, cenote_pool_on_shortage(g.pool, NULL, NULL))
INVALID(NO_POOL, cenote_pool_watch(NULL, 0, watch_nothing, NULL))
INVALID("the function is NULL", cenote_pool_watch(g.pool, CENOTE_MAPPED, NULL, NULL))
INVALID("0x3f, not of 0x40", cenote_pool_watch(g.pool, BAD(0x40), watch_nothing, NULL))
RIGHT(CENOTE_OK, cenote_pool_watch(g.pool, 0, watch_nothing, NULL))
INVALID(NO_POOL, cenote_alloc(NULL, 512, g.stream, &g.block))
INVALID("the last argument is NULL", cenote_alloc(g.pool, 512, g.stream, NULL))
INVALID("the last argument is NULL", cenote_alloc(g.pool, 0, g.stream, NULL))
INVALID(NO_POOL, alloc_aligned(NULL, 512, 512, g.stream, &g.block))
INVALID(NO_POOL, cenote_pool_reserve(NULL, 512, g.stream))
INVALID(NO_POOL, cenote_alloc_with(NULL, &g.request, &g.block))
INVALID("there is no cenote_request", cenote_alloc_with(g.pool, NULL, &g.block))
INVALID("the last argument is NULL", cenote_alloc_with(g.pool, &g.request, NULL))
INVALID("the last argument is NULL", alloc_aligned(g.pool, 512, 512, g.stream, NULL))
RIGHT(CENOTE_OK, cenote_free(NULL))
RIGHT(CENOTE_OK, cenote_free_sized(NULL, 0))
RIGHT(CENOTE_OK, cenote_free_on(NULL, g.stream))
RIGHT(CENOTE_OK, cenote_use(NULL, g.stream))
RIGHT(CENOTE_OK, cenote_use_on_device(NULL, 0, g.stream))
INVALID("the address is NULL", cenote_find(NULL, &g.found))
INVALID("the last argument is NULL", cenote_find(s->live[0].at, NULL))
WRONG(CENOTE_NOT_OURS, "name what lies in live blocks", cenote_pin(NULL, 512))
WRONG(CENOTE_NOT_OURS, "name what lies in live blocks", cenote_unpin(NULL, 512))
INVALID("the address is NULL", cenote_export(NULL, &g.share))
INVALID("the last argument is NULL", cenote_export(s->live[0].at, NULL))
INVALID("needs a share and a place", cenote_import(NULL, sizeof g.share, 0, &g.block))
INVALID("needs a share and a place", cenote_import(&g.share, sizeof g.share, 0, NULL))
INVALID(NO_POOL, cenote_pool_import(NULL, &g.share, sizeof g.share, &g.block))
INVALID("needs a share and a place", cenote_pool_import(g.pool, NULL, sizeof g.share, &g.block))
INVALID("needs a share and a place", cenote_pool_import(g.pool, &g.share, sizeof g.share, NULL))
WRONG(CENOTE_NOT_OURS, "was not imported", cenote_import_close(NULL))
RIGHT(CENOTE_NOT_OURS, cenote_import_range(NULL, &g.block, &g.bytes))
INVALID("needs places for the answers", cenote_import_range(s->live[0].at, NULL, &g.bytes))
INVALID("needs places for the answers", cenote_import_range(s->live[0].at, &g.block, NULL))
INVALID(NO_POOL, cenote_stream_retire(NULL, g.stream))
INVALID(NO_POOL, cenote_stream_set_immortal(NULL, g.stream))
INVALID(NO_POOL, cenote_pool_sync_begin(NULL, &g.bytes))
INVALID("the last argument is NULL", cenote_pool_sync_begin(g.pool, NULL))
INVALID(NO_POOL, cenote_pool_sync_end(NULL, g.bytes))
INVALID(NO_POOL, cenote_pool_trim(NULL, 0, 0))
INVALID(NO_POOL, cenote_pool_step(NULL))
INVALID(NO_POOL, cenote_pool_pause(NULL, NULL))
INVALID(NO_POOL, cenote_pool_resume(NULL, NULL))
RIGHT(CENOTE_OK, cenote_pool_pause(g.pool, NULL) || cenote_pool_resume(g.pool, NULL))
INVALID("sizeof(cenote_sleep)", (cenote_pool_pause)(g.pool, &(cenote_sleep){0}, 0))
INVALID("sizeof(cenote_sleep)", (cenote_pool_resume)(g.pool, &(cenote_sleep){0}, 0))
INVALID(NO_POOL, cenote_pool_lend(NULL, NULL, &g.loan))
INVALID("has a place for the loan", cenote_pool_lend(g.pool, NULL, NULL))
INVALID("has a place for the loan", cenote_pool_lend(g.pool, &(cenote_sleep){.contents = 9}, &g.loan))
INVALID("sizeof(cenote_sleep)", (cenote_pool_lend)(g.pool, &(cenote_sleep){0}, &g.loan, 0))
INVALID("there is no such loan", cenote_loan_end(NULL, NULL))
RIGHT(CENOTE_OK, cenote_pool_lend(g.pool, NULL, &g.loan) || cenote_loan_end(g.loan, NULL))
INVALID(NO_POOL, cenote_group_create(NULL, "x", 0, NULL, &g.next))
RIGHT(CENOTE_OK, cenote_group_create(g.pool, NULL, 0, NULL, &g.next) || cenote_group_destroy(g.next))
RIGHT(CENOTE_OK, cenote_group_create(g.pool, "x", 0, NULL, &g.next) || cenote_group_destroy(g.next))
INVALID("the last argument is NULL", cenote_group_create(g.pool, "x", 0, NULL, NULL))
INVALID(NO_GROUP, cenote_group_set_flags(NULL, 0))
INVALID(NO_GROUP, cenote_group_destroy(NULL))
INVALID("needs a group and a place", cenote_group_reserved(NULL, &g.bytes))
INVALID("needs a group and a place", cenote_group_reserved(g.group, NULL))
INVALID(NO_POOL, group_alloc(NULL, 512, 512, g.stream, &g.block))
INVALID("the last argument is NULL", group_alloc(g.group, 512, 512, g.stream, NULL))
INVALID(NO_POOL, alloc_at(NULL, NULL, s->live[0].at, 512, g.stream))
INVALID("address that an earlier block had", alloc_at(g.pool, NULL, (char *)s->live[0].at + 1, 512, g.stream))
INVALID(NO_GROUP, cenote_group_reset(NULL))
INVALID(NO_GROUP, cenote_group_trim(NULL, 0))
INVALID(NO_POOL, cenote_capture_begin(NULL, NULL, g.stream))
INVALID(NO_POOL, cenote_capture_end(NULL, NULL, g.stream))
INVALID("needs an open pool", cenote_pool_stats(NULL, &g.stats))
INVALID("a place for the counters", cenote_pool_stats(g.pool, NULL))
INVALID("sizeof(cenote_stats)", (cenote_pool_stats)(g.pool, &g.stats, 0))
INVALID(NO_POOL, cenote_pool_reset_peaks(NULL))
INVALID(NO_POOL, cenote_pool_reset_totals(NULL))
INVALID("there is no cenote_stats: the pointer is NULL", cenote_stats_text(NULL, g.text, sizeof g.text) ? -1 : CENOTE_INVALID)
RIGHT(0, cenote_stats_text(&g.stats, NULL, sizeof g.text) < 500)
INVALID("there is no cenote_stats: the pointer is NULL", cenote_stats_json(NULL, g.text, sizeof g.text) ? -1 : CENOTE_INVALID)
RIGHT(0, cenote_stats_json(&g.stats, NULL, sizeof g.text) < 500)
INVALID("a tag needs a name", cenote_tag_push(NULL))
INVALID("needs an address and a kind", cenote_block_set_kind(NULL, CENOTE_KIND_GRADIENTS))
INVALID(NO_POOL, cenote_pool_rows(NULL, CENOTE_BY_TAG, &g.row, 1, &g.count))
RIGHT(CENOTE_OK, cenote_pool_rows(g.pool, CENOTE_BY_TAG, NULL, 9, &g.count))
INVALID("a place for the count", cenote_pool_rows(g.pool, CENOTE_BY_TAG, &g.row, 1, NULL))
INVALID(NO_POOL, cenote_pool_steps(NULL, &g.note, 1, &g.count))
RIGHT(CENOTE_OK, cenote_pool_steps(g.pool, NULL, 9, &g.count))
INVALID("the last argument is NULL", cenote_pool_steps(g.pool, &g.note, 1, NULL))
RIGHT(0, cenote_pool_explain(NULL, 0, g.text, sizeof g.text) == 0)
RIGHT(0, cenote_pool_explain(g.pool, 0, NULL, sizeof g.text) < 100)
INVALID(NO_POOL, cenote_pool_set_user(NULL, "x"))
INVALID("has 1 to", cenote_pool_set_user(g.pool, NULL))
RIGHT(CENOTE_OK, cenote_on_moment(NULL, NULL))
RIGHT(0, (int)cenote_site_text(1, NULL, sizeof g.text))
INVALID(NO_POOL, cenote_pool_growth(NULL, 2, g.text, sizeof g.text) ? -1 : CENOTE_INVALID)
RIGHT(0, cenote_pool_step(g.pool) || cenote_pool_step(g.pool) || cenote_pool_growth(g.pool, 2, NULL, sizeof g.text) < 10)
INVALID(NO_POOL, cenote_pool_mark(NULL, "x", &g.marked, g.text, sizeof g.text) ? -1 : CENOTE_INVALID)
INVALID("needs a name and the mark before", cenote_pool_mark(g.pool, NULL, &g.marked, g.text, sizeof g.text) ? -1 : CENOTE_INVALID)
INVALID("needs a name and the mark before", cenote_pool_mark(g.pool, "x", NULL, g.text, sizeof g.text) ? -1 : CENOTE_INVALID)
RIGHT(0, cenote_pool_mark(g.pool, "x", &g.marked, NULL, sizeof g.text) < 5)
INVALID(NO_POOL, cenote_pool_pieces(NULL, NULL, &g.piece, 1, &g.count))
RIGHT(CENOTE_OK, cenote_pool_pieces(g.pool, NULL, NULL, 9, &g.count))
INVALID("the last argument is NULL", cenote_pool_pieces(g.pool, NULL, &g.piece, 1, NULL))
INVALID(NO_POOL, cenote_pool_record(NULL, 1))
INVALID(NO_POOL, cenote_pool_record_save(NULL, "/dev/null"))
INVALID("needs the name of a file", cenote_pool_record(g.pool, 100) ? -1 : cenote_pool_record_save(g.pool, NULL))
INVALID(NO_POOL, cenote_pool_snapshot(NULL, "/dev/null"))
INVALID("needs the name of a file", cenote_pool_snapshot(g.pool, NULL))
INVALID(NO_POOL, cenote_pool_check(NULL))

/* A pointer's size in the place of the struct's; a stream that no driver knows, one of another device, one that cannot be captured. */
#define WORD sizeof(void *)
#define NO_STREAM ((cenote_stream)(uintptr_t)0xdead0)
#define NO_SIZE "bytes: the last argument is its size"
#define IS_NO_STREAM "0xdead0 is no stream of device 0"
#define NO_CAPTURE "CUDA does not capture the legacy default stream"

INVALID(NO_SIZE, (cenote_options_default)(&g.options, BAD(3)))
INVALID(NO_SIZE, (cenote_options_parse)(&g.options, "", BAD(WORD)))
INVALID(NO_SIZE, (cenote_pool_create)(0, &g.options, &g.made, BAD(3)))
INVALID(NO_SIZE, (cenote_pool_create_in)(s->scene.context, &g.options, &g.made, BAD(WORD)))
INVALID(NO_SIZE, (cenote_find)(s->live[0].at, &g.found, BAD(WORD)))
INVALID(NO_SIZE, (cenote_group_create)(g.pool, "x", 0, &(cenote_source){0}, &g.next, BAD(WORD)))
STRAY(IS_NO_STREAM, cenote_pool_reserve(g.pool, 512, BAD(NO_STREAM)))
INVALID(NO_SIZE, (cenote_alloc_with)(g.pool, &g.request, &g.block, BAD(3)))
INVALID("CENOTE_NO_WAIT or 0, not 0x8", cenote_alloc_with(g.pool, (&(cenote_request){.bytes = 512, .stream = g.stream, .flags = 8}), &g.block))
INVALID("power of two", cenote_alloc_with(g.pool, (&(cenote_request){.bytes = 512, .stream = g.stream, .alignment = 3}), &g.block))
INVALID(NO_SIZE, (cenote_pool_available)(g.pool, &g.left, BAD(3)))
INVALID(NO_SIZE, (cenote_pool_stats)(g.pool, &g.stats, BAD(3)))
INVALID(NO_SIZE, (cenote_stats_text)(&g.stats, g.text, sizeof g.text, BAD(3)) ? -1 : CENOTE_INVALID)
INVALID(NO_SIZE, (cenote_stats_json)(&g.stats, g.text, sizeof g.text, BAD(WORD)) ? -1 : CENOTE_INVALID)
INVALID(NO_SIZE, (cenote_pool_rows)(g.pool, CENOTE_BY_TAG, &g.row, 1, &g.count, BAD(WORD)))
INVALID(NO_SIZE, (cenote_pool_steps)(g.pool, &g.note, 1, &g.count, BAD(WORD)))
INVALID(NO_SIZE, (cenote_pool_pieces)(g.pool, NULL, &g.piece, 1, &g.count, BAD(3)))
INVALID(NO_SIZE, (cenote_on_moment)(NULL, NULL, BAD(3)))
INVALID(NO_SIZE, (cenote_pool_mark)(g.pool, "x", &g.marked, g.text, sizeof g.text, BAD(WORD)) ? -1 : CENOTE_INVALID)
REFUSED(CENOTE_NO_DEVICE, "device -1 does not exist", cenote_pool_default(BAD(-1), &g.made))
REFUSED(CENOTE_NO_DEVICE, "device 64 does not exist", cenote_pool_create(BAD(64), &g.options, &g.made))
STRAY("0xdead0 is no context in which a pool can be", cenote_pool_create_in(BAD((cenote_context)(uintptr_t)0xdead0), &g.options, &g.made))
INVALID("a part from 0 to 1", cenote_pool_set_trim_above(g.pool, BAD(1.1)))
REFUSED(CENOTE_NO_DEVICE, "device 2 does not exist", cenote_pool_grant(g.pool, BAD(2)))
STRAY(IS_NO_STREAM, cenote_alloc(g.pool, 512, BAD(NO_STREAM), &g.block))
STRAY(IS_NO_STREAM, alloc_aligned(g.pool, 512, 512, BAD(NO_STREAM), &g.block))
INVALID("is no power of two up to the page size", alloc_aligned(g.pool, 512, BAD(3), g.stream, &g.block))
WRONG(CENOTE_NOT_OURS, "was not handed out", cenote_extend(NULL, 512))
INVALID("it grows to more", cenote_extend(s->live[0].at, BAD(0)))
WRONG(CENOTE_WRONG_SIZE, "give that size, or call cenote_free", cenote_free_sized(s->live[0].at, BAD(1)))
STRAY(IS_NO_STREAM, cenote_use(s->live[0].at, BAD(NO_STREAM)))
STRAY(IS_NO_STREAM, cenote_free_on(s->live[0].at, BAD(NO_STREAM)))
STRAY(IS_NO_STREAM, cenote_use_on_device(s->live[0].at, 0, BAD(NO_STREAM)))
INVALID("is of device 0, not of the one that was named", cenote_use_on_device(s->live[0].at, BAD(1), s->scene.stream[B]))
REFUSED(CENOTE_NO_DEVICE, "device 2 does not exist", cenote_use_on_device(s->live[0].at, BAD(2), NULL))
WRONG(CENOTE_NOT_OURS, "0 bytes at", cenote_pin(s->live[0].at, BAD(0)))
WRONG(CENOTE_NOT_OURS, "0 bytes at", cenote_unpin(s->live[0].at, BAD(0)))
STRAY(IS_NO_STREAM, cenote_stream_retire(g.pool, BAD(NO_STREAM)))
INVALID("is the default stream of the device, which does not end", cenote_stream_retire(g.pool, BAD(NULL)))
STRAY(IS_NO_STREAM, cenote_stream_set_immortal(g.pool, BAD(NO_STREAM)))
INVALID("not one that cenote_pool_sync_begin gave", cenote_pool_sync_end(g.pool, BAD(0)))
INVALID("flags 0x80000000: ", cenote_pool_trim(g.pool, 0, BAD(1u << 31)))
INVALID("flags 0x80: only", cenote_group_create(g.pool, "x", BAD(0x80), NULL, &g.next))
INVALID("flags 0x81: only", cenote_group_set_flags(g.group, BAD(0x81)))
INVALID("flags 0x2", cenote_group_trim(g.group, BAD(CENOTE_TRIM_PERIODIC)))
INVALID("is no power of two up to the page size", group_alloc(g.group, 512, BAD(3), g.stream, &g.block))
STRAY(IS_NO_STREAM, group_alloc(g.group, 512, 512, BAD(NO_STREAM), &g.block))
INVALID("the size and address that an earlier block had", alloc_at(g.pool, NULL, s->live[0].at, BAD(0), g.stream))
STRAY(IS_NO_STREAM, alloc_at(g.pool, NULL, s->live[0].at, 512, BAD(NO_STREAM)))
STRAY(IS_NO_STREAM, cenote_capture_begin(NULL, g.group, BAD(NO_STREAM)))
INVALID(NO_CAPTURE, cenote_capture_begin(NULL, g.group, BAD(NULL)))
INVALID(NO_CAPTURE, cenote_capture_begin(NULL, g.group, BAD(CU_STREAM_LEGACY)))
WRONG(CENOTE_CAPTURE, "the group and stream it was begun with", cenote_capture_end(NULL, g.group, BAD(NULL)))
STRAY(IS_NO_STREAM, cenote_capture_begin(g.pool, NULL, BAD(NO_STREAM)))
INVALID(NO_CAPTURE, cenote_capture_begin(g.pool, NULL, BAD(NULL)))
WRONG(CENOTE_CAPTURE, "no capture of no group", cenote_capture_end(g.pool, NULL, BAD(NULL)))
INVALID("phases are numbered from 0 to", cenote_phase_set(BAD(CENOTE_PHASES)))
INVALID("a kind from 0 to", cenote_block_set_kind(s->live[0].at, BAD(CENOTE_KINDS)))
INVALID("a division from 0 to", cenote_pool_rows(g.pool, BAD(99), &g.row, 1, &g.count))
RIGHT(0, (int)cenote_site_text(BAD(UINT32_MAX), g.text, sizeof g.text))
INVALID("looks at 2 to", cenote_pool_growth(g.pool, BAD(1), g.text, sizeof g.text) ? -1 : CENOTE_INVALID)
INVALID("a ring holds up to", cenote_pool_record(g.pool, BAD(UINT64_MAX)))
REFUSED(CENOTE_INVALID, "a share has 64 bytes", cenote_export(s->live[0].at, &g.share) ? -1 : cenote_import(&g.share, BAD(63), 0, &g.block))
REFUSED(CENOTE_NO_DEVICE, "device 64 does not exist", cenote_export(s->live[0].at, &g.share) ? -1 : cenote_import(&g.share, 64, BAD(64), &g.block))
REFUSED(CENOTE_INVALID, "a share has 64 bytes", cenote_export(s->live[0].at, &g.share) ? -1 : cenote_pool_import(g.pool, &g.share, BAD(0), &g.block))
