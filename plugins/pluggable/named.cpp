/*
 * named.cpp: what PyTorch's interface for any allocator leaves out, asked of PyTorch's libraries by name: the stream that is current when a capture
 * begins, the streams that last as long as the program, the error for memory that ran out, and that torch.accelerator asks this allocator. The names
 * have been the same since PyTorch 2.11, and are looked up when they are needed: without the first, captures are refused; without the second, a block
 * may wait for work that came after its free; without the third, running out of memory is a RuntimeError; without the last, torch.accelerator asks
 * PyTorch's own allocator, which holds nothing (cenote_pluggable_lacks).
 */
#include "pluggable.h"

#include <last_words.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <typeinfo>

/* For their type information alone: C++ compares types of exceptions by their names. PyTorch's own constructor makes the object. */
namespace c10 {
class __attribute__((visibility("default"))) Error : public std::exception {};
class __attribute__((visibility("default"))) OutOfMemoryError : public Error {};
} // namespace c10

namespace cenote_torch
{

/* Values of these types pass as those of PyTorch's types do. */
struct Place { /* c10::SourceLocation */
    const char *function, *file;
    uint32_t line;
};
struct Stream { /* c10::cuda::CUDAStream */
    int8_t device, type;
    int64_t id;
};

using Construct = void (*)(void *, Place, std::string);
using CurrentStream = Stream (*)(int8_t);
using StreamFromPool = Stream (*)(int, int8_t);
using HandleOf = cenote_stream (*)(const Stream *);
using SetAllocator = void (*)(int8_t, void *, uint8_t); /* type of device, allocator, priority */

#define CUDA 1          /* c10::DeviceType::CUDA */
#define PRIORITIES 4    /* of PyTorch's streams: max_compile_time_stream_priorities */
#define ERROR_ROOM 1024 /* our choice: bytes for PyTorch's object, which has 144 in PyTorch 2.15 */

void *find_named(const char *library, const char *name)
{
    void *there = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void *found = there ? dlsym(there, name) : nullptr;
    if (there)
        dlclose(there);
    return found;
}

static Construct constructor_of_errors()
{
    return named<Construct>("libc10.so", "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
}

static void destroy(void *error)
{
    static_cast<std::exception *>(error)->~exception();
}

/* cenote_message(); if the driver failed, as PyTorch's own messages begin. */
static std::string message_of(int error)
{
    auto say = named<int (*)(int, const char **)>("libcuda.so.1", "cuGetErrorString");
    const char *said = nullptr;
    if ((error != CENOTE_DRIVER && error != CENOTE_DEVICE_LOST) || !say || say(cenote_driver_result(), &said) || !said)
        return cenote_message();
    return std::string("CUDA error: ") + said + ": " + cenote_message();
}

void fail(int error, cenote_pool *pool)
{
    std::string words = message_of(error);
    if (error == CENOTE_OUT_OF_MEMORY && pool)
        words += last_words(cenote_pool_provider(pool));
    Construct construct = constructor_of_errors();
    if ((error != CENOTE_OUT_OF_MEMORY && error != CENOTE_OUT_OF_ADDRESSES) || !construct)
        throw std::runtime_error(words);
    void *made = abi::__cxa_allocate_exception(ERROR_ROOM);
    construct(made, {__func__, __FILE__, __LINE__}, words);
    abi::__cxa_throw(made, const_cast<std::type_info *>(&typeid(c10::OutOfMemoryError)), &destroy);
}

static CurrentStream function_of_streams()
{
    return named<CurrentStream>("libc10_cuda.so", "_ZN3c104cuda20getCurrentCUDAStreamEa");
}

static HandleOf function_of_handles()
{
    return named<HandleOf>("libc10_cuda.so", "_ZNK3c104cuda10CUDAStream6streamEv");
}

cenote_stream current_stream(int device)
{
    static const CurrentStream current = function_of_streams();
    static const HandleOf handle = function_of_handles();
    if (!current || !handle)
        throw std::runtime_error("without an adapter, cenote cannot tell the current stream in this PyTorch: there are no graphs and pools");
    Stream stream = current(static_cast<int8_t>(device));
    return handle(&stream);
}

std::set<cenote_stream> lasting_streams(int device)
{
    static const auto take = named<StreamFromPool>("libc10_cuda.so", "_ZN3c104cuda17getStreamFromPoolEia");
    static const HandleOf handle = function_of_handles();
    std::set<cenote_stream> found;
    for (int priority = 0; take && handle && priority < PRIORITIES; priority++)
        add_pool(found, [=] {
            Stream stream = take(-priority, static_cast<int8_t>(device));
            return handle(&stream);
        });
    return found;
}

} // namespace cenote_torch

using namespace cenote_torch;

static std::atomic<void *> *chosen_allocator()
{
    return static_cast<std::atomic<void *> *>(find_named("libc10_cuda.so", "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
}

static SetAllocator function_of_registration()
{
    return named<SetAllocator>("libc10.so", "_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh");
}

/* torch.accelerator asks the allocator that is registered for a type of device. PyTorch has changed the one that torch.cuda asks, and no other. */
ENTRY void cenote_pluggable_register(void)
{
    std::atomic<void *> *chosen = chosen_allocator();
    SetAllocator set = function_of_registration();
    if (chosen && set)
        set(CUDA, chosen->load(), 1);
}

/* What of PyTorch's is missing under these names, in words that end the line that is said; empty: nothing. */
ENTRY const char *cenote_pluggable_lacks(void)
{
    static std::string lacks;
    lacks.clear();
    auto add = [](bool is_there, const char *what) {
        if (!is_there)
            lacks += (lacks.empty() ? "" : ", ") + std::string(what);
    };
    add(function_of_streams() && function_of_handles(), "graphs and pools");
    add(constructor_of_errors(), "torch.OutOfMemoryError (it is a RuntimeError)");
    add(chosen_allocator() && function_of_registration(), "torch.accelerator's memory");
    return lacks.c_str();
}
