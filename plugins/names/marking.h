/* marking.h: which blocks hold which tensors; see marking.cpp. */
#pragma once

#include <python.h> /* beside this file */

#include <cstdint>

namespace cenote_names {

void marking_begin(Object *tensor_type, Object *parameter_type, int (*set_kind)(const void *, int));
void marking_watch(bool on);
void marking_added_up(uint64_t at);
Object *marking_name(Object *const *arguments, ptrdiff_t count);
Object *marking_number(Object *tensor);
Object *marking_hold(Object *const *arguments, ptrdiff_t count);
Object *marking_lacks_module(Object *module);
Object *marking_lacks_gradients(Object *groups);
Object *marking_lacks_state(Object *state);
Object *marking_inputs(Object *arguments);
void marking_clear();

} // namespace cenote_names
