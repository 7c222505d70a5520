/*
 * reading.cpp: what the program reads back from a GPU, and the answers.
 *
 *     a number, a flag    _local_scalar_dense     the operator runs, and its result is replaced
 *     an answer           equal                   the same
 *     a copy              to a tensor on the host the operator runs, and what it has copied is replaced
 *     a count             nonzero, unique, nms    computed first; the operator runs as it is, with its own temporary memory, and the copy by which
 *     a mask among        index, index_put_       it asks the device for a count takes ours (sim_answer). What it makes is recorded like any other
 *     indices                                     call
 *
 * An answer that depends on unknown values is told to Python, with no lock held. Counts that cannot be computed follow the policy: half of what the
 * shape allows, none, or all.
 *
 * LOCKING: takes the tape's lock for each look at values.
 */
#include "seeing.h"

#include "device.h"

#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>

namespace cenote_values
{

enum Kind { NUMBER, FLAG, COPY, COUNT };

static std::atomic<void (*)(int, const char *)> teller;
static std::atomic<uint64_t> known;
static thread_local bool is_answering; /* a call around this one has set the answers */

void on_unknown(void (*tell)(int kind, const char *name))
{
    teller = tell;
}

uint64_t known_reads()
{
    return known;
}

static void tell(Kind kind, bool is_known, const Seen &seen)
{
    auto call = teller.load();
    if (is_known)
        known++;
    else if (call)
        call(kind, seen.what.name.c_str());
}

static bool is_mask(const at::Tensor &t)
{
    return t.defined() && is_plain(t) && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
}

static bool goes_to_host(const Seen &seen)
{
    if (!seen.argument(0).isTensor())
        return false;
    if (seen.what.name == "aten::copy_")
        return seen.argument(0).toTensor().is_cpu() && seen.argument(1).toTensor().is_cuda();
    if (!seen.argument(0).toTensor().is_cuda())
        return false;
    for (size_t i = 1; i < seen.count; i++)
        if (seen.argument(i).isDevice())
            return seen.argument(i).toDevice().is_cpu();
    return false;
}

bool reads(const Seen &seen)
{
    switch (seen.what.reading) {
    case Reading::nothing:
        return false;
    case Reading::scalar:
        return is_plain(seen.argument(0).toTensor());
    case Reading::answer:
        return is_plain(seen.argument(0).toTensor()) && is_plain(seen.argument(1).toTensor());
    case Reading::copy:
        return goes_to_host(seen);
    case Reading::count:
        return !is_answering && is_plain(seen.argument(0).toTensor());
    default:
        bool has = false;
        if (!is_answering && seen.argument(1).isList())
            each_tensor(seen.argument(1), [&](const at::Tensor &t, int) { has |= is_mask(t); });
        return has;
    }
}

/* --- numbers */

/* Inside another operator only what is on the tape is answered: its own temporary memory holds what the device has left there. */
static void read_scalar(const Seen &seen, c10::DispatchKeySet keys, bool is_inner)
{
    std::optional<Value> value;
    {
        std::lock_guard<std::mutex> hold(tape_lock);
        forget_unexplained();
        const at::Tensor &t = seen.argument(0).toTensor();
        if (!is_inner || tape_find(t.storage()))
            value = value_of(operand_of(t, 0, -1, false));
    }
    run_seen(seen, keys, nullptr);
    if (!value)
        return;
    Kind kind = value->tensor.scalar_type() == at::kBool ? FLAG : NUMBER;
    {
        OnCpu guard;
        seen.stack->back() = value->tensor.item();
    }
    tell(kind, value->is_known, seen);
}

/* A call whose result is no tensor. Its code calls kernels of its own, and is not seen. */
static void read_answer(const Seen &seen, c10::DispatchKeySet keys)
{
    torch::jit::Stack out;
    bool is_known = true, has_answer = false;
    {
        std::lock_guard<std::mutex> hold(tape_lock);
        forget_unexplained();
        if (static_cast<int64_t>(seen.argument(0).toTensor().nbytes()) <= KNOWN_MOST) {
            auto call = call_of(seen);
            has_answer = compute_now(*call, out, is_known);
        }
    }
    run_seen(seen, keys, nullptr);
    if (has_answer)
        seen.stack->back() = out.back();
    tell(FLAG, has_answer && is_known, seen);
}

/* --- copies */

static std::optional<Value> value_to_copy(const at::Tensor &from, bool &is_known)
{
    std::lock_guard<std::mutex> hold(tape_lock);
    forget_unexplained();
    Operand o = operand_of(from, 0, -1, false);
    is_known = o.version && o.version->is_known;
    if (static_cast<int64_t>(from.nbytes()) > KNOWN_MOST || (o.version && o.version->memory && !o.version->bytes.defined()))
        return {};
    Value value = value_of(o);
    is_known = value.is_known;
    return value;
}

static void read_copy(const Seen &seen, c10::DispatchKeySet keys)
{
    bool is_in_place = seen.what.name == "aten::copy_";
    const at::Tensor from = seen.argument(is_in_place ? 1 : 0).toTensor();
    at::Tensor to = is_in_place ? seen.argument(0).toTensor() : at::Tensor();
    bool is_known = false;
    std::optional<Value> value;
    if (is_plain(from))
        value = value_to_copy(from, is_known);
    auto size = from.numel();
    Kind kind = size != 1 ? COPY : from.scalar_type() == at::kBool ? FLAG : NUMBER;
    auto stream = c10::cuda::getCurrentCUDAStream(from.device().index());
    run_seen(seen, keys, nullptr);
    if (value) {
        OnCpu guard;
        if (!to.defined())
            to = seen.stack->back().toTensor();
        if (to.is_pinned())
            stream.synchronize(); /* a copy that comes later would undo this */
        to.copy_(value->tensor.expand(to.sizes()));
    }
    if (size)
        tell(kind, is_known, seen);
}

/* --- counts */

static uint64_t count_by_policy(int64_t most)
{
    return static_cast<uint64_t>(policy == Policy::zero ? 0 : policy == Policy::largest ? most : (most + 1) / 2);
}

/* What the operator will ask the device for. `values`: its results if they were computed. */
static std::vector<uint64_t> count(const Seen &seen, Effect &e, bool &is_known)
{
    const at::Tensor &from = seen.argument(0).toTensor();
    torch::jit::Stack out;
    bool can = e.call != nullptr || from.nbytes() <= KNOWN_MOST;
    auto call = can && !seen.is_strange && !seen.what.is_heavy ? call_of(seen) : nullptr;
    is_known = true;
    size_t results = seen.handle.schema().returns().size();
    if (!call || !compute_now(*call, out, is_known)) {
        is_known = false;
        e.call = nullptr;
        return {count_by_policy(seen.what.name == "torchvision::nms" ? from.size(0) : from.numel())};
    }
    const at::Tensor first = out[out.size() - results].toTensor();
    if (!is_known && policy == Policy::largest) {
        e.call = nullptr;
        return {count_by_policy(seen.what.name == "torchvision::nms" ? from.size(0) : from.numel())};
    }
    for (size_t i = 0; i < results; i++)
        e.values.push_back(out[out.size() - results + i].toTensor());
    return {static_cast<uint64_t>(first.dim() ? first.size(0) : 1)};
}

static std::vector<uint64_t> count_masks(const Seen &seen, Effect &e, bool &is_known)
{
    std::vector<uint64_t> counts;
    is_known = true;
    each_tensor(seen.argument(1), [&](const at::Tensor &t, int element) {
        if (!is_mask(t))
            return;
        if (static_cast<int64_t>(t.nbytes()) > KNOWN_MOST) {
            is_known = false;
            counts.push_back(count_by_policy(t.numel()));
            return;
        }
        Value value = value_of(operand_of(t, 1, element, false));
        is_known = is_known && value.is_known;
        OnCpu guard;
        bool is_all = !value.is_known && policy == Policy::largest;
        counts.push_back(is_all ? count_by_policy(t.numel()) : static_cast<uint64_t>(value.tensor.count_nonzero().item<int64_t>()));
    });
    if (!is_known && policy == Policy::largest)
        e.call = nullptr; /* what it makes has another size than what a CPU would make */
    return counts;
}

class Answers {
public:
    explicit Answers(const std::vector<uint64_t> &numbers) : count_(static_cast<int>(numbers.size()))
    {
        answer_copies(numbers.data(), count_);
        is_answering = true;
    }
    ~Answers()
    {
        if (is_answering)
            end();
    }
    /* How many the operator has asked for. */
    int end()
    {
        is_answering = false;
        return count_ - answer_copies(nullptr, 0);
    }

private:
    int count_;
};

static void read_count(const Seen &seen, c10::DispatchKeySet keys, bool is_inner)
{
    Effect e;
    bool is_known = true, has_counts = true;
    std::vector<uint64_t> counts;
    {
        std::lock_guard<std::mutex> hold(tape_lock);
        forget_unexplained();
        if (is_inner && !tape_find(seen.argument(0).toTensor().storage()) && seen.what.reading == Reading::count)
            has_counts = false;
        e = effect_of(seen);
        if (has_counts)
            counts = seen.what.reading == Reading::count ? count(seen, e, is_known) : count_masks(seen, e, is_known);
        e.is_known = e.is_known && (!has_counts || is_known);
    }
    if (!has_counts)
        return run_seen(seen, keys, nullptr);
    int taken;
    {
        Answers answers(counts);
        run_seen(seen, keys, is_inner ? nullptr : &e);
        taken = answers.end();
    }
    if (taken)
        tell(COUNT, is_known, seen);
}

void read(const Seen &seen, c10::DispatchKeySet keys, bool is_inner)
{
    switch (seen.what.reading) {
    case Reading::scalar:
        return read_scalar(seen, keys, is_inner);
    case Reading::answer:
        return is_inner ? run_seen(seen, keys, nullptr) : read_answer(seen, keys);
    case Reading::copy:
        return is_inner ? run_seen(seen, keys, nullptr) : read_copy(seen, keys); /* the call around it is answered */
    default:
        return read_count(seen, keys, is_inner);
    }
}

} // namespace cenote_values
