/* frames.h: the lines of Python at which a thread is; see frames.cpp. */
#pragma once

#include <python.h> /* beside this file */

#include <string>
#include <vector>

namespace cenote_names {

/* A line: a code object, which is kept, and the instruction in it (or, before Python 3.11, the line). NULL: none. */
struct Spot {
    Object *code = nullptr;
    int at = 0;
    bool operator==(const Spot &other) const { return code == other.code && at == other.at; }
};

struct Spots {
    Spot inner; /* the innermost line that is not cenote's */
    Spot own;   /* the innermost line of the program's own files */
};

/* The innermost line of the program's own files outside the call of a module: it stays as it is as long as the call lasts. */
struct Around {
    bool is_known = false;
    Spot own;
};

void frames_set_rules(std::vector<std::string> ours, std::vector<std::string> begins, std::vector<std::string> parts);
Spots frames_now(Around *around);
int frames_line(const Spot &spot);

} // namespace cenote_names
