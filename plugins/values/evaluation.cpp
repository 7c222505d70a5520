/*
 * evaluation.cpp: computes a version when the program asks for its bytes: the call that makes it is made on the CPU, after those that it depends
 * on. What cannot be computed has plausible values.
 *
 * Rule V2: what was computed from a version that is not known is not known.
 *
 * Rule V9: no version depends on more than DEPTH_MOST calls, one through the other; a longer chain is settled as it grows.
 *
 * LOCKING: the tape's lock, held meanwhile. No operator of a CPU asks for Python's lock: calls of the program's own operators are not recorded.
 */
#include "evaluation.h"

#include "choosing.h"
#include "device.h"
#include "parts.h"
#include "plausible.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <unordered_map>

namespace cenote_values
{

using torch::jit::Stack;
using Buffers = std::unordered_map<const Version *, at::Tensor>; /* copies of what a call writes to */

static constexpr int64_t SETTLED_MOST = 64 << 10;   /* bytes of an unknown version that is computed without being asked for. Chosen. */
static constexpr int64_t UNASKED_MOST = 8ll << 30;  /* bytes of known versions that were, since the program last looked: some seconds. Chosen. */
static int64_t unasked;

static uint64_t made;

static const c10::DispatchKeySet unseen = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(c10::DispatchKey::Fake) |
    c10::default_excluded_set;

extern "C" void omp_set_num_threads(int threads) __attribute__((weak)); /* of this thread's regions; PyTorch's library of OpenMP has it */

static void use_threads(int threads)
{
    if (omp_set_num_threads)
        omp_set_num_threads(threads);
}

/* PyTorch sets the number at a thread's first use of it: so it is asked for before. */
OnCpu::OnCpu()
    : threads_(at::get_num_threads()), keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), unseen), inference_(false)
{
    use_threads(1);
}

OnCpu::~OnCpu()
{
    use_threads(threads_);
}

static int64_t extent(const Operand &o)
{
    int64_t last = 1;
    for (size_t d = 0; d < o.sizes.size(); d++) {
        if (!o.sizes[d])
            return 0;
        last += (o.sizes[d] - 1) * o.strides[d];
    }
    return last * static_cast<int64_t>(c10::elementSize(o.type));
}

static at::Tensor view_of(const at::Tensor &bytes, const Operand &o)
{
    int64_t size = extent(o), from = size ? o.offset * static_cast<int64_t>(c10::elementSize(o.type)) : 0;
    TORCH_CHECK(from + size <= static_cast<int64_t>(bytes.storage().nbytes()), "a view beyond the bytes of its version");
    return at::empty({0}, at::TensorOptions().dtype(o.type)).set_(bytes.storage(), o.offset, o.sizes, o.strides);
}

/* Part of a version that is too large to be computed as a whole. Known are zeros. */
static Value piece_of(const Operand &o)
{
    return {plausible(*o.version, o.sizes, o.type, static_cast<uint64_t>(o.offset)), o.version->is_known};
}

static Value plain_value(const Operand &o, Buffers &buffers)
{
    if (!o.version) {
        Version nothing;
        nothing.fill = o.type == at::kBool && o.sizes.size() ? Fill::half : Fill::number;
        return {plausible(nothing, o.sizes, o.type, static_cast<uint64_t>(o.offset) + o.sizes.size()), !extent(o)};
    }
    auto found = buffers.find(o.version.get());
    if (found != buffers.end())
        return {view_of(found->second, o), o.is_filled || knows(*o.version, o), o.version->is_likely};
    if (o.version->size > KNOWN_MOST || (o.version->size > UNKNOWN_MOST && o.version->is_made_up && c10::isFloatingType(o.version->type)))
        return piece_of(o);
    evaluate(*o.version);
    return {view_of(o.version->bytes, o), knows(*o.version, o), o.version->is_likely};
}

static Value seen_so(const Operand &o, Value value)
{
    if (o.is_conj)
        value.tensor = value.tensor.conj_physical();
    if (o.is_neg)
        value.tensor = value.tensor.neg();
    return value;
}

static Value value_in(const Operand &o, Buffers &buffers)
{
    return seen_so(o, plain_value(o, buffers));
}

Value value_in_memory(const Operand &o, const Version &upload)
{
    OnCpu guard;
    int64_t size = extent(o);
    Operand there = o;
    there.offset = 0;
    auto bytes = at::zeros({size}, at::kByte);
    const char *from = static_cast<const char *>(upload.memory) + o.offset * static_cast<int64_t>(c10::elementSize(o.type));
    bool is_read = read_device(from, bytes.data_ptr(), size);
    return seen_so(o, {view_of(bytes, there), is_read});
}

Value value_of(const at::Tensor &tensor)
{
    Buffers none;
    OnCpu guard;
    unasked = 0;
    Operand o = operand_of(tensor, 0, -1, false);
    if (o.version && is_large_upload(*o.version) && extent(o) <= KNOWN_MOST)
        return value_in_memory(o, *o.version);
    return value_in(o, none);
}

static void put_argument(Stack &stack, const Call &call, const Operand &o, const at::Tensor &value)
{
    auto &place = stack[static_cast<size_t>(o.argument)];
    if (o.element < 0) {
        place = value;
        return;
    }
    if (place.is(call.arguments[static_cast<size_t>(o.argument)])) /* the call keeps its own list */
        place = place.isTensorList() ? c10::IValue(place.toTensorList().copy()) : c10::IValue(place.toList().copy());
    if (place.isTensorList())
        place.toTensorList().set(static_cast<size_t>(o.element), value);
    else
        place.toList().set(static_cast<size_t>(o.element), c10::IValue(value));
}

/* No later read can ask for the bytes: the call may write to them. */
static bool belongs_to(const Call &call, const Version &version)
{
    long operands = 0, owners = 0;
    for (const auto &o : call.operands)
        if (o.version.get() == &version) {
            operands++;
            owners = o.version.use_count();
        }
    return owners == operands && version.bytes.storage().use_count() == 1;
}

/* The stack for the call: its arguments with the values of its operands, and what it writes in `buffers`. */
static Stack arguments_of(const Call &call, Buffers &buffers, Sure &sure)
{
    for (const auto &o : call.operands)
        if (o.is_written && !buffers.count(o.version.get())) {
            evaluate(*o.version);
            buffers[o.version.get()] = belongs_to(call, *o.version) ? std::move(o.version->bytes) : o.version->bytes.clone();
        }
    Stack stack;
    for (const auto &argument : call.arguments)
        stack.push_back(argument.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : argument);
    for (const auto &o : call.operands) {
        Value value = value_in(o, buffers);
        sure.is_known = sure.is_known && value.is_known;
        sure.is_likely = sure.is_likely && (value.is_known || value.is_likely);
        put_argument(stack, call, o, value.tensor);
    }
    return stack;
}

/* The CPU's generator begins with the seed of the call, and goes on afterwards as if nothing had been drawn. */
class Drawing {
public:
    explicit Drawing(const Call &call) : generator_(at::detail::getDefaultCPUGenerator())
    {
        if (!call.what.is_random)
            return;
        before_ = generator_.get_state();
        generator_.set_current_seed(call.seed);
    }
    ~Drawing()
    {
        if (before_.defined())
            generator_.set_state(before_);
    }

private:
    at::Generator generator_;
    at::Tensor before_;
};

static Stack compute(Call &call, Buffers &buffers, Sure &sure)
{
    Stack stack = arguments_of(call, buffers, sure);
    std::optional<Choice> choice;
    if (!sure.is_likely)
        choice.emplace(call, stack);
    Drawing drawing(call);
    made++;
    call.handle.callBoxed(&stack);
    if (choice)
        choice->map(stack);
    return stack;
}

/* No NaN is plausible. PyTorch has no such operator for numbers of one byte. */
static bool can_be_no_number(c10::ScalarType type)
{
    return c10::isFloatingType(type) && c10::elementSize(type) > 1;
}

/* V17: what arithmetic makes of one is as large. */
static at::Tensor score_of(const Call &call, const Version &v, const at::Tensor &like)
{
    for (const auto &o : call.operands)
        if (o.version && is_score(*o.version) && o.version->bytes.defined())
            return view_of(o.version->bytes, o).to(like.scalar_type()).view(like.sizes());
    return score(v, like);
}

static void keep(const Call &call, const Result &r, const at::Tensor &got, const Sure &sure)
{
    VersionP v = r.version.lock();
    if (!v || v->bytes.defined())
        return;
    TORCH_CHECK(got.sizes() == c10::IntArrayRef(r.sizes), "another size on the CPU");
    at::Tensor value = sure.is_likely || !can_be_no_number(got.scalar_type()) ? got : got.nan_to_num(0, INFINITY, -INFINITY);
    if (v->course && !sure.is_likely)
        value = score_of(call, *v, value);
    auto bytes = at::zeros({v->size}, at::kByte);
    at::empty({0}, at::TensorOptions().dtype(r.type)).set_(bytes.storage(), r.offset, r.sizes, r.strides).copy_(value);
    v->bytes = bytes;
    if (!sure.is_known && v->is_known)
        lose(*v);
    v->is_likely &= sure.is_likely;
}

static at::Tensor view_as_numbers(const Version &v)
{
    auto width = static_cast<int64_t>(c10::elementSize(v.type));
    return at::empty({0}, at::TensorOptions().dtype(v.type)).set_(v.bytes.storage(), 0, {v.size / width}, {1});
}

/* A version after the call that wrote to `before`. The operator can have given its storage another size. */
static void keep_written(const Call &call, const Version &before, Version &v, const at::Tensor &bytes, const Sure &sure)
{
    TORCH_CHECK(static_cast<int64_t>(bytes.storage().nbytes()) >= v.size, "another size on the CPU");
    v.bytes = v.size == before.size ? bytes : at::empty({0}, at::kByte).set_(bytes.storage(), 0, {v.size}, {1});
    if (before.is_lost || (call.is_known && !sure.is_known))
        lose(v);
    v.is_likely &= sure.is_likely;
    if (!sure.is_likely && v.unknown.empty() && can_be_no_number(v.type))
        view_as_numbers(v).nan_to_num_(0, INFINITY, -INFINITY);
}

static const at::Tensor tensor_in(const c10::IValue &value, int element)
{
    return element < 0 ? value.toTensor() : value.toListRef()[static_cast<size_t>(element)].toTensor();
}

/* Makes a recorded call. If it fails, its versions stay without bytes. */
static void make(Call &call)
{
    call.was_made = true;
    try {
        Buffers buffers;
        Sure sure;
        Stack out = compute(call, buffers, sure);
        for (const auto &r : call.results)
            keep(call, r, tensor_in(out.at(static_cast<size_t>(r.place)), r.element), sure);
        for (const auto &[operand, after] : call.written)
            if (VersionP v = after.lock()) {
                const Version &before = *call.operands[operand].version;
                keep_written(call, before, *v, buffers.at(&before), sure);
            }
    } catch (const std::exception &) {
    }
    call.let_go();
}

bool compute_now(Call &call, Stack &out, Sure &sure)
{
    OnCpu guard;
    try {
        Buffers buffers;
        out = compute(call, buffers, sure);
        return true;
    } catch (const std::exception &) {
        return false;
    }
}

static at::Tensor all_true(c10::IntArrayRef sizes)
{
    return at::ones(sizes, at::kBool);
}

/* The call is made with a mask in place of what it writes to, and with true in place of what it writes. */
bool compute_places(const Call &call, at::Tensor &mask)
{
    OnCpu guard;
    try {
        Buffers none;
        Stack stack = call.arguments;
        auto is_source = [&](size_t i) {
            const std::string &name = call.handle.schema().arguments()[i].name();
            return name == "src" || name == "source" || name.rfind("value", 0) == 0;
        };
        for (size_t i = 0; i < stack.size(); i++)
            if (is_source(i) && stack[i].isScalar())
                stack[i] = at::Scalar(true);
            else if (is_source(i) && stack[i].isTensor())
                stack[i] = all_true(stack[i].toTensor().sizes());
        for (const auto &o : call.operands)
            if (o.is_written) {
                mask = at::zeros({o.version->size / static_cast<int64_t>(c10::elementSize(o.type))}, at::kBool);
                put_argument(stack, call, o, mask.as_strided(o.sizes, o.strides, o.offset));
            } else {
                bool is_written_there = is_source(static_cast<size_t>(o.argument));
                put_argument(stack, call, o, is_written_there ? all_true(o.sizes) : value_in(o, none).tensor);
            }
        call.handle.callBoxed(&stack);
        return mask.defined();
    } catch (const std::exception &) {
        return false;
    }
}

/* The storage is held meanwhile, so that its memory stays its own. */
static bool read_memory(Version &v)
{
    auto home = v.home ? v.home->lock() : nullptr;
    auto bytes = at::zeros({v.size}, at::kByte);
    if (home && home->data() == v.memory && static_cast<int64_t>(home->nbytes()) == v.size && read_device(v.memory, bytes.data_ptr(), v.size))
        v.bytes = bytes;
    v.memory = nullptr;
    if (!v.bytes.defined())
        lose(v);
    return v.bytes.defined();
}

void evaluate(Version &v)
{
    if (v.bytes.defined())
        return;
    OnCpu guard;
    if (v.same) {
        evaluate(*v.same);
        v.bytes = v.same->bytes;
        return;
    }
    if (v.memory && read_memory(v))
        return;
    auto call = std::move(v.call); /* not longer than needed: it holds the versions before */
    if (call && !call->was_made)
        make(*call);
    if (v.bytes.defined())
        return;
    if (call) /* it failed */
        lose(v);
    auto width = static_cast<int64_t>(c10::elementSize(v.type));
    auto made_up = plausible(v, {(v.size + width - 1) / width}, v.type, 0).contiguous();
    if (v.course)
        made_up = score(v, made_up);
    v.bytes = at::empty({0}, at::kByte).set_(made_up.storage(), 0, {v.size}, {1});
}

/* The program has not asked for the version: what is computed all the same has a limit. */
void settle(Version &v)
{
    if (v.bytes.defined() || !v.depth)
        return;
    Version &from = v.same ? *v.same : v;
    bool is_worth = from.is_known || from.is_likely || !from.unknown.empty();
    bool is_cheap = from.memory || is_worth ? unasked + from.size * DEPTH_MOST <= UNASKED_MOST : from.size <= SETTLED_MOST;
    if (is_cheap) {
        unasked += is_worth ? from.size * DEPTH_MOST : 0;
        return evaluate(v);
    }
    from.call = nullptr;
    lose(from);
    lose(v);
    from.depth = v.depth = 0;
}

uint64_t computed()
{
    return made;
}

} // namespace cenote_values
