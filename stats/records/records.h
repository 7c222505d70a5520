/*
 * records.h: allocation traces, read and written. docs/traces.md describes the format; reader.c and writer.c say how.
 *
 * Reading is a library of its own, cenote_records, because it needs zlib and libcenote needs nothing. Writing is part of libcenote.
 */
#ifndef CENOTE_STATS_RECORDS_RECORDS_H
#define CENOTE_STATS_RECORDS_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

/* What a record says happened: the letters of column `op`. */
enum record_op {
    RECORD_ALLOC = 'a',
    RECORD_FREE = 'f',
    RECORD_USE = 'u',  /* the block is also used on `stream` */
    RECORD_STEP = 's'  /* one iteration of the program is over */
};

#define RECORD_IDS_MAX (1ull << 54)     /* ids lie below */
#define RECORD_STREAMS_MAX (1u << 16)   /* streams and tags lie below */
#define RECORD_DEVICES_MAX 64           /* devices lie below */
#define TRACE_RECORDS_MAX 20000000            /* of one trace; no reader has to hold more, and a replay of so many says it all */
#define RECORD_NOT_TOLD UINT64_MAX

struct record {
    uint64_t       t_ns;   /* since the trace began; never goes back */
    enum record_op op;
    uint64_t       id;     /* names a block from its allocation to its free, then may name another */
    uint64_t       bytes;
    uint32_t       stream, device, tag;
    uint32_t       block;  /* set by the reader: number of the live block, from 1, small because reused; 0 for a step */
    uint64_t       address, reserved; /* set by the reader: where the block lay, what the pool held then; RECORD_NOT_TOLD where no column says it */
};

/* ---------------------------------------------------------------------------------------------------------------------- reading */

struct records_reader;

enum records_result { RECORDS_END, RECORDS_ONE, RECORDS_BROKEN };

/* Never NULL unless the host has no memory; whether the file can be read shows at the first record. */
struct records_reader *records_open(const char *path);
enum records_result    records_next(struct records_reader *reader, struct record *record);
/* As many as `room` at once, for callers for which a call is dear: `count` of them are good, whatever the result. RECORDS_ONE: there may be more. */
enum records_result    records_batch(struct records_reader *reader, struct record *records, uint32_t room, uint32_t *count);
void                   records_limit(struct records_reader *reader, uint64_t most); /* refuse a trace of more than this; first TRACE_RECORDS_MAX */
bool                   records_tell(const struct records_reader *reader, const char *column); /* after the first record: is it in this trace? */
const char            *records_label(const struct records_reader *reader, uint32_t tag); /* as it is written, from the first line with it; or NULL */
uint32_t               records_blocks(const struct records_reader *reader); /* `block` of every record so far lies below */
const char            *records_message(const struct records_reader *reader); /* "file:line: reason" after RECORDS_BROKEN */
void                   records_close(struct records_reader *reader);

/* ---------------------------------------------------------------------------------------------------------------------- writing */

struct records_writer;

/* gzip if `path` ends in .gz. NULL if the file cannot be made; errno says why (file_error). */
struct records_writer *records_create(const char *path);
void                   records_write(struct records_writer *writer, const struct record *record);
bool                   records_finish(struct records_writer *writer); /* false: errno says why; what was at `path` before is still there */
void                   records_abandon(struct records_writer *writer);

/* With three columns more, which readers of records ignore: where the block lay, the name of the tag where it is new, what the pool holds. */
struct records_writer *records_create_labelled(const char *path);
void records_write_labelled(struct records_writer *writer, const struct record *record, uint64_t address, const char *label, uint64_t reserved);

#endif
