/*
 * install.cpp: makes cenote the allocator of this process's PyTorch, before PyTorch allocates on a GPU.
 */
#include "install.h"

#include "adapter.h"
#include "outward.h"

using c10::cuda::CUDACachingAllocator::allocator;

static std::string given;      /* PyTorch's settings, as the program gave them */
static bool says_expandable;

/*
 * Programs and PyTorch itself ask the setting `expandable_segments` whether legacy CUDA IPC takes a tensor, and whether NCCL may register it. Pages
 * are as expandable segments there, so the setting says True, unless the program has set it, or there will be no pages.
 */
static void say_expandable()
{
    cenote_options options;
    bool has_pages = !cenote_options_default(&options) && (options.provider == CENOTE_AUTO || options.provider == CENOTE_VMM);
    given = c10::CachingAllocator::getAllocatorSettings();
    says_expandable = has_pages && given.find("expandable_segments:") == std::string::npos;
    if (says_expandable)
        c10::CachingAllocator::setAllocatorSettings(given + (given.empty() ? "" : ",") + "expandable_segments:True");
}

/* A device turned out to have none. Every setting that is not repeated goes back to its default; `backend` may not be named any more. */
void cenote_torch::say_not_expandable()
{
    const std::string named = "backend:native", off = "expandable_segments:False";
    if (!std::exchange(says_expandable, false))
        return;
    size_t at = given.find(named);
    std::string settings = given + (given.empty() ? "" : ",") + off;
    c10::CachingAllocator::setAllocatorSettings(at == std::string::npos ? settings : given.replace(at, named.size(), off));
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
    cenote_torch_on_ran_out(nullptr, 0);
}

int cenote_torch_install(char *why, size_t room)
{
    return cenote_torch::guarded(why, room, install);
}
