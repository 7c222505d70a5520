/*
 * install.h: the entry of the adapter, for `cenote.install()` and for C++ programs that compile plugins/torch/ into themselves.
 */
#pragma once

#include <cenote/cenote.h>
#include <cenote/report.h>

#include <cstddef>

/*
 * Makes cenote the allocator of this process's PyTorch, before it has used a GPU. 0, or 1 and the reason in `why`, which has room for `room` bytes. A
 * second call changes nothing.
 */
extern "C" __attribute__((visibility("default"))) int cenote_torch_install(char *why, size_t room);

/* The same for pinned memory of the host, at any time: `library` is the path of libcenote_host.so. */
extern "C" __attribute__((visibility("default"))) int cenote_torch_install_host(const char *library, char *why, size_t room);

/*
 * cenote_on_moment for functions that take Python's lock: while they run no call of this thread is inside the adapter. Whether operations keep
 * history is filled in already.
 */
extern "C" __attribute__((visibility("default"))) int cenote_torch_on_moment(cenote_moment_fn function, void *arg, size_t size);

/*
 * Python is about to end: from now on no thread is sent into it, and those that are there have come back. Called without Python's lock, before the
 * interpreter ends.
 */
extern "C" __attribute__((visibility("default"))) void cenote_torch_python_ends(void);
