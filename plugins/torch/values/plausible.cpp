/*
 * plausible.cpp: the policy for values that were not computed. What the program makes of such values is computed from them, as far as it is small:
 * so a softmax sums to 1, and boxes that were chosen do not overlap.
 *
 *     number       normal, with the deviation 1      loss       ln(classes) or 0.5, and falls each time one is asked for
 *     positive     0.1 to 1                          index      in the middle third of its range: special tokens are at its ends
 *     probability  a softmax of numbers              no, yes    of tests: not a NaN, not infinite, all of it
 *
 * The same version has the same values whenever it is computed, and none is infinite or NaN. --unknown zero makes all of them 0 (and all tests no);
 * --unknown largest changes only what is counted (reads.cpp).
 *
 * LOCKING: the tape's lock.
 */
#include "plausible.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>

namespace cenote_values
{

Policy policy = Policy::typical;

static constexpr double FALL = 0.9;     /* from one loss that is asked for to the next. Chosen: a loop until loss < 0.01 ends after 60 */
static constexpr double LEAST = 1e-30;
static double fallen = 1;

int64_t Shape::count() const
{
    int64_t n = 1;
    for (int64_t size : sizes)
        n *= size;
    return n;
}

/* How many there are to choose from. */
static int64_t choices(const Operator &what, const at::Tensor &result, const std::vector<Shape> &arguments)
{
    if (arguments.empty() || !arguments[0].is_tensor)
        return 1;
    const Shape &from = arguments[0];
    auto rank = static_cast<int64_t>(from.sizes.size());
    if (what.name == "aten::multinomial")
        return rank ? from.sizes.back() : 1;
    size_t at = what.name == "aten::topk" || what.name == "aten::kthvalue" ? 2 : 1;
    int64_t dimension = at < arguments.size() && arguments[at].number != INT64_MIN ? arguments[at].number : INT64_MIN;
    if (dimension == INT64_MIN || !rank)
        return what.name.find("arg") != std::string::npos ? from.count() : result.dim() ? result.size(-1) : 1;
    return from.sizes[dimension < 0 ? dimension + rank : dimension];
}

/* ln(classes), which is what a model says that has learnt nothing; a sum of such if nothing divides it. */
static double loss_scale(const Operator &what, size_t place, const at::Tensor &result, const std::vector<Shape> &arguments)
{
    if (what.name.find("nll_loss") == std::string::npos || arguments.empty() || arguments[0].sizes.empty() || result.dim())
        return 0.5;
    int64_t classes = std::max<int64_t>(2, arguments[0].sizes[arguments[0].sizes.size() > 1 ? 1 : 0]);
    auto rows = static_cast<double>(arguments[0].count()) / static_cast<double>(classes);
    if (place == 1)
        return std::max(rows, 1.0); /* total_weight */
    bool sums = arguments.size() > 3 && arguments[3].number == 2;
    return std::log(static_cast<double>(classes)) * (sums ? rows : 1.0);
}

/* `first`: a version of what the result was made of, or NULL. */
void describe_plausible(Version &v, const Operator &what, size_t place, const at::Tensor &result, const std::vector<Shape> &arguments,
                        const Version *first)
{
    v.type = result.scalar_type();
    v.is_truth = what.is_truth || (what.moves && first && first->is_truth);
    v.falls = what.falls && result.is_floating_point() && result.numel() == 1;
    v.fill = what.fill;
    bool is_second = place > 0;
    if (what.chooses && (is_second || what.fill == Fill::index)) {
        v.fill = Fill::index;
        v.range = choices(what, result, arguments);
    } else if (!what.has_fill && first && first->type == v.type) {
        v.fill = first->fill;
        v.range = first->range;
        v.scale = first->scale;
    }
    if (v.falls && v.fill == Fill::positive)
        v.fill = Fill::loss; /* the same each time, but that it falls */
    if (v.fill == Fill::loss)
        v.scale = static_cast<float>(loss_scale(what, place, result, arguments));
}

static at::Tensor whole_numbers(const Version &v, c10::IntArrayRef sizes, c10::ScalarType type, at::Generator &generator)
{
    auto wide = at::TensorOptions().dtype(at::kLong);
    bool is_index = v.fill == Fill::index && v.range > 1 && policy != Policy::zero;
    if (!is_index)
        return at::full(sizes, v.fill == Fill::index || v.fill == Fill::zero || v.fill == Fill::no || policy == Policy::zero ? 0 : 1,
                        at::TensorOptions().dtype(type));
    int64_t low = v.range / 3, high = std::max(low + 1, v.range / 3 * 2);
    int64_t last = sizes.empty() ? 1 : sizes.back();
    if (last > 1 && last <= high - low) { /* several of one row are different ones */
        auto start = at::empty(sizes, wide).random_(0, high - low, generator).select(-1, 0).unsqueeze(-1);
        return start.add(at::arange(last, wide)).remainder(high - low).add(low).to(type);
    }
    return at::empty(sizes, wide).random_(low, high, generator).to(type);
}

at::Tensor plausible(const Version &v, c10::IntArrayRef sizes, c10::ScalarType type, uint64_t variation)
{
    auto generator = at::detail::createCPUGenerator((v.number + variation * 31) * 0x9E3779B97F4A7C15ull + 12345);
    auto options = at::TensorOptions().dtype(at::kFloat);
    if (type == at::kBool)
        return at::full(sizes, v.fill == Fill::yes || v.fill == Fill::one, at::TensorOptions().dtype(type));
    if (c10::isIntegralType(type, false))
        return whole_numbers(v, sizes, type, generator);
    if (!c10::isFloatingType(type) || c10::elementSize(type) < 2 || policy == Policy::zero)
        return at::zeros(sizes, at::TensorOptions().dtype(type));
    at::Tensor made;
    switch (v.fill) {
    case Fill::one:
    case Fill::yes:
        made = at::ones(sizes, options);
        break;
    case Fill::zero:
    case Fill::no:
        made = at::zeros(sizes, options);
        break;
    case Fill::loss:
        made = at::full(sizes, v.scale, options);
        break;
    case Fill::positive:
        made = at::empty(sizes, options).uniform_(0.1, 1.0, generator);
        break;
    default:
        made = at::empty(sizes, options).normal_(0, 1, generator);
    }
    if (v.fill == Fill::probability)
        made = made.dim() ? at::softmax(made, -1) : at::full_like(made, 0.5);
    if (v.fill == Fill::log_probability)
        made = made.dim() ? at::log_softmax(made, -1) : at::full_like(made, -0.7);
    if (v.fill == Fill::sorted && made.dim())
        made = std::get<0>(made.sort(-1, true));
    return made.to(type);
}

/* Each unknown loss or distance that the program looks at is smaller than the last one; a share of right answers comes closer to 1. */
void let_fall(at::Tensor &number, bool is_share)
{
    if (policy == Policy::zero)
        return;
    if (is_share)
        number = at::rsub(at::rsub(number, 1).mul(fallen), 1);
    else
        number = number.mul(fallen);
    fallen = std::max(fallen * FALL, LEAST);
}

} // namespace cenote_values
