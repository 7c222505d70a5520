/*
 * fuzz_trace.c: any bytes as a trace, plain or gzip. It is refused with file, line and reason, or read; and what was read can be written and
 * is then read as the same records.
 */
#include "fuzz/judge.h"
#include "stats/records/records.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RECORDS_KEPT 256

struct memory_file {
    int  fd;
    char path[64];
};

static struct memory_file open_memory_file(void)
{
    struct memory_file file = {.fd = memfd_create("trace", 0)};
    JUDGE(file.fd >= 0);
    snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
    return file;
}

/* Up to RECORDS_KEPT records are kept; all are read. */
static enum records_result read_all(const char *path, struct record *records, size_t *kept)
{
    struct records_reader *reader = records_open(path);
    struct record record;
    enum records_result got;
    JUDGE(reader);
    *kept = 0;
    while ((got = records_next(reader, &record)) == RECORDS_ONE) {
        JUDGE(record.op == RECORD_STEP ? record.block == 0 : record.block > 0 && record.block < records_blocks(reader));
        JUDGE(record.id < RECORD_IDS_MAX && record.stream < RECORD_STREAMS_MAX && record.device < RECORD_DEVICES_MAX);
        if (*kept < RECORDS_KEPT)
            records[(*kept)++] = record;
    }
    JUDGE(records_next(reader, &record) == got); /* the end stays the end */
    JUDGE(got == RECORDS_END || strncmp(records_message(reader), path, strlen(path)) == 0);
    records_close(reader);
    return got;
}

static void write_and_read_again(const struct record *records, size_t count)
{
    static struct record again[RECORDS_KEPT];
    struct memory_file file = open_memory_file();
    struct records_writer *writer = records_create(file.path);
    size_t kept;
    JUDGE(writer);
    for (size_t i = 0; i < count; i++)
        records_write(writer, &records[i]);
    JUDGE(records_finish(writer));
    JUDGE(read_all(file.path, again, &kept) == RECORDS_END);
    JUDGE(kept == count);
    for (size_t i = 0; i < count; i++) {
        const struct record *a = &records[i], *b = &again[i];
        JUDGE(a->op == b->op && a->t_ns == b->t_ns && a->block == b->block);
        JUDGE(a->op == RECORD_STEP || (a->id == b->id && a->bytes == b->bytes && a->stream == b->stream && a->device == b->device));
    }
    close(file.fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct record records[RECORDS_KEPT];
    struct memory_file file = open_memory_file();
    size_t kept;
    JUDGE(write(file.fd, data, size) == (ssize_t)size);
    if (read_all(file.path, records, &kept) == RECORDS_END)
        write_and_read_again(records, kept);
    close(file.fd);
    return 0;
}
