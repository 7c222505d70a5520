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
#include "telling.h"

#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <unordered_map>

namespace cenote_values
{

static constexpr int64_t BEGINNING = 256 << 10; /* elements of a large copy that are made up, and then repeated. Chosen. */

enum Kind { NUMBER, FLAG, COPY, COUNT, LOSS };

static std::atomic<uint64_t> known;
static thread_local bool is_answering; /* a call around this one has set the answers */
static thread_local bool is_looked_at; /* a call around this one answers for it */

uint64_t known_reads()
{
    return known;
}

static void tell(Kind kind, bool is_known)
{
    if (is_known)
        known++;
    else
        tell_python(kind);
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
        return !is_looked_at && is_readable(seen.argument(0).toTensor());
    case Reading::answer:
        return is_plain(seen.argument(0).toTensor()) && is_plain(seen.argument(1).toTensor());
    case Reading::copy:
        return !is_looked_at && goes_to_host(seen);
    case Reading::count:
        return !is_answering && (is_plain(seen.argument(0).toTensor()) || seen.argument(0).toTensor().is_sparse());
    default:
        bool has = false;
        if (!is_answering && seen.argument(1).isList())
            each_tensor(seen.argument(1), [&](const at::Tensor &t, int) { has |= is_mask(t); });
        return has;
    }
}

/* --- numbers */

/* While one exists, what this thread reads is answered by the call that made it. */
class LookedAt {
public:
    LookedAt() : before_(is_looked_at) { is_looked_at = true; }
    ~LookedAt() { is_looked_at = before_; }

private:
    bool before_;
};

/* What no operator has made has the same values until something may have written there. */
static void meet(const at::Tensor &t)
{
    int64_t shift;
    if (!tape_look(t, shift))
        read_version(t, UNKNOWN_MOST);
}

static Kind kind_of(const at::Tensor &t)
{
    int64_t shift;
    VersionP v = tape_look(t, shift);
    return t.scalar_type() == at::kBool ? FLAG : v && is_score(*v) && v->course != UNSEEN ? LOSS : NUMBER;
}

static void note(const at::Tensor &t, const Value &value)
{
    int64_t shift;
    VersionP v = tape_look(t, shift);
    if (v && is_score(*v) && value.is_known)
        note_known(*v, value.tensor.item<double>());
}

/* Inside another operator only what is on the tape is answered: its own temporary memory holds what the device has left there, which is told. */
static void read_scalar(const Seen &seen, c10::DispatchKeySet keys, bool is_inner)
{
    std::optional<Value> value;
    Kind kind = NUMBER;
    guarded([&] {
        std::lock_guard<std::mutex> hold(tape_lock);
        forget_unexplained();
        const at::Tensor &t = seen.argument(0).toTensor();
        if (is_inner && !tape_find(t.storage()))
            return;
        meet(t);
        kind = kind_of(t);
        value = value_of(t);
        note(t, *value);
    });
    {
        LookedAt looked_at;
        run_seen(seen, keys, nullptr);
    }
    if (value) {
        OnCpu guard;
        seen.stack->back() = value->tensor.item();
    }
    if (value || !(is_answering || is_inside_library()))
        tell(kind, value && value->is_known);
}

/* PyTorch's kernels of operators that read, which ours call. Filled in once. */
static std::unordered_map<const void *, c10::SafeKernelFunction> kernels;

/* In place of those kernels. The first such call of a thread that neither Python nor PyTorch started makes it a thread that is seen: what a copy or a
 * count has there is answered, and what the thread did before is unexplained. torch.tensor of a list looks past the key in any thread. */
static void read_unseen(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack)
{
    if (!sees_this_thread()) {
        see_this_thread(true);
        return see(handle, keys, stack);
    }
    const Operator &what = operator_here(handle);
    if (what.reading != Reading::scalar || is_looked_at || !is_readable(stack->back().toTensor()))
        return kernels.at(&handle.operator_name()).callBoxed(handle, keys, stack);
    Seen seen{handle, what, stack, stack->size() - 1, 1};
    read_scalar(seen, keys, is_inside());
}

bool begin_reading()
{
    struct Quiet : c10::WarningHandler {
        void process(const c10::Warning &) override {}
    } quiet;
    c10::WarningUtils::WarningHandlerGuard no_warning(&quiet); /* of kernels that are replaced */
    static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    auto &dispatcher = c10::Dispatcher::singleton();
    bool has_scalar = false;
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        auto handle = dispatcher.findSchema(name);
        if (!handle || handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || name.name.rfind("aten::", 0) != 0 ||
            reading_of(name.name) == Reading::nothing || !handle->hasComputedKernelForDispatchKey(c10::DispatchKey::CUDA))
            continue;
        kernels.emplace(&handle->operator_name(), handle->getComputedKernelForDispatchKey(c10::DispatchKey::CUDA));
        has_scalar |= reading_of(name.name) == Reading::scalar;
        std::string own = name.name.substr(strlen("aten::")) + (name.overload_name.empty() ? "" : "." + name.overload_name);
        library.impl(own.c_str(), torch::CppFunction::makeFromBoxedFunction<&read_unseen>());
    }
    return has_scalar;
}

/* A call whose result is no tensor. Its code calls kernels of its own, and is not seen. */
static void read_answer(const Seen &seen, c10::DispatchKeySet keys)
{
    torch::jit::Stack out;
    Sure sure;
    bool has_answer = false, is_itself = seen.argument(0).toTensor().is_same(seen.argument(1).toTensor());
    guarded([&] {
        std::lock_guard<std::mutex> hold(tape_lock);
        forget_unexplained();
        if (static_cast<int64_t>(seen.argument(0).toTensor().nbytes()) <= KNOWN_MOST) {
            auto call = call_of(seen);
            has_answer = compute_now(*call, out, sure);
        }
    });
    {
        LookedAt looked_at;
        run_seen(seen, keys, nullptr);
    }
    seen.stack->back() = has_answer ? out.back() : c10::IValue(is_itself);
    tell(FLAG, has_answer && sure.is_known);
}

/* --- copies */

/* What is copied is the value; or what is in memory (an upload), if it is not defined; or the value repeated, if it is only the beginning. */
struct Copied {
    at::Tensor value;
    bool is_known = false, is_beginning = false;
};

/* The operator copies bytes, and has no kernel gather them first. */
static bool copies_bytes(const at::Tensor &from, const at::Tensor &to)
{
    return from.is_contiguous() || (to.defined() && from.is_non_overlapping_and_dense() && from.strides() == to.strides());
}

static Copied value_to_copy(const at::Tensor &from, const at::Tensor &to)
{
    std::lock_guard<std::mutex> hold(tape_lock);
    forget_unexplained();
    meet(from);
    Operand o = operand_of(from, 0, -1, false);
    VersionP v = o.version, upload = v && v->same ? v->same : v;
    bool as_it_is = copies_bytes(from, to) && !o.is_conj && !o.is_neg;
    if (upload && is_large_upload(*upload)) /* but what was written since */
        return {as_it_is ? at::Tensor() : value_in_memory(o, *upload).tensor, upload == v};
    if (v && v->memory && !v->bytes.defined() && as_it_is)
        return {at::Tensor(), v->is_known};
    if (static_cast<int64_t>(std::min(from.nbytes(), from.storage().nbytes())) > KNOWN_MOST) {
        OnCpu guard;
        int64_t row = v && v->row > 0 && v->row <= BEGINNING ? v->row : 1;
        return {plausible(v ? *v : Version(), {BEGINNING / row * row}, from.scalar_type(), 0), v && v->is_known, true};
    }
    Value value = value_of(from);
    note(from, value);
    return {value.tensor, value.is_known};
}

static void repeat(const at::Tensor &beginning, const at::Tensor &to)
{
    if (to.dim() > 1 && !to.is_non_overlapping_and_dense()) {
        for (int64_t i = 0; i < to.size(0); i++)
            repeat(beginning, to.select(0, i));
        return;
    }
    at::Tensor flat = to.dim() == 1 ? to : to.as_strided({to.numel()}, {1});
    for (int64_t at = 0; at < flat.numel(); at += beginning.numel()) {
        int64_t n = std::min(beginning.numel(), flat.numel() - at);
        flat.narrow(0, at, n).copy_(beginning.narrow(0, 0, n));
    }
}

/* What the operator has copied is replaced. */
static void put_copied(const Copied &copied, const at::Tensor &to, const c10::cuda::CUDAStream &stream)
{
    OnCpu guard;
    if (to.is_pinned())
        stream.synchronize(); /* a copy that comes later would undo this */
    if (copied.is_beginning)
        repeat(copied.value.to(to.scalar_type()), to);
    else
        to.copy_(copied.value.expand(to.sizes()));
}

static void read_copy(const Seen &seen, c10::DispatchKeySet keys)
{
    bool is_in_place = seen.what.name == "aten::copy_";
    const at::Tensor from = seen.argument(is_in_place ? 1 : 0).toTensor();
    const at::Tensor to = is_in_place ? seen.argument(0).toTensor() : at::Tensor();
    Copied copied;
    Kind kind = COPY;
    guarded([&] {
        if (is_readable(from))
            copied = value_to_copy(from, to);
        std::lock_guard<std::mutex> hold(tape_lock);
        if (from.numel() == 1)
            kind = is_readable(from) ? kind_of(from) : NUMBER;
    });
    bool has_values = from.layout() != c10::kStrided || from.is_nested() || from.numel();
    auto stream = c10::cuda::getCurrentCUDAStream(from.device().index());
    {
        LookedAt looked_at;
        run_seen(seen, keys, nullptr);
    }
    if (copied.value.defined())
        put_copied(copied, to.defined() ? to : seen.stack->back().toTensor(), stream);
    if (has_values)
        tell(kind, copied.is_known);
}

/* --- counts */

static uint64_t count_by_policy(int64_t most)
{
    return static_cast<uint64_t>(policy == Policy::zero ? 0 : policy == Policy::largest ? most : (most + 1) / 2);
}

static std::vector<uint64_t> count_masks(const Seen &seen, Effect &e, bool &is_known)
{
    std::vector<uint64_t> counts;
    bool is_likely = is_known = true;
    each_tensor(seen.argument(1), [&](const at::Tensor &t, int) {
        if (!is_mask(t))
            return;
        if (static_cast<int64_t>(t.nbytes()) > KNOWN_MOST) {
            is_known = is_likely = false;
            counts.push_back(count_by_policy(t.numel()));
            return;
        }
        Value value = value_of(t);
        is_known = is_known && value.is_known;
        is_likely = is_likely && (value.is_known || value.is_likely);
        OnCpu guard;
        bool is_all = !value.is_known && !value.is_likely && policy == Policy::largest;
        counts.push_back(is_all ? count_by_policy(t.numel()) : static_cast<uint64_t>(value.tensor.count_nonzero().item<int64_t>()));
    });
    if (!is_likely && policy == Policy::largest)
        e.call = nullptr; /* what it makes has another size than what a CPU would make */
    return counts;
}

static std::vector<uint64_t> count_blindly(const Seen &seen, Effect &e, bool &is_known)
{
    const at::Tensor &from = seen.argument(0).toTensor();
    is_known = false;
    e.call = nullptr;
    if (from.is_sparse())
        return {static_cast<uint64_t>(from._nnz())};
    if (seen.what.name == "aten::masked_select")
        return count_masks(seen, e, is_known);
    return {count_by_policy(seen.what.name == "torchvision::nms" ? from.size(0) : from.numel())};
}

/* What the operator will ask the device for. `values`: its results if they were computed. */
static std::vector<uint64_t> count(const Seen &seen, Effect &e, bool &is_known)
{
    const at::Tensor &from = seen.argument(0).toTensor();
    torch::jit::Stack out;
    bool is_all = policy == Policy::largest && !e.is_likely, can = e.call != nullptr || from.nbytes() <= KNOWN_MOST;
    auto call = can && !is_all && !seen.is_strange && !seen.what.is_heavy ? call_of(seen) : nullptr;
    Sure sure;
    size_t results = seen.handle.schema().returns().size();
    if (!call || !compute_now(*call, out, sure) || (!sure.is_likely && policy == Policy::largest))
        return count_blindly(seen, e, is_known);
    is_known = sure.is_known;
    const at::Tensor first = out[out.size() - results].toTensor();
    for (size_t i = 0; i < results; i++)
        e.values.push_back(out[out.size() - results + i].toTensor());
    return {static_cast<uint64_t>(first.dim() ? first.size(0) : 1)};
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
    bool is_known = true;
    std::vector<uint64_t> counts;
    bool has_counts = guarded([&] {
        std::lock_guard<std::mutex> hold(tape_lock);
        forget_unexplained();
        bool is_temporary = is_inner && !seen.is_strange && !tape_find(seen.argument(0).toTensor().storage());
        e = effect_of(seen);
        if (seen.what.reading != Reading::count)
            counts = count_masks(seen, e, is_known);
        else if (seen.is_strange || is_temporary)
            counts = count_blindly(seen, e, is_known);
        else
            counts = count(seen, e, is_known);
        e.is_known = e.is_known && is_known;
    });
    if (!has_counts) {
        e = Effect();
        counts = {0};
        is_known = false;
    }
    int taken;
    {
        Answers answers(counts);
        run_seen(seen, keys, is_inner ? nullptr : &e);
        taken = answers.end();
    }
    if (taken)
        tell(COUNT, is_known);
}

/* Whether what is copied is known to the tape, and no temporary memory of an operator around this one. */
static bool is_on_tape(const Seen &seen)
{
    const at::Tensor &from = seen.argument(seen.what.name == "aten::copy_" ? 1 : 0).toTensor();
    std::lock_guard<std::mutex> hold(tape_lock);
    return is_readable(from) && tape_find(from.storage());
}

void read(const Seen &seen, c10::DispatchKeySet keys, bool is_inner)
{
    switch (seen.what.reading) {
    case Reading::scalar:
        return read_scalar(seen, keys, is_inner);
    case Reading::answer:
        return is_inner ? run_seen(seen, keys, nullptr) : read_answer(seen, keys);
    case Reading::copy:
        return is_inner && !is_on_tape(seen) ? run_seen(seen, keys, nullptr) : read_copy(seen, keys);
    default:
        return read_count(seen, keys, is_inner);
    }
}

} // namespace cenote_values
