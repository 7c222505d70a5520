/*
 * recording.cpp: what a call does to the versions of the storages that it reads and writes.
 *
 * A call is recorded, to be made again on the CPU if the program asks for what it made, as long as it is small: KNOWN_MOST bytes, UNKNOWN_MOST if
 * something that it reads is unknown. Any other call makes unknown bytes. Small ones get a version, from which plausible values come, and large
 * ones none.
 *
 * Rule V3: a recorded call holds copies of what it reads from the host, and versions of what it reads from a GPU, but no tensor of the program's.
 *
 * LOCKING: the tape's lock.
 */
#include "device.h"
#include "seeing.h"

#include <ATen/Context.h>

#include <algorithm>

namespace cenote_values
{

static constexpr int64_t PRODUCT_MOST = 4 << 20; /* multiplications of a product of matrices that is computed. Chosen. */
static constexpr int64_t CHOICES_MOST = 16;      /* from more of unknown ones none is computed: it could be the one that ends a sentence. Chosen. */

static constexpr int64_t EXCHANGED_MOST = 1 << 20; /* bytes that the simulated NCCL really moves */

static int capturing; /* graphs: what is captured is not done */
static uint64_t recorded_calls;

void set_capturing(bool on)
{
    capturing += on ? 1 : -1;
}

uint64_t recorded()
{
    return recorded_calls;
}

Operand operand_of(const at::Tensor &t, int argument, int element, bool is_written)
{
    return {argument, element, tape_version(t.storage()), c10::DimVector(t.sizes()), c10::DimVector(t.strides()), t.storage_offset(), t.scalar_type(),
            is_written};
}

static bool is_float(const at::Tensor &t)
{
    return t.is_floating_point() || t.is_complex();
}

static int64_t product_size(const Seen &seen)
{
    int64_t most = 1, last = 1;
    for (size_t i = 0; i < seen.count; i++)
        each_tensor(seen.argument(i), [&](const at::Tensor &t, int) {
            if (!t.defined() || !t.dim())
                return;
            most = std::max(most, t.numel());
            last = t.size(-1);
        });
    return most * last;
}

/* What decides whether a call is recorded. */
struct Weight {
    int64_t bytes = 0;          /* of all tensors on a GPU, and of storages that are written to in part */
    bool is_known = true;
    bool host_is_small = true;
    int64_t choices = 0;
    int depth = 0;
};

static void weigh_tensor(Weight &w, Effect &e, const Seen &seen, const at::Tensor &t, bool writes)
{
    if (!is_plain(t)) {
        e.writes_strangely |= writes && t.is_cuda();
        if (!t.is_cuda() && !t.unsafeGetTensorImpl()->is_wrapped_number())
            w.host_is_small &= static_cast<int64_t>(t.nbytes()) <= (is_float(t) ? HOST_MOST : KNOWN_MOST);
        return;
    }
    bool covers = writes && covers_storage(t), blank = covers && seen.what.replaces;
    const Version *v = tape_find(t.storage());
    w.bytes += static_cast<int64_t>(writes ? t.storage().nbytes() : t.nbytes());
    e.inputs.push_back(t.storage().unsafeGetStorageImpl());
    if (!blank && t.numel())
        w.is_known &= v && v->is_known;
    if (v && !blank) {
        w.depth = std::max(w.depth, v->bytes.defined() ? 0 : v->depth);
        if (!e.like)
            e.like = tape_version(t.storage());
    }
    if (writes)
        e.writes.push_back({t.storage(), 0, t.scalar_type(), covers});
}

static Weight weigh(const Seen &seen, Effect &e)
{
    Weight w;
    for (size_t i = 0; i < seen.count; i++) {
        const c10::IValue &value = seen.argument(i);
        Shape shape;
        if (value.isTensor() && value.toTensor().defined()) {
            shape.is_tensor = true;
            shape.sizes = c10::DimVector(value.toTensor().sizes());
            if (!i && seen.what.chooses)
                for (int64_t size : shape.sizes)
                    w.choices = std::max(w.choices, size);
        } else if (value.isInt()) {
            shape.number = value.toInt();
        }
        if (i < 4)
            e.shapes.push_back(std::move(shape));
        bool writes = seen.what.writes[i] || seen.what.exchanges; /* their schemas do not say what is written */
        each_tensor(value, [&](const at::Tensor &t, int) {
            if (t.defined())
                weigh_tensor(w, e, seen, t, writes);
        });
    }
    return w;
}

static bool is_recordable(const Seen &seen, const Weight &w)
{
    const Operator &o = seen.what;
    if (!o.is_trusted || o.is_heavy || seen.is_strange || capturing || !w.host_is_small || w.bytes > (w.is_known ? KNOWN_MOST : UNKNOWN_MOST))
        return false;
    if (o.is_product && product_size(seen) > PRODUCT_MOST)
        return false;
    return w.is_known || !(o.keeps || (o.chooses && w.choices > CHOICES_MOST));
}

/* The argument as the call keeps it: without tensors on a GPU, with copies of those on the host. */
static c10::IValue kept(const c10::IValue &value)
{
    auto of_host = [](const at::Tensor &t) { return t.unsafeGetTensorImpl()->is_wrapped_number() ? t : t.clone(); };
    if (value.isTensor())
        return !value.toTensor().defined() ? value : value.toTensor().is_cuda() ? c10::IValue() : c10::IValue(of_host(value.toTensor()));
    if (value.isGenerator())
        return c10::IValue();
    if (!value.isList() || value.isIntList() || value.isDoubleList() || value.isBoolList())
        return value;
    if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const c10::IValue &one : value.toListRef())
            list.push_back(!one.toTensor().defined() || one.toTensor().is_cuda() ? at::empty({0}) : of_host(one.toTensor()));
        return list;
    }
    bool has_tensors = false;
    each_tensor(value, [&](const at::Tensor &, int) { has_tensors = true; });
    if (!has_tensors)
        return value;
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue &one : value.toListRef()) {
        bool is_host = one.isTensor() && one.toTensor().defined() && !one.toTensor().is_cuda();
        list.push_back(is_host ? std::optional<at::Tensor>(of_host(one.toTensor())) : std::nullopt);
    }
    return list;
}

/* What the generator of the device is about to draw is told by its seed and by how far it is. */
static uint64_t seed_of(const Seen &seen)
{
    try {
        at::Generator generator;
        for (size_t i = 0; i < seen.count; i++)
            if (seen.argument(i).isGenerator())
                generator = seen.argument(i).toGenerator();
        if (!generator.defined()) {
            auto device = seen.device.has_index() ? seen.device : c10::Device(c10::kCUDA, 0);
            generator = at::globalContext().defaultGenerator(device);
        }
        return generator.current_seed() * 1000003 + generator.get_offset();
    } catch (const std::exception &) {
        return 0;
    }
}

static VersionP blank(int64_t size, c10::ScalarType type)
{
    VersionP made = new_version(size);
    made->fill = Fill::zero;
    made->type = type;
    made->is_known = true;
    return made;
}

/* The version that an operand reads. A small storage without one gets one, so that all who ask see the same values. */
static VersionP read_version(const at::Tensor &t)
{
    VersionP v = tape_version(t.storage());
    auto size = static_cast<int64_t>(t.storage().nbytes());
    if (v || size > UNKNOWN_MOST || !size)
        return v;
    v = new_version(size);
    v->type = t.scalar_type();
    tape_put(t.storage(), v);
    return v;
}

std::shared_ptr<Call> call_of(const Seen &seen)
{
    auto call = std::make_shared<Call>(seen.handle, seen.what);
    OnCpu guard;
    for (size_t i = 0; i < seen.count; i++) {
        const c10::IValue &value = seen.argument(i);
        bool writes = seen.what.writes[i];
        each_tensor(value, [&](const at::Tensor &t, int element) {
            if (!is_plain(t))
                return;
            Operand o = operand_of(t, static_cast<int>(i), element, writes);
            bool is_blank = writes && seen.what.replaces && covers_storage(t);
            o.version = is_blank ? blank(static_cast<int64_t>(t.storage().nbytes()), t.scalar_type()) : read_version(t);
            call->operands.push_back(std::move(o));
        });
        call->arguments.push_back(kept(value));
    }
    if (seen.what.is_random)
        call->seed = seed_of(seen);
    return call;
}

Effect effect_of(const Seen &seen)
{
    Effect e;
    Weight w = weigh(seen, e);
    e.is_known = w.is_known;
    if (!is_recordable(seen, w))
        return e;
    e.call = call_of(seen);
    for (auto &o : e.call->operands) /* a chain of calls is computed before it is too long to be computed by recursion */
        if (o.version && o.version->depth >= DEPTH_MOST && o.version->size <= KNOWN_MOST)
            evaluate(*o.version);
    e.depth = (w.depth >= DEPTH_MOST ? 0 : w.depth) + 1;
    size_t write = 0;
    for (size_t i = 0; i < e.call->operands.size(); i++)
        if (e.call->operands[i].is_written) {
            if (!e.call->operands[i].version) { /* a part of something large */
                e.call = nullptr;
                return e;
            }
            e.writes[write++].operand = i;
        }
    return e;
}

/* What other processes write is in memory afterwards, if it is small (sim/libraries/nccl). */
static VersionP exchanged(const c10::Storage &storage, c10::ScalarType type)
{
    if (static_cast<int64_t>(storage.nbytes()) > EXCHANGED_MOST || capturing)
        return nullptr;
    VersionP v = new_version(static_cast<int64_t>(storage.nbytes()));
    v->memory = storage.data();
    v->type = type;
    return v;
}

/* What this process sends has to be in memory. */
void write_out(const Seen &seen)
{
    for (size_t i = 0; i < seen.count && !capturing; i++)
        each_tensor(seen.argument(i), [&](const at::Tensor &t, int) {
            VersionP v = is_plain(t) ? tape_version(t.storage()) : nullptr;
            if (!v || v->memory || v->size > EXCHANGED_MOST)
                return;
            evaluate(*v);
            write_device(t.storage().mutable_data(), v->bytes.data_ptr(), v->size);
        });
}

static void apply_write(const Seen &seen, Effect &e, Effect::Write &w)
{
    auto size = static_cast<int64_t>(w.storage.nbytes());
    if (!size)
        return;
    VersionP v;
    if (seen.what.exchanges)
        return tape_put(w.storage, exchanged(w.storage, w.type));
    if (e.call && e.call->operands[w.operand].version->size == size) {
        v = new_version(size);
        v->call = e.call;
        v->depth = e.depth;
        v->is_known = e.is_known;
        v->type = w.type;
        v->is_truth = seen.what.is_truth || (seen.what.moves && e.like && e.like->is_truth);
        e.call->written.emplace_back(w.operand, v);
    } else if (e.call) { /* the operator has resized it */
        return tape_put(w.storage, nullptr);
    } else if (!w.covers || seen.what.keeps) {
        VersionP before = tape_version(w.storage);
        if (before) {
            v = new_version(size);
            v->same = before->same ? before->same : before;
            v->type = before->type;
            v->fill = before->fill;
        }
    } else if (size <= UNKNOWN_MOST) {
        v = new_version(size);
        OnCpu guard;
        auto shape = at::empty({size / static_cast<int64_t>(c10::elementSize(w.type))}, at::TensorOptions().dtype(w.type).device(c10::kMeta));
        describe_plausible(*v, seen.what, 0, shape, e.shapes, e.like.get());
    }
    tape_put(w.storage, std::move(v));
}

static at::Tensor bytes_of(const at::Tensor &value, const at::Tensor &like, int64_t size)
{
    OnCpu guard;
    auto bytes = at::zeros({size}, at::kByte);
    at::empty({0}, value.options()).set_(bytes.storage(), like.storage_offset(), like.sizes(), like.strides()).copy_(value);
    return bytes;
}

static void apply_result(const Seen &seen, Effect &e, const at::Tensor &t, size_t place, int element)
{
    if (!is_plain(t) || !t.storage().nbytes())
        return;
    auto *storage = t.storage().unsafeGetStorageImpl();
    if (std::find(e.inputs.begin(), e.inputs.end(), storage) != e.inputs.end())
        return;
    auto size = static_cast<int64_t>(t.storage().nbytes());
    int64_t most = e.is_known ? KNOWN_MOST : is_float(t) ? UNKNOWN_MOST : KNOWN_MOST;
    if (size > most) {
        if (tape_find(t.storage()))
            tape_put(t.storage(), nullptr);
        return;
    }
    VersionP v = new_version(size);
    describe_plausible(*v, seen.what, place, t, e.shapes, e.like.get());
    if (!e.values.empty() && place < e.values.size() && e.values[place].sizes() == t.sizes()) {
        v->bytes = bytes_of(e.values[place], t, size);
        v->is_known = e.is_known;
    } else if (e.call && e.values.empty()) {
        v->call = e.call;
        v->depth = e.depth;
        v->is_known = e.is_known;
        e.call->results.push_back({static_cast<int>(place), element, v, c10::DimVector(t.sizes()), c10::DimVector(t.strides()), t.storage_offset(),
                                   t.scalar_type()});
    }
    tape_put(t.storage(), std::move(v));
}

void apply(const Seen &seen, Effect &e)
{
    for (auto &w : e.writes)
        apply_write(seen, e, w);
    if (e.writes_strangely)
        tape_forget_all();
    size_t results = seen.handle.schema().returns().size(), first = seen.stack->size() - results;
    for (size_t i = 0; i < results; i++)
        each_tensor((*seen.stack)[first + i], [&](const at::Tensor &t, int element) { apply_result(seen, e, t, i, element); });
    recorded_calls += e.call != nullptr;
}

void fail(Effect &e)
{
    for (auto &w : e.writes)
        tape_put(w.storage, nullptr);
}

} // namespace cenote_values
