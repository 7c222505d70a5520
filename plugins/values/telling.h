/* telling.h: tells Python what the program has read; see telling.cpp. */
#pragma once

namespace cenote_values
{

void tell_to(void *function);   /* of Python's, which has to live as long; NULL: nothing is told any more */
void tell_python(int kind);     /* calls it, in this thread. LOCKING: no lock is held; Python's is taken */

} // namespace cenote_values
