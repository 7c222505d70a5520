/*
 * install.cpp: makes cenote the allocator of this process's PyTorch. It has to happen before PyTorch allocates anything on a GPU.
 */
#include "adapter.h"

#include <cstdio>

namespace cenote_torch {
Adapter *adapter();
}

/* 0, or 1 and the reason in `why`. */
extern "C" __attribute__((visibility("default"))) int cenote_torch_install(char *why, size_t room)
{
  try {
    auto *adapter = cenote_torch::adapter();
    auto *current = c10::cuda::CUDACachingAllocator::allocator.load();
    TORCH_CHECK(current != adapter, "cenote is installed already");
    TORCH_CHECK(!current->initialized(), "PyTorch has used a GPU already: install cenote before the first tensor on one");
    c10::cuda::CUDACachingAllocator::allocator.store(adapter);
    c10::SetAllocator(c10::kCUDA, adapter, 1); /* what torch.accelerator asks */
    return 0;
  } catch (const std::exception &error) {
    snprintf(why, room, "%s", error.what());
    return 1;
  }
}
