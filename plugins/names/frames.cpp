/*
 * frames.cpp: the lines of Python at which a thread is. Files are told apart by the rules of base/source.py, which gives us its lists.
 *
 * No function of Python's runs here, so no handler of a signal does either.
 *
 * LOCKING: Python's lock.
 */
#include "frames.h"

#include <c10/util/flat_hash_map.h>

#include <cstring>

namespace cenote_names {

enum class Whose : char { OURS, WRAPPER, LIBRARY, PROGRAM }; /* a wrapper is ours and calls a module: hooks.py */

constexpr const char *WRAPPER_NAME = "call_module";
constexpr int FRAMES_MAX = 250;     /* our choice: deeper stacks have no line of their own */
constexpr size_t CODES_MAX = 1 << 16; /* that are kept; lines of further ones are not known */

static std::vector<std::string> our_files, library_begins, library_parts;
static ska::flat_hash_map<Object *, Whose> codes;

void frames_set_rules(std::vector<std::string> ours, std::vector<std::string> begins, std::vector<std::string> parts)
{
    our_files = std::move(ours);
    library_begins = std::move(begins);
    library_parts = std::move(parts);
}

static bool begins(const char *file, const std::string &with)
{
    return !strncmp(file, with.c_str(), with.size());
}

static Whose whose(const char *file)
{
    for (const std::string &one : our_files)
        if (begins(file, one))
            return Whose::OURS;
    for (const std::string &one : library_begins)
        if (begins(file, one))
            return Whose::LIBRARY;
    for (const std::string &one : library_parts)
        if (strstr(file, one.c_str()))
            return Whose::LIBRARY;
    return Whose::PROGRAM;
}

/* Whose code it is. Takes over the reference. False: too many are known already. */
static bool known(Object *code, Whose *found)
{
    *found = Whose::OURS;
    static Object *const name = python().text("co_filename");
    auto at = codes.find(code);
    if (at != codes.end()) {
        python().drop(code);
        *found = at->second;
        return true;
    }
    Held file(codes.size() < CODES_MAX ? python().attribute(code, name) : nullptr);
    const char *text = file ? python().utf8(file.get()) : nullptr;
    if (!text) {
        python().drop(code);
        return false;
    }
    static Object *const called = python().text("co_name");
    *found = whose(text);
    Held function(*found == Whose::OURS ? python().attribute(code, called) : nullptr);
    const char *function_name = function ? python().utf8(function.get()) : nullptr;
    if (function_name && !strcmp(function_name, WRAPPER_NAME))
        *found = Whose::WRAPPER;
    codes[code] = *found; /* the reference stays: the address names this code for ever */
    return true;
}

/* `around`: of the module that this thread has called last; NULL: none. */
Spots frames_now(Around *around)
{
    const Python &p = python();
    Spots spots;
    Object *frame = p.frame();
    if (!frame)
        return spots;
    p.take(frame);
    bool is_outside = false;
    for (int depth = 0; frame && depth < FRAMES_MAX; depth++) {
        Object *code = p.code(frame);
        Whose is;
        if (known(code, &is) && is == Whose::WRAPPER && spots.inner.code && around) {
            is_outside = true;
            if (around->is_known)
                break;
        } else if (is == Whose::LIBRARY || is == Whose::PROGRAM) {
            Spot here{code, p.instruction ? p.instruction(frame) : p.line(frame)};
            if (!spots.inner.code)
                spots.inner = here;
            if (is == Whose::PROGRAM) {
                spots.own = here;
                break;
            }
        }
        Object *caller = p.caller(frame);
        p.drop(frame);
        frame = caller;
    }
    if (frame)
        p.drop(frame);
    if (!is_outside)
        return spots;
    if (around->is_known)
        spots.own = around->own;
    *around = {true, spots.own};
    return spots;
}

int frames_line(const Spot &spot)
{
    return !spot.code ? 0 : python().instruction ? python().line_of(spot.code, spot.at) : spot.at;
}

} // namespace cenote_names
