/*
 * pluggable.h: what the files of libcenote_pluggable.so share. They know no header of torch.
 */
#pragma once

#include <cenote/cenote.h>

#include <lasting.h>
#include <lock.h>
#include <routes.h>

#include <set>

#define ENTRY extern "C" __attribute__((visibility("default")))

namespace cenote_torch {

/* pluggable.cpp */
cenote_pool *pool_of(int device);

/* pools.cpp: the group that an allocation on this stream goes to; NULL: none. And captures that ended without a word. */
cenote_group *group_of(int device, cenote_stream stream);
void end_lost_captures();

/* named.cpp. `fail` throws the error as PyTorch's: torch.OutOfMemoryError, if memory ran out, with PyTorch's last words if there is a pool.
   `named`: a function of a library that is in the process; NULL: it has none of that name. `lasting_streams`: those of PyTorch's pools. */
[[noreturn]] void fail(int error, cenote_pool *pool = nullptr);
void *find_named(const char *library, const char *name);
template <class Function> Function named(const char *library, const char *name)
{
    return reinterpret_cast<Function>(find_named(library, name));
}
cenote_stream current_stream(int device);
std::set<cenote_stream> lasting_streams(int device);

} // namespace cenote_torch
