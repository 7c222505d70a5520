/*
 * outward.cpp: the end of Python, as seen by threads that ask it.
 */
#include "outward.h"

#include "install.h"

#include <unistd.h>

namespace cenote_torch
{

#define PATIENCE_MS 1000 /* our choice: for a function of the program's that does not return. The others need Python's lock, and get it */

void Asking::end()
{
    over_ = true;
    for (int ms = 0; inside_ > 0 && ms < PATIENCE_MS; ms++)
        usleep(1000);
}

void Asking::stop_here()
{
    for (;;)
        pause();
}

} // namespace cenote_torch

void cenote_torch_python_ends(void)
{
    cenote_torch::Asking::end();
}
