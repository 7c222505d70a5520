/*
 * seeing.cpp: sees every operator that PyTorch calls.
 *
 * A fallback for all operators on a key of the dispatcher that nothing in PyTorch uses ("Fake"). It lies below autograd, autocast and transforms, so
 * what is seen is what would run on the device. The operator runs as it is, and allocates what it always allocates; no memory of the
 * program's is held meanwhile or afterwards.
 *
 *     not on a GPU, or with code of its own (fake tensors, subclasses)    runs; what that code calls is seen
 *     made of other operators, or of another library than PyTorch         the same. Its own kernels are unexplained, and forget everything
 *     a view, a question, memory that is not initialised                  runs
 *     anything else                                                       runs as one: operators inside it are looked at only for what they read
 *
 * The key is switched on for each thread: Python's threads by inside/values.py, those of autograd inherit it, any other one at its first call of an
 * operator that reads (reading.cpp). What it did before is unexplained.
 *
 * Rule V12: what the tape cannot look at ends no program: everything is forgotten, and the program goes on.
 *
 * Rule V7: a child that the program forks can see operators, whatever other threads did at that moment.
 *
 * LOCKING: the tape's lock, never while an operator of the program runs or Python is asked.
 */
#include "seeing.h"

#include "device.h"

#include <torch/library.h>

#include <unordered_map>

namespace cenote_values
{

using c10::DispatchKey;
using c10::DispatchKeySet;
using torch::jit::Stack;

static constexpr DispatchKey KEY = DispatchKey::Fake;
static thread_local int depth; /* of operators that run as one */
static thread_local bool is_of_library;

class Deeper {
public:
    explicit Deeper(const Operator &what)
    {
        if (!depth++)
            is_of_library = what.is_heavy;
    }
    ~Deeper() { depth--; }
};

const Operator &operator_here(const c10::OperatorHandle &handle)
{
    static thread_local std::unordered_map<const void *, const Operator *> known;
    const Operator *&found = known[&handle.operator_name()];
    if (!found || !is_operator(*found, handle))
        found = &operator_of(handle);
    return *found;
}

static Seen look(const c10::OperatorHandle &handle, const Operator &what, Stack *stack)
{
    static const DispatchKeySet own_code({DispatchKey::Python, DispatchKey::Functionalize, DispatchKey::FuncTorchBatched});
    size_t count = what.writes.size();
    Seen seen{handle, what, stack, stack->size() - count, count};
    for (size_t i = 0; i < count; i++) {
        const c10::IValue &value = seen.argument(i);
        if (value.isDevice() && value.toDevice().is_cuda()) {
            seen.has_gpu = true;
            seen.device = value.toDevice();
            continue;
        }
        each_tensor(value, [&](const at::Tensor &t, int) {
            if (!t.defined())
                return;
            seen.is_foreign |= t.key_set().has_any(own_code) || t.is_meta();
            seen.is_strange |= !is_readable(t) && !(t.is_cpu() && is_plain_on(t));
            if (!t.is_cuda())
                return;
            seen.has_gpu = true;
            seen.device = t.device();
        });
    }
    return seen;
}

void run(const Seen &seen, DispatchKeySet keys)
{
    static const DispatchKeySet below(DispatchKeySet::FULL_AFTER, KEY);
    seen.handle.redispatchBoxed(keys & below, seen.stack);
}

/* `effect`: NULL for a call inside another one. */
void run_seen(const Seen &seen, DispatchKeySet keys, Effect *effect)
{
    try {
        Explained explained;
        if (seen.what.opens) {
            run(seen, keys);
        } else {
            Deeper deeper(seen.what);
            run(seen, keys);
        }
    } catch (...) {
        guarded([&] {
            std::lock_guard<std::mutex> hold(tape_lock);
            if (effect)
                fail(*effect);
        });
        throw;
    }
    guarded([&] {
        std::lock_guard<std::mutex> hold(tape_lock);
        if (effect)
            apply(seen, *effect);
    });
}

static void lifted(const Seen &seen)
{
    const at::Tensor &t = seen.argument(0).toTensor();
    if (!is_plain(t) || !t.storage().nbytes())
        return;
    std::lock_guard<std::mutex> hold(tape_lock);
    forget_unexplained(); /* the copy among it */
    VersionP v = version_in_memory(t.storage(), t.scalar_type());
    v->is_known = !is_large_upload(*v);
    if (v->is_known)
        evaluate(*v);
    tape_put(t.storage(), v);
}

void see(const c10::OperatorHandle &handle, DispatchKeySet keys, Stack *stack)
{
    const Operator &what = operator_here(handle);
    Seen seen = look(handle, what, stack);
    if (what.is_composite || !seen.has_gpu || seen.is_foreign || c10::impl::tls_is_dispatch_key_included(DispatchKey::Python))
        return run(seen, keys);
    static const bool survives = tape_survives_forks();
    (void)survives;
    bool is_reading = reads(seen);
    if (depth)
        return is_reading ? read(seen, keys, true) : run(seen, keys);
    if (what.lifts)
        guarded([&] { lifted(seen); });
    if (what.passes || what.lifts || !(what.is_trusted || what.exchanges))
        return run(seen, keys);
    if (is_reading)
        return read(seen, keys, false);
    Effect effect;
    guarded([&] {
        std::lock_guard<std::mutex> hold(tape_lock);
        forget_unexplained();
        if (what.exchanges)
            write_out(seen);
        effect = effect_of(seen);
    });
    run_seen(seen, keys, &effect);
}

bool begin_seeing()
{
    auto &dispatcher = c10::Dispatcher::singleton();
    if (dispatcher.hasBackendFallbackForDispatchKey(KEY))
        return false;
    if (!begin_reading())
        return false;
    static torch::Library library(torch::Library::IMPL, "_", KEY, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&see>());
    static torch::Library own(torch::Library::DEF, "cenote_values", std::nullopt, __FILE__, __LINE__);
    own.def("hand_on(Tensor tensor) -> ()", [](const at::Tensor &tensor) { hand_on(tensor); });
    operators_survive_forks();
    return true;
}

bool is_inside()
{
    return depth;
}

bool is_inside_library()
{
    return depth && is_of_library;
}

void see_this_thread(bool on)
{
    c10::impl::tls_set_dispatch_key_included(KEY, on);
}

bool sees_this_thread()
{
    return c10::impl::tls_is_dispatch_key_included(KEY) || c10::impl::tls_is_dispatch_key_excluded(KEY);
}

} // namespace cenote_values
