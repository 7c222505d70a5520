/* recording.h: what PyTorch allocated and freed, in order, as a trace that cenote-replay plays; see recording.cpp. */
#pragma once

#include <cstddef>
#include <cstdint>

namespace cenote_names {

/* Where a block is asked for: of one queue memory is used again without a wait. */
struct Queue {
    uint64_t stream = 0;
    uint64_t pool[2] = {0, 0}; /* 0, 0: no pool of its own */
};

void recording_begin(bool (*is_scratch)(uint64_t bytes));
void recording_take(int device, uint64_t at, size_t bytes, const Queue &queue);
void recording_give(uint64_t at);
void recording_emptied();
int recording_save(int device, const char *path);
void recording_before_fork();
void recording_after_fork(bool is_child);

} // namespace cenote_names
