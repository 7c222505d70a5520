/*
 * recording.cpp: what a call does to the versions of the storages that it reads and writes.
 *
 * A call is recorded, to be made again on the CPU if the program asks for what it made, as long as it is small: KNOWN_MOST bytes, UNKNOWN_MOST if
 * something that it reads is unknown. Any other call makes unknown bytes. Small ones get a version, from which plausible values come.
 *
 * A copy from the host that is not kept leaves a version in the device's memory (V13).
 *
 * Rule V3: a recorded call holds copies of what it reads from the host, and versions of what it reads from a GPU, but no tensor of the program's.
 *
 * LOCKING: the tape's lock.
 */
#include "choosing.h"
#include "device.h"
#include "parts.h"
#include "seeing.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>

namespace cenote_values
{

static constexpr int64_t PRODUCT_MOST = 4 << 20; /* multiplications of a product of matrices that is computed. Chosen. */
static constexpr int64_t LINEAR_MOST = 64 << 10;  /* bytes of known matrices that are inverted, factored and so on. Chosen. */
static constexpr int64_t SMALL_MOST = 64 << 10;   /* bytes in memory that are read as soon as a call has them. Chosen. */
static constexpr int64_t PLACED_MOST = 1 << 20;    /* bytes of a storage to which an index says what is written. Chosen. */
static constexpr int64_t EXCHANGED_MOST = 1 << 20; /* bytes that the simulated NCCL really moves */

static int capturing; /* graphs: what is captured is not done */
static uint64_t recorded_calls;

void set_capturing(bool on)
{
    capturing = std::max(capturing + (on ? 1 : -1), 0); /* an end without a beginning */
}

uint64_t recorded()
{
    return recorded_calls;
}

static bool is_float(const at::Tensor &t)
{
    return t.is_floating_point() || t.is_complex();
}

/* All that the call writes there is known if its other arguments are. */
static bool writes_all(const Seen &seen, const at::Tensor &t)
{
    if (!seen.what.places)
        return fills_part(seen.what, t);
    bool adds = seen.count > 3 && seen.argument(3).isBool() && seen.argument(3).toBool();
    return !adds && static_cast<int64_t>(t.storage().nbytes()) <= PLACED_MOST;
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
    bool is_known = true, is_likely = true;
    int64_t host = 0;           /* bytes of tensors on the host, of which copies are kept */
    bool host_is_small = true;
    bool masks_only = true, has_free_mask = false;
    bool makes_up_choice = false;
    int depth = 0;
};

/* One of unknown values that have no values as a whole: they could be the same at each step of a program. */
static bool makes_up_choice(const at::Tensor &from)
{
    bool is_one_of_many = false;
    for (int64_t size : from.sizes())
        is_one_of_many |= size > CHOICES_MOST;
    return is_one_of_many && (policy == Policy::zero || !from.has_storage() || static_cast<int64_t>(from.storage().nbytes()) > UNKNOWN_MOST);
}

static void weigh_tensor(Weight &w, Effect &e, const Seen &seen, const at::Tensor &t, bool writes)
{
    if (!is_plain(t) && (writes || !is_readable(t))) {
        e.writes_strangely |= writes && t.is_cuda();
        if (!is_plain_on(t) || t.is_cuda() || t.unsafeGetTensorImpl()->is_wrapped_number())
            return;
        w.host += static_cast<int64_t>(t.nbytes());
        w.host_is_small &= static_cast<int64_t>(t.nbytes()) <= (is_float(t) ? HOST_MOST : KNOWN_MOST);
        return;
    }
    bool covers = writes && covers_storage(t), blank = covers && seen.what.replaces;
    int64_t shift;
    VersionP v = writes ? tape_version_of(t) : tape_look(t, shift);
    if (v && writes && v->memory && !is_large_upload(*v) && v.use_count() > 2) /* V13: the table's, ours, and that of a call */
        evaluate(*v);
    w.masks_only &= t.scalar_type() == at::kBool;
    w.has_free_mask |= v && is_free_mask(*v);
    w.bytes += static_cast<int64_t>(writes ? t.storage().nbytes() : t.nbytes());
    e.inputs.push_back(t.storage().unsafeGetStorageImpl());
    if (!blank && t.numel() && !(writes && writes_all(seen, t))) {
        bool is_known = v && knows(*v, operand_of(t, 0, -1, writes));
        w.is_known &= is_known;
        w.is_likely &= is_known || (v && v->is_likely);
    }
    if (v && !blank && !e.score && is_score(*v))
        e.score = v;
    if (v && !blank && !e.like && !is_large_upload(*v))
        e.like = v;
    if (writes)
        e.writes.push_back({t.storage(), 0, t.scalar_type(), covers, t.storage().nbytes()});
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
            w.makes_up_choice |= !i && seen.what.chooses && makes_up_choice(value.toTensor());
        } else if (value.isInt()) {
            shape.number = value.toInt();
        } else if (value.isDouble()) {
            shape.is_infinite = std::isinf(value.toDouble());
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
    bool is_light = !o.is_heavy || (o.is_linear && w.is_known && w.bytes <= LINEAR_MOST);
    if (!o.is_trusted || !is_light || seen.is_strange || capturing || !w.host_is_small || w.bytes > (w.is_likely ? KNOWN_MOST : UNKNOWN_MOST))
        return false;
    if (w.host && held_by_calls() + w.host > HELD_MOST)
        return false;
    if (o.joins && w.masks_only && w.has_free_mask) /* V10 */
        return false;
    if (o.is_product && product_size(seen) > PRODUCT_MOST)
        return false;
    return w.is_likely || !(o.keeps || w.makes_up_choice);
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
VersionP read_version(const at::Tensor &t, int64_t most)
{
    VersionP v = tape_version(t.storage());
    auto size = static_cast<int64_t>(t.storage().nbytes());
    if (v || size > most || !size)
        return v;
    v = new_version(size);
    describe_unseen(*v, t.scalar_type());
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
            if (!is_readable(t))
                return;
            Operand o = operand_of(t, static_cast<int>(i), element, writes);
            bool is_blank = writes && seen.what.replaces && covers_storage(t);
            if (is_blank)
                o.version = blank(static_cast<int64_t>(t.storage().nbytes()), t.scalar_type());
            o.is_filled = writes && !is_blank && writes_all(seen, t);
            if (!o.version)
                o.version = read_version(t, o.is_filled ? KNOWN_MOST : UNKNOWN_MOST);
            VersionP &v = o.version; /* V13 */
            if (v && v->memory && !is_large_upload(*v) && (writes || v->size <= SMALL_MOST))
                evaluate(*v);
            call->operands.push_back(std::move(o));
        });
        if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().is_cuda())
            each_tensor(value, [&](const at::Tensor &t, int) {
                if (t.defined() && t.is_cpu() && is_plain_on(t))
                    hold(*call, static_cast<int64_t>(t.nbytes()));
            });
        call->arguments.push_back(kept(value));
    }
    if (seen.what.is_random)
        call->seed = seed_of(seen);
    return call;
}

static bool is_itself(const Seen &seen)
{
    if (seen.is_strange || seen.count < 2 || !seen.argument(0).isTensor() || !seen.argument(1).isTensor())
        return false;
    const at::Tensor &one = seen.argument(0).toTensor(), &other = seen.argument(1).toTensor();
    return is_plain(one) && is_plain(other) && one.storage().is_alias_of(other.storage()) && one.storage_offset() == other.storage_offset() &&
        one.sizes() == other.sizes() && one.strides() == other.strides() && one.scalar_type() == other.scalar_type();
}

/* A copy from the host after which the bytes are in the device's memory, byte for byte, when the call returns. */
static bool brings(const Seen &seen, c10::ScalarType &type)
{
    bool is_in_place = seen.what.name == "aten::copy_";
    if (seen.is_strange || (!is_in_place && seen.what.name != "aten::_to_copy"))
        return false;
    const at::Tensor &from = seen.argument(is_in_place ? 1 : 0).toTensor();
    if (!from.is_cpu() || !from.is_contiguous() || from.is_pinned())
        return false;
    const at::Tensor &to = seen.argument(0).toTensor();
    type = from.scalar_type();
    return !is_in_place || (to.is_contiguous() && covers_storage(to) && to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type());
}

/* What `brings` has brought. */
static VersionP brought(const c10::Storage &storage, c10::ScalarType type)
{
    VersionP made = version_in_memory(storage, type);
    made->is_known = !is_large_upload(*made);
    return made;
}

Effect effect_of(const Seen &seen)
{
    Effect e;
    Weight w = weigh(seen, e);
    e.is_known = w.is_known;
    e.is_likely = w.is_likely;
    e.is_itself = is_itself(seen);
    e.brings = !capturing && brings(seen, e.brought_type);
    if (e.writes_strangely || !is_recordable(seen, w))
        return e;
    e.brings = false;
    e.call = call_of(seen);
    e.call->is_known = e.is_known;
    w.depth = 0;
    for (auto &o : e.call->operands) {
        if (o.version && o.version->depth >= DEPTH_MOST)
            settle(*o.version);
        if (o.version && !o.version->bytes.defined())
            w.depth = std::max(w.depth, o.version->depth);
    }
    e.depth = w.depth + 1;
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
    return version_in_memory(storage, type);
}

/* What this process sends has to be in memory. */
void write_out(const Seen &seen)
{
    for (size_t i = 0; i < seen.count && !capturing; i++)
        each_tensor(seen.argument(i), [&](const at::Tensor &t, int) {
            VersionP v = is_plain(t) ? tape_version(t.storage()) : nullptr;
            if (!v || (v->memory && !v->bytes.defined()) || v->size > EXCHANGED_MOST)
                return;
            evaluate(*v);
            write_device(t.storage().mutable_data(), v->bytes.data_ptr(), v->size);
        });
}

static bool is_constant(Fill fill)
{
    return fill == Fill::zero || fill == Fill::one;
}

/* Zeros are known, however many. */
static void make_up(Version &v, const Operator &what)
{
    v.is_made_up = true;
    v.is_known = what.has_fill && what.fill == Fill::zero && v.size > KNOWN_MOST && !capturing;
}

/* Code outside of PyTorch is about to get the memory, by its address. */
void hand_on(const at::Tensor &t)
{
    guarded([&] {
        std::lock_guard<std::mutex> hold(tape_lock);
        if (!is_plain(t) || capturing || static_cast<int64_t>(t.storage().nbytes()) > KNOWN_MOST)
            return;
        forget_unexplained();
        int64_t shift;
        VersionP v = tape_look(t, shift);
        if (!v)
            v = read_version(t, KNOWN_MOST);
        if (!v || (v->memory && !v->bytes.defined()) || v->size > KNOWN_MOST)
            return;
        evaluate(*v);
        write_device(static_cast<char *>(t.storage().mutable_data()) - shift, v->bytes.data_ptr(), v->size);
    });
}

static void know_written(Version &after, const Operand &o, const Effect &e)
{
    bool is_placed = e.call->what.places && o.is_filled && e.is_known && !o.version->is_known;
    Spans places;
    at::Tensor mask;
    if (is_placed && compute_places(*e.call, mask))
        places = spans_of_true(mask, static_cast<int64_t>(c10::elementSize(o.type)));
    know_after(after, *o.version, o, e.is_known, is_placed ? &places : nullptr);
}

static at::Tensor flat(int64_t size, c10::ScalarType type)
{
    OnCpu guard;
    return at::empty({size / static_cast<int64_t>(c10::elementSize(type))}, at::TensorOptions().dtype(type).device(c10::kMeta));
}

static void apply_write(const Seen &seen, Effect &e, Effect::Write &w)
{
    auto size = static_cast<int64_t>(w.storage.nbytes());
    if (!size)
        return;
    VersionP v;
    if (seen.what.exchanges)
        return tape_put(w.storage, exchanged(w.storage, w.type));
    if (e.brings)
        return tape_put(w.storage, brought(w.storage, w.type));
    bool is_resized = e.call && w.size != w.storage.nbytes();
    if (e.call && (!is_resized || (w.covers && seen.what.replaces))) {
        const Operand &o = e.call->operands[w.operand];
        v = new_version(is_resized ? size : o.version->size);
        v->call = e.call;
        v->depth = e.depth;
        v->is_likely = e.is_likely && (o.version->is_known || o.version->is_likely);
        if (is_resized)
            v->is_known = e.is_known;
        else
            know_written(*v, o, e);
        v->type = w.type;
        v->row = o.version->row;
        e.call->written.emplace_back(w.operand, v);
    } else if (is_resized) {
        return tape_put(w.storage, nullptr);
    } else if (!w.covers || seen.what.keeps) {
        VersionP before = tape_version(w.storage);
        if (before && !(before->is_made_up && size > KNOWN_MOST && is_constant(before->fill))) {
            v = new_version(before->size);
            v->same = before->same ? before->same : before;
            v->depth = v->same->bytes.defined() ? 0 : v->same->depth;
            v->type = before->type;
            v->fill = before->fill;
            v->row = before->row;
        }
    } else if (size <= UNKNOWN_MOST || (seen.what.has_fill && is_constant(seen.what.fill))) {
        v = new_version(size);
        auto shape = flat(size, w.type);
        describe_plausible(*v, seen.what, 0, shape, e.shapes, e.like.get(), e.score.get(), e.is_itself);
        make_up(*v, seen.what);
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

/* Though large: what is made of a probability sums to 1, of joined rows one is known, and zeros that are copied to the host are. */
static bool is_noted(const Operator &what, const Effect &e, const at::Tensor &result)
{
    auto is_probability = [](Fill fill) { return fill >= Fill::fraction && fill <= Fill::log_probability; };
    if (what.has_fill)
        return is_probability(what.fill) || is_constant(what.fill);
    return e.like && is_probability(e.like->fill) && result.is_floating_point() && !e.shapes.empty() &&
        result.sizes() == c10::IntArrayRef(e.shapes[0].sizes);
}

static void apply_result(const Seen &seen, Effect &e, const at::Tensor &t, size_t place, int element)
{
    if (!is_plain(t) || !t.storage().nbytes())
        return;
    auto *storage = t.storage().unsafeGetStorageImpl();
    if (std::find(e.inputs.begin(), e.inputs.end(), storage) != e.inputs.end())
        return;
    /* A loss of PyTorch has the memory of all that it is the mean of. */
    auto size = static_cast<int64_t>(t.is_contiguous() && !t.storage_offset() ? t.nbytes() : t.storage().nbytes());
    if (seen.what.exchanges)
        return tape_put(t.storage(), exchanged(t.storage(), t.scalar_type()));
    if (e.brings)
        return tape_put(t.storage(), t.scalar_type() == e.brought_type && t.is_contiguous() && covers_storage(t) ?
                        brought(t.storage(), t.scalar_type()) : nullptr);
    int64_t most = e.is_likely ? KNOWN_MOST : is_float(t) ? UNKNOWN_MOST : KNOWN_MOST;
    if (size > most && !is_noted(seen.what, e, t) && t.scalar_type() != at::kBool) {
        if (tape_find(t.storage()))
            tape_put(t.storage(), nullptr);
        return;
    }
    VersionP v = new_version(size);
    describe_plausible(*v, seen.what, place, t, e.shapes, e.like.get(), e.score.get(), e.is_itself);
    if (!e.values.empty() && place < e.values.size() && e.values[place].sizes() == t.sizes()) {
        v->bytes = bytes_of(e.values[place], t, size);
        v->is_known = e.is_known;
        v->is_likely = e.is_likely;
    } else if (e.call && e.values.empty()) {
        v->call = e.call;
        v->depth = e.depth;
        v->is_known = e.is_known;
        v->is_likely = e.is_likely;
        e.call->results.push_back({static_cast<int>(place), element, v, c10::DimVector(t.sizes()), c10::DimVector(t.strides()), t.storage_offset(),
                                   t.scalar_type()});
    } else {
        make_up(*v, seen.what);
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
