/*
 * writer.c: writes a trace that reader.c reads, and the same bytes for the same records: no date, no name of a machine.
 *
 * It does not check what it is given: whoever writes knows what happened. Errors of the file are kept until the end, as stdio does.
 *
 * LOCKING: none; a writer belongs to one thread.
 */
#include "stats/records/records.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

static gzFile file_of(struct records_writer *writer)
{
    return (gzFile)(void *)writer;
}

struct records_writer *records_create(const char *path)
{
    size_t length = strlen(path);
    bool is_gzip = length >= 3 && !strcmp(path + length - 3, ".gz");
    gzFile file = gzopen(path, is_gzip ? "wb9" : "wbT"); /* T: as it is */
    if (file)
        gzputs(file, "t_us,op,id,bytes,stream,device,tag\n");
    return (struct records_writer *)(void *)file;
}

void records_write(struct records_writer *writer, const struct record *r)
{
    gzprintf(file_of(writer), "%" PRIu64 ".%03" PRIu64 ",%c,%" PRIu64 ",%" PRIu64 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 "\n", r->t_ns / 1000,
             r->t_ns % 1000, r->op, r->id, r->bytes, r->stream, r->device, r->tag);
}

bool records_finish(struct records_writer *writer)
{
    int failed;
    gzerror(file_of(writer), &failed);
    return gzclose(file_of(writer)) == Z_OK && failed == Z_OK;
}
