/*
 * last_words.h: the end of PyTorch's message for memory that ran out. The adapter and libcenote_pluggable.so share it: it knows cenote, and
 * nothing of torch.
 */
#pragma once

#include <cenote/cenote.h>

#include <string>

namespace cenote_torch {

/* What stands in the place of PyTorch's advice to set expandable_segments:True, which its own allocator alone obeys; and then its last words. */
inline std::string last_words(int provider)
{
    const std::string end = " See documentation for Memory Management  "
                            "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
    if (provider == CENOTE_VMM)
        return "\ncenote moves what is unallocated to where it is needed, so that PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would not help." +
               end;
    const char *now = provider == CENOTE_GUARD ? "CENOTE_CONF=provider:guard gives each block pages of its own; provider:vmm takes less, and "
                                               : "cenote has segments here, which do not move. CENOTE_CONF=provider:vmm, where the GPU allows it, ";
    return std::string("\n") + now + "moves what is unallocated to where it is needed. "
           "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True has no effect." + end;
}

} // namespace cenote_torch
