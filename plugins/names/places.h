/* places.h: where in the program an allocation is: module, phase, lines, operation of a backward; see places.cpp. */
#pragma once

#include <frames.h> /* beside this file */

#include <cstddef>
#include <cstdint>

namespace cenote_names {

using Path = uint32_t; /* the number of a module's name: Python has the names. 0: outside of all modules */

/* Where an allocation is. */
struct Place {
    Path path = 0;
    uint32_t phase = 0;         /* as phases.def */
    Spots spots;
    const char *node = nullptr; /* the type of the operation that computes a gradient */
    bool is_workspace = false;
    bool adds_up = false;       /* the operation adds up a gradient */
    bool operator==(const Place &other) const
    {
        return path == other.path && phase == other.phase && spots.inner == other.spots.inner && spots.own == other.spots.own && node == other.node &&
               is_workspace == other.is_workspace && adds_up == other.adds_up;
    }
};

void places_set_phase(uint32_t phase);
size_t places_enter(Path path);
void places_leave(size_t depth);
Path places_path();
uint32_t places_look(size_t bytes, bool may_ask);
void places_forget_pending();
uint32_t places_taken(size_t bytes, bool *adds_up);
bool places_at(uint32_t number, Place *place);
void places_end_python();
void places_before_fork();
void places_after_fork(bool is_child);

} // namespace cenote_names
