/*
 * operators.cpp: the tables behind operators.h. A name that stands nowhere here is an operator whose schema tells everything.
 */
#include "operators.h"

#include <pthread.h>

#include <initializer_list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace cenote_values
{

using Names = std::unordered_set<std::string>;

/* Results without values, questions, and marks. */
static const Names passing = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided", "aten::set_",
    "aten::resize_", "aten::resize_as_", "aten::record_stream", "aten::is_pinned", "aten::_version", "aten::_assert_async", "aten::lift",
    "aten::_unsafe_view", "aten::_reshape_alias", "aten::unsafe_split", "aten::unsafe_chunk", "aten::unsafe_split_with_sizes"};

static const Names counting = {"aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "torchvision::nms", "aten::_coalesce"};
/* Beside those that PyTorch marks: their sizes or results depend on values. */
static const Names opening = {"aten::histc", "aten::is_nonzero", "aten::_to_sparse", "aten::_to_sparse_csr", "aten::_to_sparse_csc",
    "aten::_to_sparse_bsr", "aten::_to_sparse_bsc"};

static const Names products = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mv", "aten::addmv", "aten::addmm_",
    "aten::baddbmm_", "aten::addr", "aten::_addmm_activation", "aten::dot", "aten::vdot"};

/* Parts of names. */
static const char *const heavy[] = {"conv", "cudnn", "scaled_dot_product", "_attention", "linalg_", "lstm", "gru", "rnn", "fft", "grid_sampler",
    "ctc", "_scaled_mm", "grouped_mm", "weight_int", "roi_", "cdist", "batch_norm", "embedding_dense_backward", "layer_norm_backward",
    "unfold", "sparse",
    "nested", "quantize", "_pack_padded", "_thnn_", "segment_"};

/* What they write does not depend on what was there, if they write all of it. */
static const Names replacing = {"aten::zero_", "aten::fill_", "aten::copy_", "aten::normal_", "aten::uniform_", "aten::random_", "aten::bernoulli_",
    "aten::exponential_", "aten::log_normal_", "aten::geometric_", "aten::cauchy_", "aten::arange", "aten::randperm"};

static const Names placing = {"aten::scatter_", "aten::index_copy_", "aten::index_put_", "aten::_index_put_impl_", "aten::index_fill_",
    "aten::masked_fill_"};
static const Names keeping = {"aten::addcdiv_", "aten::addcmul_", "aten::lerp_"};
static const Names choosing = {"aten::argmax", "aten::argmin", "aten::multinomial", "aten::topk", "aten::sort", "aten::argsort", "aten::kthvalue"};
static const Names choosing_few = {"aten::argmax", "aten::argmin", "aten::multinomial", "aten::topk", "aten::max", "aten::min"};
static const Names choosing_second = {"aten::max", "aten::min", "aten::mode", "aten::median"}; /* with a dimension: values and indices */
static const Names truths = {"aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge", "aten::logical_and", "aten::logical_or",
    "aten::logical_not", "aten::logical_xor", "aten::isnan", "aten::isinf", "aten::isfinite", "aten::all", "aten::any", "aten::isin",
    "aten::_is_all_true", "aten::_is_any_true"};
/* Of masks. A test that is all of a made-up one is true, and one that is any of it is not. */
static const Names joining = {"aten::logical_and", "aten::logical_or", "aten::logical_xor", "aten::logical_not", "aten::bitwise_and",
    "aten::bitwise_or", "aten::bitwise_xor", "aten::bitwise_not", "aten::mul", "aten::all", "aten::any", "aten::_is_all_true", "aten::_is_any_true",
    "aten::sum", "aten::mean", "aten::count_nonzero"};
static const Names reducing = {"aten::mean", "aten::sum", "aten::max", "aten::amax"};
static const Names arithmetic = {"aten::neg", "aten::add", "aten::sub", "aten::rsub", "aten::mul", "aten::div", "aten::_to_copy", "aten::clone"};

static const std::unordered_map<std::string, Fill> fills = {{"aten::_softmax", Fill::probability}, {"aten::sigmoid", Fill::fraction},
    {"aten::_safe_softmax", Fill::probability}, {"aten::_log_softmax", Fill::log_probability}, {"aten::log_sigmoid_forward", Fill::log_fraction},
    {"aten::var", Fill::positive}, {"aten::std", Fill::positive}, {"aten::abs", Fill::positive}, {"aten::exp", Fill::positive},
    {"aten::square", Fill::positive}, {"aten::sqrt", Fill::positive}, {"aten::rsqrt", Fill::positive}, {"aten::softplus", Fill::positive},
    {"aten::relu", Fill::positive}, {"aten::rand", Fill::positive}, {"aten::uniform_", Fill::positive}, {"aten::mean", Fill::positive},
    {"aten::sum", Fill::positive}, {"aten::amax", Fill::positive}, {"aten::all", Fill::yes}, {"aten::isfinite", Fill::yes}, {"aten::ones", Fill::one},
    {"aten::ones_like", Fill::one}, {"aten::zeros", Fill::zero}, {"aten::zeros_like", Fill::zero}, {"aten::zero_", Fill::zero},
    {"aten::new_zeros", Fill::zero}, {"aten::isnan", Fill::no}, {"aten::isinf", Fill::no},
    {"aten::any", Fill::no}, {"aten::_is_any_true", Fill::no}, {"aten::_is_all_true", Fill::yes}, {"aten::argsort", Fill::index},
    {"aten::argmax", Fill::index}, {"aten::argmin", Fill::index}, {"aten::multinomial", Fill::index}, {"aten::topk", Fill::sorted},
    {"aten::sort", Fill::sorted},
    {"aten::dist", Fill::positive}, {"aten::linalg_vector_norm", Fill::positive}, {"aten::norm", Fill::positive},
    {"aten::_foreach_norm", Fill::positive}};

static bool has(const std::string &text, const char *part)
{
    return text.find(part) != std::string::npos;
}

static bool starts(const std::string &text, std::initializer_list<const char *> beginnings)
{
    for (const char *beginning : beginnings)
        if (text.rfind(beginning, 0) == 0)
            return true;
    return false;
}

Reading reading_of(const std::string &name)
{
    if (name == "aten::_local_scalar_dense")
        return Reading::scalar;
    if (name == "aten::equal")
        return Reading::answer;
    if (name == "aten::copy_" || name == "aten::_to_copy")
        return Reading::copy; /* if it goes to the host */
    if (name == "aten::index")
        return Reading::mask; /* if an index is one */
    if (name == "aten::index_put_" || name == "aten::_index_put_impl_")
        return Reading::put_mask;
    return counting.count(name) ? Reading::count : Reading::nothing;
}

static void read_schema(Operator &o, const c10::FunctionSchema &schema)
{
    bool writes = false, makes = false;
    for (const auto &argument : schema.arguments()) {
        bool write = argument.alias_info() && argument.alias_info()->isWrite();
        o.writes.push_back(write);
        writes |= write;
    }
    for (const auto &result : schema.returns())
        makes |= !result.alias_info();
    o.passes = passing.count(o.name) || starts(o.name, {"prim::", "profiler::"}) || (!writes && !makes && !schema.returns().empty());
}

static void read_tables(Operator &o, bool depends)
{
    const std::string &n = o.name, &overload = o.overload;
    bool is_foreach = starts(n, {"aten::_foreach_", "aten::_fused_", "aten::_amp_"});
    o.reading = reading_of(n);
    o.is_trusted = starts(n, {"aten::", "prims::", "torchvision::"});
    for (const char *part : heavy)
        o.is_heavy |= has(n, part) && n != "aten::linalg_vector_norm";
    o.is_product = products.count(n);
    o.replaces = replacing.count(n) || has(overload, "out");
    o.places = placing.count(n) && !has(overload, "reduce");
    o.keeps = is_foreach || keeping.count(n);
    o.chooses = choosing.count(n) || (choosing_second.count(n) && has(overload, "dim"));
    o.chooses_few = o.chooses && choosing_few.count(n);
    o.is_truth = truths.count(n);
    o.compares = n == "aten::eq";
    o.joins = joining.count(n);
    o.is_linear = has(n, "linalg_");
    o.opens |= opening.count(n);
    o.lifts = n == "aten::lift_fresh";
    o.exchanges = starts(n, {"c10d::", "_c10d_functional::", "symm_mem::"});
    bool is_loss = has(n, "loss") || has(n, "cross_entropy");
    o.is_distance = is_loss || n == "aten::linalg_vector_norm" || n == "aten::norm" || n == "aten::dist" || n == "aten::_foreach_norm";
    o.makes_scores = o.is_distance || (reducing.count(n) && !has(overload, "dim") && !has(overload, "other"));
    o.is_arithmetic = arithmetic.count(n);
    auto fill = fills.find(n);
    o.has_fill = is_loss || o.is_truth || fill != fills.end();
    /* V11: what depends on values inside is answered as a whole, or its parts are. */
    o.opens |= depends && o.reading == Reading::nothing && !o.is_heavy;
    o.fill = is_loss ? Fill::positive : fill != fills.end() ? fill->second : o.is_truth ? Fill::half : Fill::number;
}

/* A library that is unloaded takes its operators along, and another one's can get their addresses. */
bool is_operator(const Operator &what, const c10::OperatorHandle &handle)
{
    const c10::OperatorName &name = handle.operator_name();
    return what.name == name.name && what.overload == name.overload_name && what.writes.size() == handle.schema().arguments().size();
}

static std::mutex operators_lock;

void operators_survive_forks()
{
    pthread_atfork([] { operators_lock.lock(); }, [] { operators_lock.unlock(); }, [] { operators_lock.unlock(); });
}

const Operator &operator_of(const c10::OperatorHandle &handle)
{
    static std::unordered_map<const void *, Operator *> known;  /* never freed: a recorded call may have one of an operator that is gone */
    std::lock_guard<std::mutex> hold(operators_lock);
    Operator *&found = known[&handle.operator_name()];
    if (found && is_operator(*found, handle))
        return *found;
    auto made = std::make_unique<Operator>();
    made->name = handle.operator_name().name;
    made->hash = std::hash<std::string>()(made->name);
    made->overload = handle.operator_name().overload_name;
    read_schema(*made, handle.schema());
    read_tables(*made, handle.hasTag(at::Tag::data_dependent_output) || handle.hasTag(at::Tag::dynamic_output_shape));
    made->is_random = handle.hasTag(at::Tag::nondeterministic_seeded);
    using c10::DispatchKey;
    made->is_composite = handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
        !handle.hasKernelForDispatchKey(DispatchKey::CUDA) && !made->lifts;
    return *(found = made.release());
}

} // namespace cenote_values
