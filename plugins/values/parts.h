/* parts.h: what is known of a version whose bytes were written part by part; see parts.cpp. LOCKING: the tape's lock. */
#pragma once

#include <tape.h> /* beside this file */

namespace cenote_values
{

bool knows(const Version &version, const Operand &view);    /* all bytes that this view has */
bool fills_part(const Operator &what, const at::Tensor &part);   /* writes all of the part, whatever was there */
Spans spans_of_true(const at::Tensor &places, int64_t width);    /* a mask of elements of this many bytes. Empty: none, or too many */
void know_after(Version &after, const Version &before, const Operand &written, bool is_known, const Spans *places);
void lose(Version &version);    /* something that was thought to be known is not */

} // namespace cenote_values
