/* recording.h: what PyTorch allocated and freed, in order, as a trace that cenote-replay plays; see recording.cpp. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace cenote_names {

/* Where a block is asked for: of one queue memory is used again without a wait. */
struct Queue {
    uint64_t stream = 0;
    uint64_t pool[2] = {0, 0}; /* 0, 0: no pool of its own */
};

struct Event {
    uint64_t bytes; /* 0: a free */
    uint32_t block;
    uint32_t place; /* of a block: places.h */
    uint16_t queue; /* from 1 */
    uint8_t device;
    bool is_scratch;
};

/* The events between the last marks, and what they refer to. */
struct Stretch {
    std::vector<Event> events;
    std::vector<size_t> starts; /* of the parts; the last is the end */
    std::vector<Queue> queues;
    std::unordered_map<uint32_t, uint64_t> live; /* addresses of the blocks that are live now */
};

void recording_begin(bool (*is_scratch)(uint64_t bytes));
void recording_take(int device, uint64_t at, size_t bytes, const Queue &queue, uint32_t place);
void recording_give(uint64_t at);
void recording_emptied();
void recording_mark(bool is_first);
Stretch recording_stretch(size_t parts);
int recording_save(int device, const char *path);
void recording_before_fork();
void recording_after_fork(bool is_child);

} // namespace cenote_names
