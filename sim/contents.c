/*
 * contents.c: the bytes of all physical memory of the machine: one sparse file, mapped once.
 *
 * Memory is kept in leaves of 64 KiB, from the first write on, until shape.data bytes are kept. Writes beyond that are dropped, which is
 * said once; from then on leaves that are not kept have unknown contents and differ from nothing. Before that they read as zero.
 */
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/memory.h"

#define LEAF (64u << 10)

static struct {
    char     *window;       /* NULL: not open */
    uint64_t  bytes;        /* of the window */
    uint64_t *kept;         /* a bit for each leaf */
    uint64_t  kept_bytes;
    int       file;
    pid_t     owner;        /* process that opened it: a child of fork must not write into its parent's */
    bool      dropped;      /* something was written that is not kept */
} contents = {.file = -1};

static uint64_t bitmap_bytes(void)
{
    return contents.bytes / LEAF / 8 + 8;
}

static void close_window(void)
{
    if (contents.window)
        munmap(contents.window, contents.bytes);
    if (contents.kept)
        munmap(contents.kept, bitmap_bytes());
    if (contents.file >= 0)
        close(contents.file);
    contents.window = NULL;
    contents.kept = NULL;
    contents.file = -1;
}

static bool open_window(uint64_t bytes)
{
    contents.bytes = bytes;
    contents.owner = getpid();
    contents.file = memfd_create("simulated-gpu", MFD_CLOEXEC);
    if (contents.file < 0 || ftruncate(contents.file, (off_t)bytes))
        return false;
    void *window = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, contents.file, 0);
    if (window == MAP_FAILED)
        return false;
    contents.window = window;
    madvise(window, bytes, MADV_DONTDUMP);
    void *kept = mmap(NULL, bitmap_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (kept == MAP_FAILED)
        return false;
    contents.kept = kept;
    return true;
}

bool contents_reset(uint64_t window_bytes)
{
    contents.dropped = false;
    if (contents.window && contents.bytes == window_bytes && contents.owner == getpid()) {
        if (contents.kept_bytes) {
            fallocate(contents.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)window_bytes);
            madvise(contents.kept, bitmap_bytes(), MADV_DONTNEED);
        }
        contents.kept_bytes = 0;
        return true;
    }
    close_window();
    contents.kept_bytes = 0;
    return open_window(window_bytes);
}

static bool is_kept(uint64_t leaf)
{
    return contents.kept[leaf / 64] >> (leaf % 64) & 1;
}

/* The bytes at `offset`, up to the end of its leaf; NULL where nothing is kept. */
static char *bytes_at(uint64_t offset)
{
    return is_kept(offset / LEAF) ? contents.window + offset : NULL;
}

static void say_dropped(void)
{
    if (contents.dropped)
        return;
    contents.dropped = true;
    if (!model.quiet)
        fprintf(stderr, "simulated GPU: more than %llu bytes written: contents beyond that are dropped (CENOTE_SIM=data:...)\n",
                (unsigned long long)model.shape.data);
}

static char *bytes_to_write(uint64_t offset)
{
    uint64_t leaf = offset / LEAF;
    if (!is_kept(leaf)) {
        if (contents.kept_bytes + LEAF > model.shape.data) {
            say_dropped();
            return NULL;
        }
        contents.kept_bytes += LEAF;
        contents.kept[leaf / 64] |= 1ull << (leaf % 64);
    }
    return contents.window + offset;
}

static uint64_t leaf_part(uint64_t offset, uint64_t bytes)
{
    uint64_t left = LEAF - offset % LEAF;
    return bytes < left ? bytes : left;
}

/* `offset` and `bytes` need not be multiples of a leaf: a leaf at an edge is shared with a neighbour, and only its part is cleared. */
void contents_forget(uint64_t offset, uint64_t bytes)
{
    for (uint64_t end = offset + bytes, part; offset < end && contents.kept_bytes; offset += part) {
        part = leaf_part(offset, end - offset);
        uint64_t leaf = offset / LEAF;
        if (!contents.kept[leaf / 64] && leaf % 64 == 0 && end - offset >= 64 * LEAF) {
            part = 64 * LEAF;
            continue;
        }
        if (!is_kept(leaf))
            continue;
        if (part < LEAF) {
            memset(contents.window + offset, 0, part);
            continue;
        }
        contents.kept[leaf / 64] &= ~(1ull << (leaf % 64));
        contents.kept_bytes -= LEAF;
        fallocate(contents.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, LEAF);
    }
}

static void fill_bytes(char *to, uint64_t pattern, unsigned width, uint64_t bytes)
{
    if (width == 1) {
        memset(to, (int)pattern, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes; i += width)
        memcpy(to + i, &pattern, width);
}

/* `bytes` is a multiple of `width`, and so is `offset`, which keeps an element inside one leaf. */
void contents_fill(uint64_t offset, uint64_t pattern, unsigned width, uint64_t bytes)
{
    for (uint64_t end = offset + bytes, part; offset < end; offset += part) {
        part = leaf_part(offset, end - offset);
        char *to = bytes_to_write(offset);
        if (to)
            fill_bytes(to, pattern, width, part);
    }
}

uint64_t contents_differ(uint64_t offset, uint64_t pattern, uint64_t bytes)
{
    uint64_t different = 0;
    for (uint64_t end = offset + bytes, part; offset < end; offset += part) {
        part = leaf_part(offset, end - offset);
        const char *at = bytes_at(offset);
        if (!at) {
            different += pattern && !contents.dropped ? part / 8 : 0;
            continue;
        }
        for (uint64_t i = 0; i + 8 <= part; i += 8)
            different += memcmp(at + i, &pattern, 8) != 0;
    }
    return different;
}

void contents_write(uint64_t offset, const void *from, uint64_t bytes)
{
    const char *source = from;
    for (uint64_t end = offset + bytes, part; offset < end; offset += part, source += part) {
        part = leaf_part(offset, end - offset);
        char *to = bytes_to_write(offset);
        if (to)
            memcpy(to, source, part);
    }
}

void contents_read(uint64_t offset, void *to, uint64_t bytes)
{
    char *target = to;
    for (uint64_t end = offset + bytes, part; offset < end; offset += part, target += part) {
        part = leaf_part(offset, end - offset);
        const char *from = bytes_at(offset);
        if (from)
            memcpy(target, from, part);
        else
            memset(target, 0, part);
    }
}

void contents_copy(uint64_t to, uint64_t from, uint64_t bytes)
{
    static const char zeros[LEAF];
    for (uint64_t end = from + bytes, part; from < end; from += part, to += part) {
        part = leaf_part(from, end - from);
        part = leaf_part(to, part);
        const char *source = bytes_at(from);
        char *target = source || is_kept(to / LEAF) ? bytes_to_write(to) : NULL;
        if (target)
            memmove(target, source ? source : zeros, part);
    }
}
