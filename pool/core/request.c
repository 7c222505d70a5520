/*
 * request.c: what becomes of the size that a caller asks for: a size class, or so many units of 512 bytes; in which
 * heap, and whether it covers whole pages. Knows no arena.
 *
 * LOCKING: none.
 */
#include "pool/core/request.h"

#include "base/ranges.h"
#include "pool/core/slab.h"
#include "pool/core/sizeclass.h"

#define SMALL_SHIFT 2 /* chosen: a small block takes a quarter of a small page
                         at most; docs/history.md has what else was tried */

/*
 * Decides between slab and heap. Private arenas have no slabs: the blocks of a capture must be restorable one by one.
 */
void request_make(struct request *q, bool slabs)
{
    if (slabs && q->bytes <= CLASS_BYTES_MAX && q->alignment <= BLOCK_BYTES) {
        q->class = class_of(q->bytes);
        q->size = slab_bytes(q->class);
        q->alignment = SLAB_ALIGNMENT;
    } else {
        q->class = CLASS_NONE;
        q->size = (q->bytes + BLOCK_BYTES - 1) & ~(uint64_t)(BLOCK_BYTES - 1);
        q->alignment = q->alignment < BLOCK_BYTES ? BLOCK_BYTES : q->alignment;
    }
}

/*
 * A small block goes to a heap of its own. Beside a block that goes when it stays, it would hold a page, and the hole
 * in front of it would serve no block that is larger.
 */
void request_choose_heap(struct request *q, uint32_t small_shift)
{
    q->heap = q->size <= 1ull << small_shift >> SMALL_SHIFT ? HEAP_OF_SMALL : 0;
}

void request_cover_pages(struct request *q, uint64_t page)
{
    q->size = (q->size + page - 1) & ~(page - 1);
    q->alignment = q->alignment < page ? page : q->alignment;
}
