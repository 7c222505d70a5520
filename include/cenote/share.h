/*
 * share.h: device memory that several processes see. docs/sharing.md says what an exporter and an importer may do, and when.
 *
 *     cenote_share share;
 *     cenote_export(block, &share);                                    ... in one process; send `share` as it is ...
 *     cenote_import(&share, sizeof share, device, &address);           ... in another
 *     cenote_import_close(address);
 *
 * Conventions are those of cenote.h.
 */
#ifndef CENOTE_SHARE_H
#define CENOTE_SHARE_H

#include <cenote/cenote.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Names a block to other processes of the same user on this machine. The second word names the process that
 * exports: it is the same in all its shares, and no other process has it. Plain bytes: send them by any means. docs/sharing.md
 */
typedef struct cenote_share {
    uint64_t words[8];
} cenote_share;

/*
 * The live block that holds `address`, which may lie inside it, may be imported from now on until it is freed. Another export of the same
 * address says the same; a block that lies there later has another name. Importers see the whole pages under the block; where that
 * matters take it from a group with CENOTE_GROUP_WHOLE. CENOTE_NOT_SUPPORTED where the memory is of a kind that cannot be shared.
 *
 * Nothing here orders work: the reader waits for the writer (events that are shared between processes), and the exporter frees a block only
 * when every importer is done with it.
 */
CENOTE_API int cenote_export(void *address, cenote_share *share);

/*
 * Where that address is in this process, for kernels of `device`: until cenote_import_close, also if the exporter dies. Each import wants a
 * close of its own. `length` is how many bytes were received. CENOTE_GONE if the exporter is gone or the block was freed; a damaged
 * message is CENOTE_INVALID.
 */
CENOTE_API int cenote_import(const cenote_share *share, size_t length, int device, void **address);

/*
 * The same in the context of a pool: if that is one of the caller's own (cenote_pool_create_in), no primary context is made for it. The import ends
 * with the pool at the latest; one of an address that several pools have imported, with the pool that was the first.
 */
CENOTE_API int cenote_pool_import(cenote_pool *pool, const cenote_share *share, size_t length, void **address);

/*
 * Lets go of what cenote_import gave. With the last of a range it waits until the device is done, and takes the mapping away before it returns:
 * the exporter may free the block then. If a pool has the option announced:0, it waits for the default stream and for immortal ones alone: the
 * program has waited for its other streams. CENOTE_BUSY, and nothing happens, while an announced capture is open on the device, or one of
 * those streams is being captured: close it when that has ended.
 * CENOTE_DRIVER: it is closed for the program, but the driver did not take the memory back; later calls offer it again, and until then the exporter
 * should keep it.
 */
CENOTE_API int cenote_import_close(void *address);

/* Where the imported block begins that holds this address, and how long it is. CENOTE_NOT_OURS: no import is open there. */
CENOTE_API int cenote_import_range(const void *address, void **start, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
