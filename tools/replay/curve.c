/*
 * curve.c: what an allocator holds after each record of a trace, as a file: for `cenote replay --recorded`, which compares it with what a
 * card held.
 *
 * The file has a line for each record of the trace's file, after a line of column names: bytes reserved, and where the block lies if the
 * record is an allocation and the allocator a model (else 0).
 *
 * LOCKING: none.
 */
#include "tools/replay/curve.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

static bool write_moments(const char *path, const struct moment *moments, size_t count)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return false;
    fprintf(file, "reserved,address\n");
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%" PRIu64 ",%" PRIu64 "\n", moments[i].reserved, moments[i].address);
    bool is_whole = !ferror(file);
    return !fclose(file) && is_whole;
}

bool curve_write(const char *path, const struct trace *trace, const struct replay_plan *plan, struct replay_result *result)
{
    struct replay_plan own = *plan;
    size_t bytes = trace->in_file * sizeof(*own.curve);
    own.curve = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); /* cenote runs in a process of its own */
    if (own.curve == MAP_FAILED)
        return false;
    replay_run(trace, &own, result);
    bool is_written = result->failed || write_moments(path, own.curve, trace->in_file);
    int error = errno;
    munmap(own.curve, bytes);
    errno = error;
    return is_written;
}
