/*
 * writer.c: writes a trace that reader.c reads, and the same bytes for the same records: no date, no name of a machine.
 *
 * It does not check what it is given: the caller knows what happened. Errors of the file are kept until the end, as stdio does.
 *
 * LOCKING: none; a writer belongs to one thread.
 */
#include "stats/records/records.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"

/* A writer is its file. */
static struct file *file_of(struct records_writer *writer)
{
    return (struct file *)(void *)writer;
}

static struct records_writer *create(const char *path, const char *more)
{
    struct file *file = file_create(path);
    if (file)
        file_print(file, "t_us,op,id,bytes,stream,device,tag%s\n", more);
    return (struct records_writer *)(void *)file;
}

struct records_writer *records_create(const char *path)
{
    return create(path, "");
}

struct records_writer *records_create_labelled(const char *path)
{
    return create(path, ",address,label,reserved");
}

static void write_common(struct file *file, const struct record *r)
{
    file_print(file, "%" PRIu64 ".%03" PRIu64 ",%c,%" PRIu64 ",%" PRIu64 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32, r->t_ns / 1000,
               r->t_ns % 1000, r->op, r->id, r->bytes, r->stream, r->device, r->tag);
}

void records_write(struct records_writer *writer, const struct record *record)
{
    write_common(file_of(writer), record);
    file_write(file_of(writer), "\n", 1);
}

/* What would end a field, or a line, or look like what is written instead: %2C. */
static bool is_odd(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f || c == ',' || c == '"' || c == '%';
}

void records_write_labelled(struct records_writer *writer, const struct record *record, uint64_t address, const char *label, uint64_t reserved)
{
    struct file *file = file_of(writer);
    write_common(file, record);
    file_print(file, ",%" PRIu64 ",", address);
    for (; *label; label++) {
        if (is_odd(*label))
            file_print(file, "%%%02X", (unsigned char)*label);
        else
            file_write(file, label, 1);
    }
    file_print(file, ",%" PRIu64 "\n", reserved);
}

bool records_finish(struct records_writer *writer)
{
    return file_finish(file_of(writer));
}

void records_abandon(struct records_writer *writer)
{
    file_abandon(file_of(writer));
}
