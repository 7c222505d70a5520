/* ledger.h: which blocks are live, and which were live when most bytes were; see ledger.cpp. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cenote_names {

/* What holds a block: in the upper 4 bits a kind, below them the number of the holder of that kind. 0: not known. */
using Holder = uint32_t;
enum Kind : uint32_t { OTHER, PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, WORKSPACES, INPUTS }; /* as kinds.def, and one more */
constexpr unsigned KIND_SHIFT = 28;
constexpr Holder UNNAMED = (1u << KIND_SHIFT) - 1; /* of its kind, but of no known name */

inline Kind kind_of(Holder holder) { return static_cast<Kind>(holder >> KIND_SHIFT); }

/* A block, as Python reads it, too. */
struct Block {
    uint64_t at, size;
    uint64_t born;  /* allocations before it */
    uint32_t place; /* where it was allocated: places.h */
    Holder holder;
    int32_t device;
    uint32_t unused;
};

/* A block of the log: events are allocations and frees of the device, from 1. */
struct Logged {
    Block block;
    uint64_t came, went;       /* events; `went` is 0 while the block is live */
    double came_us, went_us;
    uint64_t came_reserved, went_reserved; /* by the allocator at these events; 0: not known */
};

struct Levels {
    uint64_t now, peak, blocks;
    uint32_t peak_place; /* where the allocation was that made the peak */
    uint32_t unused;
};

constexpr int DEVICES = 64;

void ledger_take(int device, uint64_t at, uint64_t size, uint32_t place);
bool ledger_give(uint64_t at);
bool ledger_hold(uint64_t at, Holder holder);
bool ledger_holder(uint64_t at, Holder *holder);
bool ledger_place(uint64_t at, uint32_t *place);
uint64_t ledger_ended();
Levels ledger_levels(int device);
uint64_t ledger_peak();
std::vector<Block> ledger_blocks(int device, bool at_peak);
void ledger_clear();
void ledger_log(size_t most);
void ledger_reserve(int device, int64_t change);
std::vector<Logged> ledger_logged(int device);
void ledger_begin_adopting();
void ledger_adopt(int device, uint64_t at, uint64_t size);
void ledger_end_adopting();
void ledger_before_fork();
void ledger_after_fork(bool is_child);

} // namespace cenote_names
