/* evaluation.h: computes versions, on the CPU; see evaluation.cpp. LOCKING: the tape's lock. */
#pragma once

#include <tape.h> /* beside this file */

#include <ATen/core/stack.h>

namespace cenote_values
{

/* No operator that is called meanwhile is seen by the tape, autograd, autocast or a transform. This thread computes alone: what is computed is small,
 * and threads of OpenMP wait for each other by spinning. Beside other programs that took more time than all else. */
class OnCpu {
public:
    OnCpu();
    ~OnCpu();
    OnCpu(const OnCpu &) = delete;
    OnCpu &operator=(const OnCpu &) = delete;

private:
    int threads_;
    c10::impl::ForceDispatchKeyGuard keys_;
    c10::InferenceMode inference_;
    at::NoGradGuard grad_;
};

/* How sure values are: what is known is likely, too. */
struct Sure {
    bool is_known = true, is_likely = true;
};

struct Value {
    at::Tensor tensor;  /* on the CPU; not to be written to */
    bool is_known;
    bool is_likely = false;
};

Value value_of(const at::Tensor &tensor);    /* the program looks at it */
Value value_in_memory(const Operand &o, const Version &upload); /* of the same storage; what was written there since is not seen */
/* Where an index says that the call writes: a mask of the storage's elements. */
bool compute_places(const Call &call, at::Tensor &mask);
/* All results of a call that was not recorded, after its arguments on the stack; false: it cannot be computed. */
bool compute_now(Call &call, torch::jit::Stack &out, Sure &sure);
void evaluate(Version &version);
void settle(Version &version);   /* depends on no call afterwards: computed, or unknown if that is too much work */
uint64_t computed();    /* calls so far */

} // namespace cenote_values
