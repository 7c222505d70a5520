/*
 * methods.cpp: which methods of methods.def this PyTorch does not call as cenote has them: there PyTorch's own defaults answer. The compiler knows.
 */
#include "adapter.h"

#include "install.h"

#include <torch/headeronly/version.h>

namespace cenote_torch
{

/* The type that a method of Adapter would have in the base class. */
template <class R, class... A> auto in_base(R (Adapter::*)(A...)) -> R (Base::*)(A...);
template <class R, class... A> auto in_base(R (Adapter::*)(A...) const) -> R (Base::*)(A...) const;

#define OVERRIDES(name)                                                                                                                              \
    ([]<class B, class M>() { return requires { static_cast<M>(&B::name); }; }).template operator()<Base, decltype(in_base(&Adapter::name))>()

static std::string lost_methods()
{
    std::string lost;
#define METHOD(name, since, loss)                                                                                                                    \
    if (!OVERRIDES(name) && TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 200 + (since))                                                        \
        lost += std::string(lost.empty() ? "" : "; ") + #name ": " loss;
#include "methods.def"
#undef METHOD
    return lost;
}

} // namespace cenote_torch

const char *cenote_torch_lost(void)
{
    static const std::string lost = cenote_torch::lost_methods();
    return lost.c_str();
}
