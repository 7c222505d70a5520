/*
 * requests.h: requests that say more than a size, in one line. LOCKING: none.
 *
 *     DONE(group_alloc(group, MIB, 512, stream, &block));
 */
#ifndef CENOTE_TESTS_REQUESTS_H
#define CENOTE_TESTS_REQUESTS_H

#include <cenote/cenote.h>

#include <string.h>

static inline cenote_request request_of(cenote_group *group, size_t bytes, size_t alignment, cenote_stream stream)
{
    cenote_request r;
    memset(&r, 0, sizeof r);
    r.bytes = bytes;
    r.alignment = alignment;
    r.group = group;
    r.stream = stream;
    return r;
}

static inline int group_alloc(cenote_group *group, size_t bytes, size_t alignment, cenote_stream stream, void **block)
{
    cenote_request r = request_of(group, bytes, alignment, stream);
    return cenote_alloc_with(NULL, &r, block);
}

static inline int alloc_aligned(cenote_pool *pool, size_t bytes, size_t alignment, cenote_stream stream, void **block)
{
    cenote_request r = request_of(NULL, bytes, alignment, stream);
    return cenote_alloc_with(pool, &r, block);
}

static inline int alloc_at(cenote_pool *pool, cenote_group *group, void *address, size_t bytes, cenote_stream stream)
{
    void *block;
    cenote_request r = request_of(group, bytes, 0, stream);
    r.at = address;
    return cenote_alloc_with(pool, &r, &block);
}

#endif
