/* modules.h: which module is being called, by name; see modules.cpp. */
#pragma once

#include <python.h> /* beside this file */

#include <cstdint>

namespace cenote_names {

void modules_begin(Object *namer);
void modules_end();
uint64_t modules_named();
Object *modules_enter(Object *module);
Object *modules_leave(Object *depth);

} // namespace cenote_names
