/*
 * install.h: the entry of the adapter, for `cenote.install()` and for C++ programs that compile plugins/torch/ into themselves.
 */
#pragma once

#include <cenote/cenote.h>
#include <cenote/report.h>

#include <cstddef>

/*
 * Makes cenote the allocator of this process's PyTorch. Call it before PyTorch uses a GPU. Returns 0, or 1 and the reason in `why`, a buffer of
 * `room` bytes. A second call changes nothing.
 */
extern "C" __attribute__((visibility("default"))) int cenote_torch_install(char *why, size_t room);

/* Methods of the allocator that this PyTorch calls otherwise than cenote has them, each with what the program loses; empty if there are none. */
extern "C" __attribute__((visibility("default"))) const char *cenote_torch_lost(void);

/* Does the same for pinned host memory, at any time. `library` is the path of libcenote_host.so. */
extern "C" __attribute__((visibility("default"))) int cenote_torch_install_host(const char *library, char *why, size_t room);

/*
 * cenote_on_moment for a function that takes Python's lock: the calling thread leaves the adapter's gate (history.h) while the function runs.
 * `keeps_history` is set before the function is called.
 */
extern "C" __attribute__((visibility("default"))) int cenote_torch_on_moment(cenote_moment_fn function, void *arg, size_t size);

/*
 * From now on `function` is called whenever memory has run out, before the error is thrown, with Python's lock and no other: `text` is the error's,
 * and what the function writes to `line` becomes its last line but PyTorch's own. NULL: none. Pools that are made later record what they allocate
 * and free, `records` for all devices together.
 */
typedef void (*cenote_torch_ran_out_fn)(int device, const char *text, char *line, size_t room);
extern "C" __attribute__((visibility("default"))) void cenote_torch_on_ran_out(cenote_torch_ran_out_fn function, unsigned long long records);

/*
 * With announced:0 the program's own waits for a device (torch.cuda.synchronize) bring back what streams left behind that ended without a word: one
 * call before such a wait and one after it, on the same thread, with the device current. Without announced:0 they do nothing.
 */
extern "C" __attribute__((visibility("default"))) void cenote_torch_sync_begin(void);
extern "C" __attribute__((visibility("default"))) void cenote_torch_sync_end(void);

/* The program is about to end a stream that it made: cenote_stream_retire, for the pools of all devices. The result is as that of install. */
extern "C" __attribute__((visibility("default"))) int cenote_torch_retire(unsigned long long stream, char *why, size_t room);

/* The group (cenote_group *) of a pool of PyTorch's on a device, while the caller keeps the pool in use; NULL if the pool has none there. */
extern "C" __attribute__((visibility("default"))) void *cenote_torch_group(int device, unsigned long long first, unsigned long long second);

/*
 * From now on these functions hear of each block of PyTorch's: `taken` with the block, its size in the pool, the bytes asked for, the stream and
 * the group (NULL: none), `freeing` while the block is still the caller's, `emptied` after torch.cuda.empty_cache(). No lock is held. A second call
 * changes nothing.
 */
typedef void (*cenote_torch_taken_fn)(int device, const void *block, size_t size, size_t bytes, const void *stream, const void *group);
typedef void (*cenote_torch_freeing_fn)(const void *block);
typedef void (*cenote_torch_emptied_fn)(void);
extern "C" __attribute__((visibility("default"))) void cenote_torch_watch_blocks(cenote_torch_taken_fn taken, cenote_torch_freeing_fn freeing,
                                                                                cenote_torch_emptied_fn emptied);

/*
 * Python is about to end. When this returns, the adapter's calls into Python have returned, and it makes no more. Call it without Python's lock,
 * before the interpreter ends.
 */
extern "C" __attribute__((visibility("default"))) void cenote_torch_python_ends(void);
