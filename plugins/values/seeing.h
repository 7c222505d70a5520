/*
 * seeing.h: one call of an operator, while it is under way. Made and dropped by seeing.cpp; recording.cpp and reading.cpp do the two halves of its
 * work.
 */
#pragma once

#include <evaluation.h> /* beside this file */
#include <plausible.h>

#include <ATen/core/stack.h>

namespace cenote_values
{

/* The arguments on the stack, and what was found out about them. */
struct Seen {
    const c10::OperatorHandle &handle;
    const Operator &what;
    torch::jit::Stack *stack;
    size_t first, count;        /* of arguments on the stack */
    c10::Device device = c10::Device(c10::kCPU); /* a GPU, once one was found */
    bool has_gpu = false;
    bool is_foreign = false;    /* a tensor has code of its own: that runs, and is seen */
    bool is_strange = false;    /* a tensor without plain elements: sparse, nested, quantized, a conjugate */
    bool is_itself = false;     /* the first two arguments are the same tensor */

    c10::IValue &argument(size_t i) const { return (*stack)[first + i]; }
};

/* What a call does to versions: filled in before it runs, applied after. */
struct Effect {
    std::shared_ptr<Call> call;         /* NULL: it is not computed */
    std::vector<Shape> shapes;
    VersionP like;                      /* of the first argument that has a version */
    VersionP score;                     /* of the first argument that is one (V17) */
    c10::SmallVector<c10::StorageImpl *, 16> inputs;
    struct Write {
        c10::Storage storage;
        size_t operand;
        c10::ScalarType type;
        bool covers;
        size_t size;                    /* of the storage before the call */
    };
    c10::SmallVector<Write, 4> writes;
    std::vector<at::Tensor> values;     /* of the results, if they are there already */
    bool is_known = true;
    bool is_likely = false;             /* V16: what it reads */
    bool is_itself = false;
    bool brings = false;                /* the host's bytes, as they are */
    c10::ScalarType brought_type = c10::ScalarType::Undefined;
    bool writes_strangely = false;      /* to a tensor without plain elements: whatever its storages are */
    int depth = 0;
};

template <class F> void each_tensor(const c10::IValue &value, F f, int element = -1) /* f(tensor, element of the list or -1) */
{
    if (value.isTensor()) {
        f(value.toTensor(), element);
        return;
    }
    if (!value.isList())
        return;
    int n = 0;
    for (const c10::IValue &one : value.toListRef()) {
        if (!one.isTensor() && !one.isList() && !one.isNone())
            return;
        each_tensor(one, f, n++);
    }
}

/* Looks at values, past the program: an error is not the program's (V12). False: there was one. */
template <class F> bool guarded(F look)
{
    c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::Fake); /* what it asks PyTorch would wait for the tape's lock */
    try {
        look();
        return true;
    } catch (const std::exception &) {
        std::lock_guard<std::mutex> hold(tape_lock);
        tape_forget_all();
        return false;
    }
}

void run(const Seen &seen, c10::DispatchKeySet keys);

/* recording.cpp. LOCKING: the tape's lock for the first three, read_version and write_out. */
Effect   effect_of(const Seen &seen);
void     apply(const Seen &seen, Effect &effect);
void     fail(Effect &effect);      /* the operator has thrown */
std::shared_ptr<Call> call_of(const Seen &seen);
VersionP read_version(const at::Tensor &tensor, int64_t most);
void     write_out(const Seen &seen);
void     hand_on(const at::Tensor &tensor);    /* takes the lock */
void     set_capturing(bool on);
uint64_t recorded();

/* reading.cpp */
bool     reads(const Seen &seen);
void     read(const Seen &seen, c10::DispatchKeySet keys, bool is_inner);   /* runs the call, too */
uint64_t known_reads();
bool     begin_reading();   /* false: not with this PyTorch */

/* seeing.cpp */
void run_seen(const Seen &seen, c10::DispatchKeySet keys, Effect *effect);
bool begin_seeing();
const Operator &operator_here(const c10::OperatorHandle &handle);
void see(const c10::OperatorHandle &handle, c10::DispatchKeySet keys, torch::jit::Stack *stack);
void see_this_thread(bool on);
bool sees_this_thread();    /* or it looks past the program: guarded */
bool is_inside();           /* an operator that runs as one */
bool is_inside_library();   /* ... by a library of NVIDIA's, whose errors the simulated one leaves in memory */

} // namespace cenote_values
