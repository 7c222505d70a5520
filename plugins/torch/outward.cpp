/*
 * outward.cpp: what threads that ask for Python's lock do when Python ends.
 */
#include "outward.h"

#include "install.h"

#include <unistd.h>

namespace cenote_torch
{

#define PATIENCE_MS 1000 /* our choice. A function that only needs Python's lock gets it and returns; this limits the wait for one that hangs */

void Asking::end()
{
    ended_ = true;
    for (int ms = 0; asking_ > 0 && ms < PATIENCE_MS; ms++)
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
