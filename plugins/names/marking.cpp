/*
 * marking.cpp: which blocks hold which tensors of modules and optimizers.
 *
 * Python gives names (labels/marker.py), which takes microseconds for each tensor. So it does that when something is new: the functions `lacks_...`
 * look, in nanoseconds for each tensor, whether a tensor of a module or optimizer lies in a block that has no holder of its kind. What they cannot
 * look into (sparse tensors, subclasses other than DTensor) lacks nothing.
 *
 * A gradient is known before autograd adds it up: a hook on the parameter sees it, or the operation that adds it up copies it.
 *
 * LOCKING: the functions that Python calls need Python's lock; the others take none but the ledger's.
 */
#include "marking.h"

#include "ledger.h"
#include "modules.h"
#include "places.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <memory>

namespace cenote_names {

constexpr int DEPTH_MAX = 64;       /* of modules inside each other; of an optimizer's state DEPTH_STATE */
constexpr int DEPTH_STATE = 4;
constexpr long LOOKED_MAX = 200000; /* modules in one look: they may be in a circle */
constexpr unsigned LOOK_EVERY = 16; /* our choice: see is_still_so */
constexpr size_t FOUND_MAX = 10000;

static Object *tensor_type, *parameter_type;
static std::atomic<int (*)(const void *, int)> set_kind{nullptr}; /* cenote_block_set_kind; NULL: another allocator */

/* A hook of autograd on a tensor that gradients are added up for, as C++ programs register it: Python does not show it. It carries the tensor's
 * number, and hears of each gradient before it becomes `.grad`. It ends with the tensor, or when the program sets the tensor's `_backward_hooks`. */
class Seen final : public torch::autograd::FunctionPreHook {
public:
    Seen(uint32_t number, unsigned epoch) : number(number), epoch(epoch) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list &gradients) override;
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &) const override {} /* compiled graphs go without it */

    std::atomic<uint32_t> number;
    std::atomic<unsigned> epoch;
};

static std::atomic<unsigned> epoch_now{1}; /* numbers of earlier ones mean nothing */
static std::atomic<bool> is_watching{false};

void marking_begin(Object *tensor, Object *parameter, int (*kind)(const void *, int))
{
    tensor_type = tensor;
    parameter_type = parameter;
    set_kind = kind;
}

/* --- tensors */

/* The tensor in an object of Python's; undefined if it is none of PyTorch's own types. */
static at::Tensor plain(Object *object)
{
    static Object *const data = python().text("_cdata");
    Held type(python().type(object));
    if (type.get() != tensor_type && type.get() != parameter_type)
        return {};
    Held number(python().attribute(object, data));
    if (!number) {
        python().clear();
        return {};
    }
    auto *impl = static_cast<c10::TensorImpl *>(python().as_pointer(number.get()));
    return impl ? at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl)) : at::Tensor();
}

/* The same, and of a DTensor the part that is here. */
static at::Tensor local(Object *object)
{
    static Object *const inner = python().text("_local_tensor");
    at::Tensor found = plain(object);
    if (found.defined())
        return found;
    Held part(python().attribute(object, inner));
    if (!part) {
        python().clear();
        return {};
    }
    return plain(part.get());
}

/* The start of the tensor's block; 0: it has no memory on a GPU, or none that can be looked at. */
static uint64_t address_of(const at::Tensor &tensor)
{
    if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != c10::kStrided || !tensor.unsafeGetTensorImpl()->has_storage())
        return 0;
    return reinterpret_cast<uint64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().data());
}

/* Whether the tensor is half of its block at most: a block of several tensors does not go by the name of one. As in marker.py. */
static bool is_part(const at::Tensor &tensor)
{
    return address_of(tensor) && 2 * tensor.nbytes() <= tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
}

static void hold(uint64_t at, Holder holder)
{
    if (!at)
        return;
    ledger_hold(at, holder);
    auto set = set_kind.load(std::memory_order_relaxed);
    if (set && kind_of(holder) <= WORKSPACES)
        set(reinterpret_cast<const void *>(at), static_cast<int>(kind_of(holder)));
}

static bool lacks(const at::Tensor &tensor, Kind kind, Kind also)
{
    uint64_t at = address_of(tensor);
    Holder holder = 0;
    return at && ledger_holder(at, &holder) && kind_of(holder) != kind && kind_of(holder) != also;
}

static Seen *seen_of(const at::Tensor &tensor)
{
    for (auto &hook : torch::autograd::impl::hooks(tensor))
        if (auto *seen = dynamic_cast<Seen *>(hook.get()))
            return seen;
    return nullptr;
}

/* The tensor in an object of any subclass of Tensor. No code of the program runs, unless it replaced `_cdata`. */
static at::Tensor any(Object *object)
{
    static Object *const data = python().text("_cdata");
    auto was = at::impl::PythonTorchFunctionTLS::get_disabled_state();
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
    Held number(python().attribute(object, data));
    at::impl::PythonTorchFunctionTLS::set_disabled_state(was);
    if (!number) {
        python().clear();
        return {};
    }
    auto *impl = static_cast<c10::TensorImpl *>(python().as_pointer(number.get()));
    return impl ? at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(impl)) : at::Tensor();
}

static uint32_t name_of(const at::Tensor &tensor)
{
    const Seen *seen = seen_of(tensor);
    return seen && seen->epoch == epoch_now ? seen->number.load() : UNNAMED;
}

static Object *nothing()
{
    python().take(python().none);
    return python().none;
}

static Object *answer(bool yes)
{
    return python().number(yes);
}

/* name(tensor, number): from now on gradients of the tensor go by that number. */
Object *marking_name(Object *const *arguments, ptrdiff_t count)
{
    at::Tensor tensor = count == 2 ? any(arguments[0]) : at::Tensor();
    if (!tensor.defined())
        return nothing();
    uint32_t number = static_cast<uint32_t>(python().as_number(arguments[1]));
    Seen *seen = seen_of(tensor);
    if (seen) {
        seen->number = number;
        seen->epoch = epoch_now.load();
    } else if (tensor.requires_grad() && tensor.is_leaf() && torch::autograd::impl::hooks(tensor).empty()) { /* PyTorch takes one */
        torch::autograd::impl::add_hook(tensor, std::make_unique<Seen>(number, epoch_now));
    }
    return nothing();
}

/* number_of(tensor): the number that `name` gave it, or -1. It is kept in the hook, and in the block if the program has removed the hook with its
 * own: a weak reference, of Python's or of C++'s, would keep PyTorch from swapping the tensor (torch.utils.swap_tensors, Module.to of DTensors), and
 * an attribute would be saved with it. */
Object *marking_number(Object *object)
{
    at::Tensor tensor = any(object);
    uint32_t number = tensor.defined() ? name_of(tensor) : UNNAMED;
    Holder holder = 0;
    if (number == UNNAMED && tensor.defined() && !is_part(tensor) && ledger_holder(address_of(tensor), &holder) && kind_of(holder) == PARAMETERS)
        number = holder & UNNAMED;
    return python().number(number == UNNAMED ? -1 : static_cast<long>(number));
}

/* hold(address, kind, number): the block at the address is held by the holder of that number. */
Object *marking_hold(Object *const *arguments, ptrdiff_t count)
{
    if (count == 3) {
        auto at = reinterpret_cast<uint64_t>(python().as_pointer(arguments[0]));
        auto kind = static_cast<uint32_t>(python().as_number(arguments[1])), number = static_cast<uint32_t>(python().as_number(arguments[2]));
        hold(at, kind << KIND_SHIFT | (number & UNNAMED));
    }
    return nothing();
}

/* --- what lacks a holder */

struct Look {
    ska::flat_hash_map<Object *, bool> seen;
    bool lacks = false;
};

static bool items_lack(Object *module, Object *name, Kind kind, Kind also)
{
    Held items(python().attribute(module, name));
    if (!items) {
        python().clear();
        return false;
    }
    ptrdiff_t at = 0;
    Object *key, *value;
    while (python().next(items.get(), &at, &key, &value)) {
        python().take(value); /* a collection of garbage may change the dictionary meanwhile */
        Held kept(value);
        if (value != python().none && lacks(local(value), kind, also))
            return true;
    }
    return false;
}

static void look_at_module(Object *module, Look &look, int depth)
{
    static Object *const parameters = python().text("_parameters"), *const buffers = python().text("_buffers");
    static Object *const modules = python().text("_modules");
    if (look.lacks || depth > DEPTH_MAX || look.seen.size() > LOOKED_MAX || !look.seen.emplace(module, true).second)
        return;
    look.lacks = items_lack(module, parameters, PARAMETERS, PARAMETERS) || items_lack(module, buffers, BUFFERS, PARAMETERS);
    Held inner(python().attribute(module, modules));
    if (!inner) {
        python().clear();
        return;
    }
    ptrdiff_t at = 0;
    Object *key, *value;
    while (!look.lacks && python().next(inner.get(), &at, &key, &value)) {
        python().take(value);
        Held kept(value);
        if (value != python().none)
            look_at_module(value, look, depth + 1);
    }
}

/* What the last look at an object found: a module, the state of an optimizer, a list of parameters. If nothing lacked a holder, that is still so, as
 * long as no block has ended that a module or an optimizer held, and no module was named. There are other ways to come to new tensors, so each
 * LOOK_EVERY-th call looks all the same. */
struct Found {
    uint64_t ended, named;
    ptrdiff_t size;
    unsigned calls;
    bool lacks;
};

static ska::flat_hash_map<Object *, Found> all_found;

/* A mode of the program sees each attribute of a tensor that is read: then nothing is looked at. */
template <class Function> static Object *look_at(Object *object, ptrdiff_t size, Function has_lack)
{
    if (at::impl::torch_function_mode_enabled())
        return answer(false);
    if (all_found.size() > FOUND_MAX) /* most of these objects are gone */
        all_found.clear();
    Found &found = all_found[object];
    Found now{ledger_ended(), modules_named(), size, found.calls + 1, false};
    bool is_so = found.calls % LOOK_EVERY && !found.lacks && found.ended == now.ended && found.named == now.named && found.size == now.size;
    found = now;
    bool lacks = !is_so && has_lack();
    all_found[object].lacks = lacks; /* code of the program may have run, and looked */
    return answer(lacks);
}

Object *marking_lacks_module(Object *module)
{
    return look_at(module, 0, [=] {
        Look look;
        look_at_module(module, look, 0);
        return look.lacks;
    });
}

static bool state_lacks(Object *value, int depth)
{
    const Python &p = python();
    Held type(p.type(value));
    if (type.get() == tensor_type || type.get() == parameter_type)
        return lacks(plain(value), OPTIMIZER, OPTIMIZER);
    if (type.get() == p.dict) {
        ptrdiff_t at = 0;
        Object *key, *inner;
        while (depth && p.next(value, &at, &key, &inner))
            if (state_lacks(inner, depth - 1))
                return true;
    } else if (type.get() == p.list || type.get() == p.tuple) {
        bool is_list = type.get() == p.list;
        for (ptrdiff_t i = 0; depth && i < (is_list ? p.list_size(value) : p.tuple_size(value)); i++)
            if (state_lacks(is_list ? p.list_item(value, i) : p.tuple_item(value, i), depth - 1))
                return true;
    } else {
        static Object *const inner = p.text("_local_tensor");
        static ska::flat_hash_map<Object *, bool> others; /* types that have none; a type that ends may be asked again */
        if (others.size() > 1000)
            others.clear();
        if (others.count(type.get()))
            return false;
        Held part(p.attribute(value, inner));
        if (part)
            return lacks(plain(part.get()), OPTIMIZER, OPTIMIZER);
        p.clear();
        others[type.get()] = true;
    }
    return false;
}

/* lacks_state(optimizer.state) */
Object *marking_lacks_state(Object *state)
{
    return look_at(state, python().dict_size(state), [=] {
        ptrdiff_t at = 0;
        Object *key, *value;
        while (python().next(state, &at, &key, &value))
            if (state_lacks(value, DEPTH_STATE))
                return true;
        return false;
    });
}

static bool gradient_lacks(Object *parameter)
{
    static Object *const grad = python().text("grad");
    at::Tensor tensor = plain(parameter);
    if (tensor.defined())
        return tensor.requires_grad() && (lacks(tensor, PARAMETERS, PARAMETERS) || lacks(tensor.grad(), GRADIENTS, PARAMETERS) ||
                                          (tensor.grad().defined() && name_of(tensor) == UNNAMED));
    Held gradient(python().attribute(parameter, grad));
    if (!gradient) {
        python().clear();
        return false;
    }
    return gradient.get() != python().none && lacks(local(gradient.get()), GRADIENTS, PARAMETERS);
}

/* lacks_gradients(list of the parameters of a group) */
Object *marking_lacks_gradients(Object *parameters)
{
    return look_at(parameters, python().list_size(parameters), [=] {
        for (ptrdiff_t i = 0; i < python().list_size(parameters); i++)
            if (gradient_lacks(python().list_item(parameters, i)))
                return true;
        return false;
    });
}

/* --- inputs: tensors that come from outside of modules, and are given to one. What another module made, or what autograd knows the making of, is
 * no input: a program may call the parts of its model one after the other. */

static bool is_input(const at::Tensor &tensor)
{
    uint32_t number = 0;
    Place place;
    uint64_t at = address_of(tensor);
    return at && !torch::autograd::impl::grad_fn_unsafe(tensor) && ledger_place(at, &number) && places_at(number, &place) && !place.path;
}

static void input(Object *value, int depth)
{
    const Python &p = python();
    Held type(p.type(value));
    if (type.get() == tensor_type) {
        at::Tensor tensor = plain(value);
        if (is_input(tensor))
            ledger_hold(address_of(tensor), uint32_t{INPUTS} << KIND_SHIFT);
    } else if (depth && type.get() == p.dict) {
        ptrdiff_t at = 0;
        Object *key, *inner;
        while (p.next(value, &at, &key, &inner))
            input(inner, depth - 1);
    } else if (depth && type.get() == p.tuple) {
        for (ptrdiff_t i = 0; i < p.tuple_size(value); i++)
            input(p.tuple_item(value, i), depth - 1);
    } else if (depth && type.get() == p.list) {
        for (ptrdiff_t i = 0; i < p.list_size(value); i++)
            input(p.list_item(value, i), depth - 1);
    }
}

Object *marking_inputs(Object *arguments)
{
    if (!at::impl::torch_function_mode_enabled())
        input(arguments, 3);
    return nothing();
}

/* --- gradients, in threads of autograd */

static void hold_gradient(const at::Tensor &gradient, Holder holder)
{
    if (!gradient.defined() || gradient.key_set().has(c10::DispatchKey::Python))
        return;
    if (is_part(gradient))
        holder = uint32_t{GRADIENTS} << KIND_SHIFT | UNNAMED;
    if (gradient.layout() == c10::kSparse) {
        hold(address_of(gradient._indices()), holder);
        hold(address_of(gradient._values()), holder);
    } else {
        hold(address_of(gradient), holder);
    }
}

torch::autograd::variable_list Seen::operator()(const torch::autograd::variable_list &gradients)
{
    if (is_watching && epoch == epoch_now)
        for (const at::Tensor &gradient : gradients)
            hold_gradient(gradient, uint32_t{GRADIENTS} << KIND_SHIFT | number);
    return gradients;
}

/* A block that the operation has allocated that adds up a gradient: it is a copy of the gradient. */
void marking_added_up(uint64_t at)
{
    auto node = torch::autograd::get_current_node();
    auto *adds = node ? dynamic_cast<torch::autograd::AccumulateGrad *>(node.get()) : nullptr;
    if (adds && adds->variable.defined())
        hold(at, uint32_t{GRADIENTS} << KIND_SHIFT | name_of(adds->variable));
}

void marking_watch(bool on)
{
    is_watching = on;
}

void marking_clear()
{
    epoch_now++;
}

} // namespace cenote_names
