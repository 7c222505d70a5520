/*
 * snapshot_json.c: a snapshot as JSON. docs/snapshot.md says what each member means.
 *
 * What there is much of is a table: names of columns once, then a row each. LOCKING: none; the snapshot is a copy.
 */
#include "stats/report/snapshot.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/utf8.h"
#include "stats/text/options.h"

#define LIST(file, i, before) file_print(file, "%s\n" before, (i) ? "," : "")

/* Text of any origin: what is not UTF-8 is shown byte by byte. */
static void write_text(struct file *f, const char *text)
{
    file_write(f, "\"", 1);
    for (size_t bytes; *text; text += bytes) {
        unsigned char c = (unsigned char)*text;
        size_t sequence = utf8_sequence(text);
        bytes = sequence ? sequence : 1;
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f || !sequence)
            file_print(f, "\\u%04x", c);
        else
            file_write(f, text, bytes);
    }
    file_write(f, "\"", 1);
}

static const char *yes(bool is) { return is ? "true" : "false"; }

static void write_pool(const struct snapshot *s, struct file *f)
{
    char counters[16384];
    size_t length = cenote_stats_json(&s->stats, counters, sizeof counters);
    file_print(f, "{\"snapshot\":1,\"version\":%d,\"ns\":%" PRIu64 ",\"one_moment\":%s,\n", cenote_version(), s->now_ns, yes(s->is_one_moment));
    file_print(f, "\"pool\":{\"device\":%d,\"provider\":\"%s\",\"default\":%s,\"lost\":%d,"
               "\"capacity\":%" PRIu64 ",\"limit\":%" PRIu64 ",\"page_bytes\":%" PRIu64 ",\"trim_above\":%g,\"pins\":%" PRIu64
               ",\"steps\":%" PRIu64 ",\"records\":%" PRIu64 ",\"records_lost\":%" PRIu64 "},\n\"counters\":",
               s->device, options_provider_name(s->provider), yes(s->is_default),
               (int)s->lost, s->stats.capacity, s->stats.limit, s->stats.page_bytes, s->trim_above, s->pins, s->steps, s->records,
               s->records_lost);
    CHECK(length < sizeof counters);
    file_write(f, counters, length);
}

/* By its place in the table: no lock is held, and the group may have ended since the copy. */
static uint32_t number_of(const cenote_pool *pool, const cenote_group *group)
{
    return group ? (uint32_t)(group - group_of(pool, 0)) : 0;
}

static void write_rows(const struct snapshot *s, struct file *f)
{
    static const char *const divisions[] = {"arena", "group", "class", "tag", "phase", "kind"};
    _Static_assert(sizeof divisions / sizeof divisions[0] == CENOTE_BY_KIND + 1, "one name for each division");
    file_print(f, ",\n\"rows\":{");
    for (int d = 0; d <= CENOTE_BY_KIND; d++) {
        const cenote_row *rows = PART_AT(cenote_row, s, PART_ROWS + d);
        file_print(f, "%s\n\"%s\":[", d ? "," : "", divisions[d]);
        for (size_t i = 0; i < s->parts[PART_ROWS + d].count; i++) {
            const cenote_row *r = &rows[i];
            LIST(f, i, "{\"name\":");
            write_text(f, r->name);
            file_print(f, ",\"key\":%" PRIu64 ",\"blocks\":%" PRIu64 ",\"allocated\":{\"current\":%" PRIu64 ",\"peak\":%" PRIu64
                       ",\"total_in\":%" PRIu64 ",\"total_out\":%" PRIu64 "},\"at_peak\":%" PRIu64 ",\"reserved\":%" PRIu64 "}", r->key,
                       r->blocks, r->allocated.current, r->allocated.peak, r->allocated.total_in, r->allocated.total_out, r->at_peak,
                       r->reserved);
        }
        file_write(f, "]", 1);
    }
    file_write(f, "}", 1);
}

static void write_steps(const struct snapshot *s, struct file *f)
{
    const cenote_step_note *notes = PART_AT(cenote_step_note, s, PART_STEPS);
    file_print(f, ",\n\"steps\":{\"columns\":[\"step\",\"ns\",\"live\",\"reserved\",\"peak\"],\"rows\":[");
    for (size_t i = 0; i < s->parts[PART_STEPS].count; i++)
        file_print(f, "%s\n[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", i ? "," : "", notes[i].step, notes[i].ns,
                   notes[i].live, notes[i].reserved, notes[i].peak);
    file_print(f, "]}");
}

static void write_groups(const struct snapshot *s, struct file *f)
{
    const cenote_group *groups = PART_AT(cenote_group, s, PART_GROUPS);
    file_print(f, ",\n\"groups\":[");
    for (size_t i = 0; i < s->parts[PART_GROUPS].count; i++) {
        const cenote_group *g = &groups[i];
        LIST(f, i, "{\"name\":");
        write_text(f, g->name);
        file_print(f, ",\"group\":%" PRIu32 ",\"private\":%s,\"lends\":%s,\"whole\":%s,\"plain\":%s,\"source\":%s", g->number,
                   yes(g->flags & CENOTE_GROUP_PRIVATE), yes(g->flags & CENOTE_GROUP_LEND), yes(g->flags & CENOTE_GROUP_WHOLE),
                   yes(g->is_plain), yes(g->has_source));
        file_print(f, ",\"destroyed\":%s,\"captures\":%" PRIu32 ",\"arenas\":%" PRIu32 "}", yes(g->destroyed), g->captures, g->arenas);
    }
    file_print(f, "],\n\"captures\":[");
    for (uint32_t i = 0; i < s->capture_count; i++)
        file_print(f, "%s{\"group\":%" PRIu32 ",\"stream_id\":%" PRIu64 ",\"stream\":%" PRIuPTR "}", i ? "," : "", s->captures[i].group,
                   s->captures[i].stream, (uintptr_t)s->captures[i].handle);
    file_write(f, "]", 1);
}

static void write_arenas(const struct snapshot *s, struct file *f)
{
    const struct arena_copy *copies = PART_AT(struct arena_copy, s, PART_ARENAS);
    file_print(f, ",\n\"arenas\":[");
    for (size_t i = 0; i < s->parts[PART_ARENAS].count; i++) {
        const struct arena_copy *a = &copies[i];
        LIST(f, i, "");
        file_print(f, "{\"arena\":%" PRIu32 ",\"group\":%" PRIu32 ",\"stream_id\":%" PRIu64 ",\"stream\":%" PRIuPTR ",\"private\":%s,"
                   "\"retired\":%s,\"blocks\":%" PRIu64 ",\"reserved\":%" PRIu64 ",\"slow_path_users\":%" PRIu32 ",\"last_freed\":%" PRIu64 "}",
                   a->number, a->group, a->stream, (uintptr_t)a->handle, yes(a->is_private), yes(a->retired), a->blocks, a->reserved,
                   a->slow_path_users, a->last_return_tick);
    }
    file_write(f, "]", 1);
}

static bool begins_segment(const cenote_piece *pieces, size_t i)
{
    return !i || pieces[i].segment != pieces[i - 1].segment;
}

static void write_pieces(const struct snapshot *s, const cenote_pool *pool, struct file *f)
{
    static const char *const states[] = {"free", "live", "pending"};
    const cenote_piece *pieces = PART_AT(cenote_piece, s, PART_PIECES);
    size_t count = s->parts[PART_PIECES].count;
    file_print(f, ",\n\"piece_columns\":[\"address\",\"size\",\"requested\",\"state\",\"tag\",\"kind\",\"phase\",\"born\",\"site\",\"word\"],"
               "\n\"segments\":[");
    for (size_t i = 0; i < count; i++) {
        const cenote_piece *p = &pieces[i];
        if (begins_segment(pieces, i))
            file_print(f, "%s\n{\"address\":%" PRIu64 ",\"group\":%" PRIu32 ",\"stream_id\":%" PRIu64 ",\"stream\":%" PRIuPTR ",\"pieces\":[",
                       i ? "," : "", p->segment, number_of(pool, p->group), p->stream_id, (uintptr_t)p->stream);
        file_print(f, "%s\n[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",\"%s\",%" PRIu32 ",%u,%u,%" PRIu64 ",%" PRIu32 ",%" PRIu64 "]",
                   begins_segment(pieces, i) ? "" : ",", p->address, p->size, p->requested, states[p->state], p->tag, p->kind, p->phase, p->born,
                   p->site, p->word);
        if (i + 1 == count || begins_segment(pieces, i + 1))
            file_print(f, "]}");
    }
    file_write(f, "]", 1);
}

/* Where blocks that are there were allocated, by number. */
static void write_sites(const struct snapshot *s, struct file *f)
{
    const uint64_t *bits = PART_AT(uint64_t, s, PART_SITES);
    char text[8192];
    bool is_first = true;
    file_print(f, ",\n\"sites\":{");
    for (uint32_t site = 1; site < s->parts[PART_SITES].count * 64; site++) {
        if (!bit_is_set(bits, site))
            continue;
        cenote_site_text(site, text, sizeof text);
        file_print(f, "%s\n\"%" PRIu32 "\":", is_first ? "" : ",", site);
        write_text(f, text);
        is_first = false;
    }
    file_write(f, "}", 1);
}

static void write_spot(struct file *f, struct slot_ref at)
{
    if (at.region)
        file_print(f, ",[%" PRIu32 ",%" PRIu32 "]", at.region, at.slot);
    else
        file_print(f, ",null");
}

/* A page that has no home and is not on its way is a spare. */
static const char *state_of(const struct page_copy *p)
{
    return p->leaving ? "leaving" : p->owner.region ? "owned" : p->home.region ? "free" : "spare";
}

static void write_pages(const struct snapshot *s, struct file *f)
{
    const struct page_copy *copies = PART_AT(struct page_copy, s, PART_PAGES);
    file_print(f, ",\n\"pages\":{\"columns\":[\"page\",\"bytes\",\"state\",\"owner\",\"home\",\"maps\",\"arena\",\"frozen\",\"pins\",\"freed\","
               "\"complete\"],\"rows\":[");
    for (size_t i = 0; i < s->parts[PART_PAGES].count; i++) {
        const struct page_copy *p = &copies[i];
        file_print(f, "%s\n[%" PRIu32 ",%" PRIu64 ",\"%s\"", i ? "," : "", p->number, p->bytes, state_of(p));
        write_spot(f, p->owner);
        write_spot(f, p->home);
        file_print(f, ",%" PRIu32 ",%" PRIu32 ",%s,%" PRIu32 ",%" PRIu64 ",%s]", p->maps, p->arena, yes(p->fixed || p->pins), p->pins, p->freed,
                   yes(p->complete));
    }
    file_print(f, "]}");
}

static void write_slots(struct file *f, const struct slot_copy *copies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct slot_copy *n = &copies[i];
        file_print(f, "%s\n[%" PRIu32 ",%" PRIu32 ",\"%s%s%s%s%s\",%" PRIu32 ",%" PRIu32 ",%" PRIu64 "]", i ? "," : "", n->slot, n->page,
                   n->home ? "h" : "", n->sole ? "s" : "", n->busy ? "b" : "", n->transit ? "t" : "", n->broken ? "x" : "", n->edges, n->pins,
                   n->freed);
    }
}

static void write_regions(const struct snapshot *s, struct file *f)
{
    const struct region_copy *copies = PART_AT(struct region_copy, s, PART_REGIONS);
    const struct slot_copy *slots = PART_AT(struct slot_copy, s, PART_SLOTS);
    file_print(f, ",\n\"slot_columns\":[\"slot\",\"page\",\"marks\",\"edges\",\"pins\",\"freed\"],\n\"regions\":[");
    for (size_t i = 0; i < s->parts[PART_REGIONS].count; i++) {
        const struct region_copy *r = &copies[i];
        file_print(f, "%s\n{\"region\":%" PRIu32 ",\"arena\":%" PRIu32 ",\"base\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"top\":%" PRIu64
                   ",\"count\":%" PRIu32 ",\"frozen\":%s,\"segment\":%s,\"slots\":[", i ? "," : "", r->number, r->arena, r->base, r->bytes, r->top,
                   r->slots, yes(r->fixed), yes(r->is_segment));
        write_slots(f, slots, r->copied);
        slots += r->copied;
        file_print(f, "]}");
    }
    file_write(f, "]", 1);
}

static void write_pending(const struct snapshot *s, struct file *f)
{
    const struct wait_copy *copies = PART_AT(struct wait_copy, s, PART_WAITS);
    file_print(f, ",\n\"pending\":{\"columns\":[\"address\",\"requested\",\"freed\",\"stream_id\",\"stream\",\"device\",\"waits_for\"],\"rows\":[");
    for (size_t i = 0; i < s->parts[PART_WAITS].count; i++) {
        const struct wait_copy *w = &copies[i];
        file_print(f, "%s\n[%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIuPTR ",%d,\"%s\"]", i ? "," : "", w->at, w->requested, w->freed,
                   w->stream, (uintptr_t)w->handle, w->device, w->has_event ? "event" : w->needs_fence ? "fence" : "device");
    }
    file_print(f, "]}");
}

static void write_fences(const struct snapshot *s, struct file *f)
{
    const struct fences *n = &s->fences;
    file_print(f, ",\n\"fences\":{\"now\":%" PRIu64 ",\"begun\":%" PRIu64 ",\"done\":%" PRIu64 ",\"recording\":%s,\"due\":[", n->now, n->begun,
               n->done, yes(n->recording));
    for (uint32_t i = 0; i < n->count; i++)
        file_print(f, "%s%" PRIu64, i ? "," : "", n->fence[(n->first + i) % FENCES_DUE_MAX].covers);
    file_print(f, "]}\n}\n");
}

void snapshot_write(const struct snapshot *s, const cenote_pool *pool, struct file *file)
{
    write_pool(s, file);
    write_rows(s, file);
    write_steps(s, file);
    write_groups(s, file);
    write_arenas(s, file);
    write_pieces(s, pool, file);
    write_sites(s, file);
    write_pages(s, file);
    write_regions(s, file);
    write_pending(s, file);
    write_fences(s, file);
}
