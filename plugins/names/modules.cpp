/*
 * modules.cpp: which module is being called, by name. A name depends on the module and on the module around it: one that is used twice has two.
 * Python gives the names (labels/naming.py), once for each pair; here they are looked up.
 *
 * A module is known by its address and a weak reference, because another may come to the address. No module is kept.
 *
 * LOCKING: Python's lock. The function that gives names runs Python, and may let go of it.
 */
#include "modules.h"

#include "places.h"

#include <c10/util/flat_hash_map.h>

#include <cstdint>

namespace cenote_names {

struct Known {
    Object *reference;
    uint32_t number;
};

static Object *namer; /* (module, path around it) -> path */
static ska::flat_hash_map<Object *, Known> modules;
static ska::flat_hash_map<uint64_t, Path> known_paths; /* by path around it and number of the module */
static uint32_t next_number = 1;
static uint64_t named; /* how often a name was given */
static size_t clean_modules_at = 4096;

void modules_begin(Object *function)
{
    python().take(function);
    known_paths.clear();
    namer = function;
}

void modules_end()
{
    Object *was = namer;
    namer = nullptr;
    if (was)
        python().drop(was);
}

/* It changes when a module is called for the first time, or at a new place. */
uint64_t modules_named()
{
    return named;
}

static bool leads_to(Object *reference, Object *module)
{
    const Python &p = python();
    if (!p.weak_get)
        return p.weak_borrow(reference) == module;
    Object *found = nullptr;
    p.weak_get(reference, &found);
    bool is = found == module;
    if (found)
        p.drop(found);
    return is;
}

/* Forgets modules that are gone. */
static void clean()
{
    ska::flat_hash_map<Object *, Known> kept;
    ska::flat_hash_map<uint32_t, bool> live;
    for (const auto &entry : modules) {
        if (leads_to(entry.second.reference, entry.first)) {
            kept.insert(entry);
            live[entry.second.number] = true;
        } else {
            python().drop(entry.second.reference);
        }
    }
    modules.swap(kept);
    ska::flat_hash_map<uint64_t, Path> left;
    for (const auto &entry : known_paths)
        if (live.count(static_cast<uint32_t>(entry.first)))
            left.insert(entry);
    known_paths.swap(left);
    clean_modules_at = 2 * modules.size() + 4096;
}

/* 0: it cannot be referred to weakly. */
static uint32_t number_of(Object *module)
{
    auto found = modules.find(module);
    if (found != modules.end()) {
        if (leads_to(found->second.reference, module))
            return found->second.number;
        python().drop(found->second.reference);
        modules.erase(found);
    }
    if (modules.size() >= clean_modules_at)
        clean();
    Object *reference = python().weak(module, nullptr);
    if (!reference) {
        python().clear();
        return 0;
    }
    modules[module] = {reference, next_number};
    return next_number++;
}

/* enter(module): returns what `leave` is to be given. What a handler of a signal raises meanwhile is raised. */
Object *modules_enter(Object *module)
{
    Path around = places_path(), path = around;
    uint32_t number = number_of(module);
    auto found = known_paths.find(uint64_t{around} << 32 | number);
    if (number && found != known_paths.end()) {
        path = found->second;
    } else if (namer) {
        Held at(python().number(static_cast<long>(around)));
        Held given(python().call(namer, module, at.get(), nullptr));
        if (!given)
            return nullptr;
        path = static_cast<Path>(python().as_number(given.get()));
        named++;
        if (number)
            known_paths[uint64_t{around} << 32 | number] = path;
    }
    return python().number(static_cast<long>(places_enter(path)));
}

Object *modules_leave(Object *depth)
{
    if (depth != python().none) /* `enter` had no host memory */
        places_leave(static_cast<size_t>(python().as_number(depth)));
    python().take(python().none);
    return python().none;
}

} // namespace cenote_names
