/*
 * reader.c: reads a trace, one record at a time, and believes nothing.
 *
 * A trace comes from somewhere: a converter, a download, a disk that was full. Whatever does not make sense ends the reading with the
 * file, the line and the reason, so that no replay ever shows figures of half a trace. Checked are the form of each line (columns,
 * numbers, letters), the lives of the blocks (no two of one id at a time, no free of what is not there, or of another size) and the clock.
 *
 * The text goes through one buffer of fixed size: traces are larger than one likes to keep.
 *
 * LOCKING: none; a reader belongs to one thread.
 */
#include "stats/records/records.h"

#include "base/index.h"
#include "base/memory.h"
#include "base/zlib.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES (1 << 16)
#define LINE_BYTES 4096
#define COLUMNS_MAX 64
#define LIVE_MAX (1ull << 62) /* bytes, so that sums of them fit everywhere */
#define BLOCKS_MAX (1u << 27) /* live at one time; only address space is set aside for them */

enum column { T_US, OP, ID, BYTES, STREAM, DEVICE, TAG, ADDRESS, RESERVED, LABEL, COLUMNS };

static const struct {
    const char *name;
    bool        required; /* optional columns are 0 where they are missing or empty */
} columns[COLUMNS] = {
    [T_US] = {"t_us", true},      [OP] = {"op", true},          [ID] = {"id", true},    [BYTES] = {"bytes", true},
    [STREAM] = {"stream", false}, [DEVICE] = {"device", false}, [TAG] = {"tag", false},
    [ADDRESS] = {"address", false}, [RESERVED] = {"reserved", false}, [LABEL] = {"label", false},
};

struct live_block {
    uint32_t chain; /* used by the table while the block is free */
    uint32_t device;
    uint64_t bytes;
};

struct records_reader {
    struct zlib  zlib;
    void        *file;
    char        *path;
    uint64_t     line_number;
    int          column_at[COLUMNS]; /* place in the line, -1: not there */
    int          column_count;
    uint64_t     t_ns;               /* of the last record */
    struct index ids;                /* id of a live block -> its number in `blocks` */
    struct table blocks;             /* struct live_block */
    char       **labels;             /* of each tag; NULL: no line had one so far */
    uint64_t     count, most;        /* records so far, and how many are read at most */
    uint64_t     live;               /* bytes of all live blocks */
    bool         names_device;       /* the record at hand says of which device it is */
    bool         broken;
    size_t       begin, end;         /* what is not read yet of `buffer` */
    char         buffer[BUFFER_BYTES];
    char         line[LINE_BYTES];
    char         message[LINE_BYTES + 256];
};

/* ------------------------------------------------------------------------------------------------------------------- failing */

__attribute__((format(printf, 2, 3))) static enum records_result fail(struct records_reader *r, const char *format, ...)
{
    char reason[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof(reason), format, arguments);
    va_end(arguments);
    snprintf(r->message, sizeof(r->message), "%s:%" PRIu64 ": %s", r->path, r->line_number, reason);
    for (char *at = r->message; *at; at++) /* the file may be another user's: its bytes must not move a terminal's cursor */
        *at = (unsigned char)*at < ' ' || *at == 0x7f ? '?' : *at;
    r->broken = true;
    return RECORDS_BROKEN;
}

static enum records_result fail_reading(struct records_reader *r)
{
    if (!r->file)
        return fail(r, "cannot be opened: %s", r->message);
    int code;
    const char *words = r->zlib.error(r->file, &code);
    if (code == ZLIB_BUF_ERROR)
        return fail(r, "the gzip file ends too early");
    return fail(r, "cannot be read: %s", code == ZLIB_ERRNO ? strerror(errno) : words);
}

/* --------------------------------------------------------------------------------------------------------------------- lines */

/* Makes more of the file readable. RECORDS_END: there is no more. */
static enum records_result fill_buffer(struct records_reader *r)
{
    int code = 0;
    int got = r->file ? r->zlib.read(r->file, r->buffer, sizeof(r->buffer)) : -1;
    if (got >= 0)
        r->zlib.error(r->file, &code); /* a file cut short gives what it has, and says so only here */
    if (got < 0 || code == ZLIB_BUF_ERROR || code == ZLIB_DATA_ERROR)
        return fail_reading(r);
    r->begin = 0;
    r->end = (size_t)got;
    return got ? RECORDS_ONE : RECORDS_END;
}

/* One line into r->line, without its end, CR or not. The last one may lack it. */
static enum records_result read_line(struct records_reader *r)
{
    size_t length = 0;
    bool ended = false;
    r->line_number++;
    while (!ended) {
        enum records_result more = r->begin < r->end ? RECORDS_ONE : fill_buffer(r);
        if (more == RECORDS_BROKEN || (more == RECORDS_END && !length))
            return more;
        if (more == RECORDS_END)
            break;
        const char *from = r->buffer + r->begin;
        const char *newline = memchr(from, '\n', r->end - r->begin);
        size_t part = newline ? (size_t)(newline - from) : r->end - r->begin;
        if (length + part >= sizeof(r->line))
            return fail(r, "the line is longer than %d characters", LINE_BYTES - 1);
        memcpy(r->line + length, from, part);
        length += part;
        ended = newline != NULL;
        r->begin += part + ended;
    }
    if (length && r->line[length - 1] == '\r')
        length--;
    r->line[length] = 0;
    if (strlen(r->line) != length)
        return fail(r, "this is not text");
    return RECORDS_ONE;
}

/* Cuts r->line at its commas. Returns how many fields there are, or COLUMNS_MAX + 1 for too many. */
static int split_line(struct records_reader *r, char *fields[COLUMNS_MAX])
{
    int count = 0;
    for (char *at = r->line; at; count++) {
        if (count == COLUMNS_MAX)
            return COLUMNS_MAX + 1;
        fields[count] = at;
        at = strchr(at, ',');
        if (at)
            *at++ = 0;
    }
    return count;
}

/* -------------------------------------------------------------------------------------------------------------------- fields */

/* Digits and nothing else, below `most`. */
static bool read_number(const char *text, uint64_t most, uint64_t *number)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        uint64_t digit = (uint64_t)(*text - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return false;
        value = value * 10 + digit;
    }
    *number = value;
    return value < most;
}

/* Microseconds with or without a fraction; what is finer than a nanosecond is dropped. */
static bool read_time(char *text, uint64_t *t_ns)
{
    char *point = strchr(text, '.');
    uint64_t ns = 0, us;
    if (point) {
        *point = 0;
        if (!point[1])
            return false;
        char digits[4] = "000";
        for (int i = 0; point[1 + i]; i++) {
            if (point[1 + i] < '0' || point[1 + i] > '9')
                return false;
            if (i < 3)
                digits[i] = point[1 + i];
        }
        read_number(digits, 1000, &ns);
    }
    if (!read_number(text, UINT64_MAX / 1000, &us))
        return false;
    *t_ns = us * 1000 + ns;
    return true;
}

/* The number in an optional or required column; `most` is one more than the largest allowed. */
static enum records_result read_column(struct records_reader *r, char **fields, enum column column, uint64_t most, bool may_be_empty,
                                       uint64_t *number)
{
    int at = r->column_at[column];
    const char *text = at < 0 ? "" : fields[at];
    *number = 0;
    if (!*text && may_be_empty)
        return RECORDS_ONE;
    if (read_number(text, most, number))
        return RECORDS_ONE;
    return fail(r, "%s is \"%.40s\", not a whole number from 0 to %" PRIu64, columns[column].name, text, most - 1);
}

static enum records_result read_header(struct records_reader *r)
{
    char *fields[COLUMNS_MAX];
    enum records_result got = read_line(r);
    if (got == RECORDS_END)
        return fail(r, "the file is empty; a trace begins with the names of its columns");
    if (got == RECORDS_BROKEN)
        return got;
    r->column_count = split_line(r, fields);
    if (r->column_count > COLUMNS_MAX)
        return fail(r, "there are more than %d columns", COLUMNS_MAX);
    for (int c = 0; c < COLUMNS; c++) {
        r->column_at[c] = -1;
        for (int i = 0; i < r->column_count; i++) {
            if (strcmp(fields[i], columns[c].name) != 0)
                continue;
            if (r->column_at[c] >= 0)
                return fail(r, "column %s is there twice", columns[c].name);
            r->column_at[c] = i;
        }
        if (r->column_at[c] < 0 && columns[c].required)
            return fail(r, "column %s is missing", columns[c].name);
    }
    return RECORDS_ONE;
}

/* The first label that a tag has is its name. */
static enum records_result keep_label(struct records_reader *r, char **fields, uint32_t tag)
{
    const char *text = r->column_at[LABEL] < 0 ? "" : fields[r->column_at[LABEL]];
    if (!*text)
        return RECORDS_ONE;
    if (!r->labels)
        r->labels = calloc(RECORD_STREAMS_MAX, sizeof(*r->labels));
    if (r->labels && !r->labels[tag])
        r->labels[tag] = strdup(text);
    return r->labels && r->labels[tag] ? RECORDS_ONE : fail(r, "no host memory for the name of a tag");
}

/* What a trace of ours says besides. Empty is not told. */
static enum records_result read_more(struct records_reader *r, char **fields, struct record *record)
{
    const enum column more[2] = {ADDRESS, RESERVED};
    uint64_t *numbers[2] = {&record->address, &record->reserved};
    for (int i = 0; i < 2; i++) {
        int at = r->column_at[more[i]];
        if (read_column(r, fields, more[i], 1ull << 63, true, numbers[i]) != RECORDS_ONE)
            return RECORDS_BROKEN;
        if (at < 0 || !*fields[at])
            *numbers[i] = RECORD_NOT_TOLD;
    }
    return record->op == RECORD_ALLOC ? keep_label(r, fields, record->tag) : RECORDS_ONE;
}

static enum records_result read_record(struct records_reader *r, struct record *record)
{
    char *fields[COLUMNS_MAX];
    if (r->count++ == r->most)
        return fail(r, "more than %" PRIu64 " records: take a part of it (zcat FILE | head -n %" PRIu64 "), or record fewer of them "
                    "(CENOTE_CONF=record:1000000)", r->most, r->most);
    int count = split_line(r, fields);
    if (count != r->column_count)
        return fail(r, "the line has %s columns than the header, which has %d", count < r->column_count ? "fewer" : "more",
                    r->column_count);

    const char *op = fields[r->column_at[OP]];
    if (!*op || op[1] || !strchr("afus", *op))
        return fail(r, "op is \"%.40s\", not one of a (allocate), f (free), u (use) and s (step)", op);
    record->op = (enum record_op)*op;
    if (!read_time(fields[r->column_at[T_US]], &record->t_ns))
        return fail(r, "t_us is not a number of microseconds from 0 to %" PRIu64, UINT64_MAX / 1000 - 1);

    bool is_step = record->op == RECORD_STEP;
    uint64_t stream, device, tag;
    bool fine = read_column(r, fields, ID, RECORD_IDS_MAX, is_step, &record->id) == RECORDS_ONE &&
                read_column(r, fields, BYTES, LIVE_MAX, record->op != RECORD_ALLOC, &record->bytes) == RECORDS_ONE &&
                read_column(r, fields, STREAM, RECORD_STREAMS_MAX, true, &stream) == RECORDS_ONE &&
                read_column(r, fields, DEVICE, RECORD_DEVICES_MAX, true, &device) == RECORDS_ONE &&
                read_column(r, fields, TAG, RECORD_STREAMS_MAX, true, &tag) == RECORDS_ONE;
    if (!fine)
        return RECORDS_BROKEN;
    record->stream = (uint32_t)stream;
    record->device = (uint32_t)device;
    record->tag = (uint32_t)tag;
    record->block = 0;
    if (record->op == RECORD_ALLOC && !record->bytes)
        return fail(r, "an allocation of 0 bytes");
    r->names_device = r->column_at[DEVICE] >= 0 && *fields[r->column_at[DEVICE]];
    return read_more(r, fields, record);
}

/* -------------------------------------------------------------------------------------------------------------------- blocks */

/* The index wants addresses: multiples of 512 that are not 0. */
static uint64_t key_of(uint64_t id)
{
    return (id + 1) << 9;
}

static enum records_result begin_life(struct records_reader *r, struct record *record)
{
    uint64_t key = key_of(record->id);
    if (index_find(&r->ids, key))
        return fail(r, "id %" PRIu64 " is allocated again while it is live", record->id);
    uint32_t block = index_reserve(&r->ids, 1) ? table_take(&r->blocks) : 0;
    if (!block)
        return fail(r, "no host memory for %" PRIu32 " live blocks", r->ids.count + 1);
    index_add(&r->ids, key, block);
    struct live_block *live = table_at(&r->blocks, block);
    live->bytes = record->bytes;
    live->device = record->device;
    record->block = block;
    r->live += record->bytes;
    return r->live < LIVE_MAX ? RECORDS_ONE : fail(r, "the live blocks have more than 2^62 bytes together");
}

/* A free, or a use: the block must be live, and what the record says of it must be true, where it says anything. */
static enum records_result find_life(struct records_reader *r, struct record *record)
{
    record->block = index_find(&r->ids, key_of(record->id));
    if (!record->block)
        return fail(r, "id %" PRIu64 " is not live", record->id);
    const struct live_block *live = table_at(&r->blocks, record->block);
    if (record->bytes && record->bytes != live->bytes)
        return fail(r, "id %" PRIu64 " was allocated with %" PRIu64 " bytes, not %" PRIu64, record->id, live->bytes, record->bytes);
    if (r->names_device && record->device != live->device)
        return fail(r, "id %" PRIu64 " was allocated on device %" PRIu32 ", not %" PRIu32, record->id, live->device, record->device);
    record->bytes = live->bytes;
    record->device = live->device;
    if (record->op == RECORD_FREE) {
        r->live -= live->bytes;
        index_remove(&r->ids, key_of(record->id));
        table_give(&r->blocks, record->block);
    }
    return RECORDS_ONE;
}

static enum records_result check_life(struct records_reader *r, struct record *record)
{
    if (record->t_ns < r->t_ns)
        return fail(r, "time goes back");
    r->t_ns = record->t_ns;
    switch (record->op) {
    case RECORD_ALLOC:
        return begin_life(r, record);
    case RECORD_FREE:
    case RECORD_USE:
        return find_life(r, record);
    case RECORD_STEP:
        break;
    }
    return RECORDS_ONE;
}

/* ---------------------------------------------------------------------------------------------------------------------- open */

struct records_reader *records_open(const char *path)
{
    struct records_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->path = strdup(path);
    if (!r->path || !table_open(&r->blocks, sizeof(struct live_block), BLOCKS_MAX)) {
        free(r->path);
        free(r);
        return NULL;
    }
    r->most = TRACE_RECORDS_MAX;
    bool can_read = zlib_find(&r->zlib);
    errno = 0;
    r->file = can_read ? r->zlib.open(path, "rb") : NULL;
    if (!r->file)
        snprintf(r->message, sizeof(r->message), "%s", can_read ? strerror(errno ? errno : ENOMEM) : ZLIB_LIBRARY " was not found");
    return r;
}

enum records_result records_next(struct records_reader *r, struct record *record)
{
    if (r->broken)
        return RECORDS_BROKEN;
    enum records_result got = r->line_number ? RECORDS_ONE : read_header(r);
    if (got == RECORDS_ONE)
        got = read_line(r);
    if (got == RECORDS_ONE)
        got = read_record(r, record);
    return got == RECORDS_ONE ? check_life(r, record) : got;
}

enum records_result records_batch(struct records_reader *r, struct record *records, uint32_t room, uint32_t *count)
{
    enum records_result got = RECORDS_ONE;
    for (*count = 0; *count < room; ++*count) {
        got = records_next(r, &records[*count]);
        if (got != RECORDS_ONE)
            break;
    }
    return got;
}

void records_limit(struct records_reader *r, uint64_t most)
{
    r->most = most;
}

bool records_tell(const struct records_reader *r, const char *column)
{
    for (int c = 0; c < COLUMNS; c++)
        if (!strcmp(column, columns[c].name))
            return r->column_at[c] >= 0;
    return false;
}

const char *records_label(const struct records_reader *r, uint32_t tag)
{
    return r->labels && tag < RECORD_STREAMS_MAX ? r->labels[tag] : NULL;
}

uint32_t records_blocks(const struct records_reader *r)
{
    return r->blocks.used;
}

const char *records_message(const struct records_reader *r)
{
    return r->message;
}

void records_close(struct records_reader *r)
{
    if (!r)
        return;
    if (r->file)
        r->zlib.close(r->file);
    for (uint32_t tag = 0; r->labels && tag < RECORD_STREAMS_MAX; tag++)
        free(r->labels[tag]);
    free(r->labels);
    index_close(&r->ids);
    table_close(&r->blocks);
    free(r->path);
    free(r);
}
