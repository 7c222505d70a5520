/*
 * install.cpp: makes cenote the allocator of this process's PyTorch. It has to happen before PyTorch allocates anything on a GPU.
 */
#include "adapter.h"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdio>

namespace cenote_torch {
Adapter *adapter();
}

/* 0, or 1 and the reason in `why`. */
extern "C" __attribute__((visibility("default"))) int cenote_torch_install(char *why, size_t room)
{
  try {
    auto *adapter = cenote_torch::adapter();
    std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> shared(adapter, [](auto *) {});
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(shared);
    c10::SetAllocator(c10::kCUDA, adapter, 1); /* what torch.accelerator asks */
    return 0;
  } catch (const std::exception &error) {
    snprintf(why, room, "%s", error.what());
    return 1;
  }
}
