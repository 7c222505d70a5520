/*
 * install.cpp: makes cenote the allocator of this process's PyTorch, before PyTorch allocates on a GPU.
 */
#include "install.h"

#include "adapter.h"
#include "outward.h"

using c10::cuda::CUDACachingAllocator::allocator;

/*
 * What guards against expandable segments ask, PyTorch's own of NCCL's registrations among them, is true of pages as well: legacy IPC refuses them,
 * and a block may lie on several. Unless the program has said what it wants, or the pools will have no pages.
 */
static void say_expandable()
{
    cenote_options options;
    bool has_pages = !cenote_options_default(&options) && (options.provider == CENOTE_AUTO || options.provider == CENOTE_VMM);
    std::string given = c10::CachingAllocator::getAllocatorSettings();
    if (has_pages && given.find("expandable_segments:") == std::string::npos)
        c10::CachingAllocator::setAllocatorSettings(given + (given.empty() ? "" : ",") + "expandable_segments:True");
}

static void install()
{
    cenote_torch::Adapter *adapter = cenote_torch::adapter();
    auto *current = allocator.load();
    if (current == adapter)
        return;
    TORCH_CHECK(!current->initialized(), "PyTorch has used a GPU already: install cenote before the first tensor on one");
    /* PyTorch reads its settings when the first one is asked for: it refuses bad ones, and compares `backend` with its own allocator's name. So ask
     * before the allocator changes. */
    c10::CachingAllocator::AcceleratorAllocatorConfig::instance();
    c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::per_process_memory_fraction();
    say_expandable();
    allocator.store(adapter);
    c10::SetAllocator(c10::kCUDA, adapter, 1); /* torch.accelerator uses this one */
    cenote_torch_on_moment(nullptr, nullptr, sizeof(cenote_moment));
}

int cenote_torch_install(char *why, size_t room)
{
    return cenote_torch::guarded(why, room, install);
}
