/* repeating.h: whether the program does the same again and again, and what its allocator holds if it goes on; see repeating.cpp. */
#pragma once

#include <cstddef>
#include <cstdint>

namespace cenote_names {

size_t repeating_period();
int64_t repeating_play(int64_t parts);
bool repeating_place(uint32_t *place);

} // namespace cenote_names
