/*
 * plausible.cpp: the policy for values that were not computed. What the program makes of such values is computed from them, as far as it is small:
 * so a softmax sums to 1, and boxes that were chosen do not overlap.
 *
 *     number       normal, with the deviation 1      score      a number that falls, see below
 *     positive     0.1 to 1                          index      in the middle third of its range: special tokens are at its ends; different ones in
 *     probability  a softmax of numbers                         a row, so that all of a range are a permutation
 *     no, yes      not a NaN, not infinite, all      half       of a comparison: every other one. So masks that are counted, summed (share) or
 *                  of it, the same as itself                    chosen by agree
 *
 * Rule V10: all ways to ask for the count of a mask that was made up have one answer, and a test that is all of it is true, at every size.
 *
 * Rule V17: a *score* is the number that a loss of PyTorch's makes, or the mean, the sum, the largest one or the norm of a whole tensor. It begins at
 * ln(classes) for a cross entropy, at 1 otherwise, or at the last one that the program could know and has read. Each further one of its course is
 * smaller. What arithmetic makes of scores (-x, 1 - x, x / 4, x + y) is as large as the first of them, so a loss that is made so falls, too.
 * A course is of all scores that one operator makes, with gradients or without them. Once it has fallen as far as it can it rises and so on, but for
 * losses of PyTorch's and norms: programs wait for a mean to be large, and end if a loss is. A share or a sum of right answers (of ==, as floating
 * point) comes closer to all, and what arithmetic makes of it is computed.
 * If the program has an optimizer, a course moves once for each of its steps, because an evaluation of many batches is of one model.
 *
 * The same version has the same values whenever it is computed, and none is infinite or NaN. --unknown zero makes all of them 0 (and all tests no);
 * --unknown largest makes every choice of a mask and draws other numbers, none of them below 0.
 *
 * LOCKING: the tape's lock.
 */
#include "plausible.h"

#include "choosing.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

namespace cenote_values
{

Policy policy = Policy::typical;

static constexpr double STEP = 1. / 40; /* of the first score, from one to the next, as long as that is less than a tenth. Chosen. */
static constexpr double FALL = 0.9;     /* ... from then on. Chosen: a loop until loss < 0.01 ends after 61 */
static constexpr double LEAST = 1e-12, LEAST_HALF = 1e-3;   /* a logarithm of it is finite, in 16 bits, too */
static constexpr double MOST = 1e6, MOST_HALF = 1e4;        /* what a number rises to if all that falling could end has ended. Chosen. */
static constexpr int PATIENCE = 280;                        /* scores until 1 has fallen to LEAST */
static constexpr int WAITS = 1000;  /* scores without a step of the optimizer, after which it counts as a loop that waits. Chosen. */

/* Of the scores that one operator makes. */
struct Course {
    double level = 1;       /* the first one */
    double by = 1, last = 1;
    uint64_t step = 0;      /* in which the last one was made */
    int asked = 0;          /* how often, in that step */
    int falls = 0;          /* since it turned */
    bool rises = false;
};
static std::unordered_map<uint64_t, Course> courses;        /* by Version::course */
static uint64_t steps;                                      /* of optimizers */

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

/* What a model says that has learnt nothing. */
static float first_of(const Operator &what, const std::vector<Shape> &arguments)
{
    if (what.name.find("nll_loss") == std::string::npos || arguments.empty() || arguments[0].sizes.empty())
        return 1;
    const c10::DimVector &sizes = arguments[0].sizes;
    return std::log(static_cast<float>(std::max<int64_t>(2, sizes[sizes.size() > 1 ? 1 : 0])));
}

/* Operators that leave the shape as it is see rows that a view has joined: the words of several beams. */
static int64_t row_of(const at::Tensor &result, const std::vector<Shape> &arguments, const Version *first)
{
    int64_t row = result.dim() ? result.size(-1) : 1;
    bool is_same = !arguments.empty() && arguments[0].is_tensor && result.sizes() == c10::IntArrayRef(arguments[0].sizes);
    return is_same && first ? row_of_choices(row, first->row) : row;
}

bool is_free_mask(const Version &v)
{
    return v.is_made_up && v.type == at::kBool;
}

/* Tests that have one answer whatever the values are, as long as they are numbers; and what is made of masks. */
static void describe_truth(Version &v, const Operator &what, const at::Tensor &result, const std::vector<Shape> &arguments, const Version *first,
                           bool is_itself)
{
    const std::string &n = what.name;
    bool is_equal = n == "aten::eq" || n == "aten::le" || n == "aten::ge", is_other = n == "aten::ne" || n == "aten::lt" || n == "aten::gt";
    if (is_itself && (is_equal || is_other))
        v.fill = is_equal ? Fill::yes : Fill::no;
    if (arguments.size() > 1 && arguments[1].is_infinite && (n == "aten::eq" || n == "aten::ne"))
        v.fill = n == "aten::ne" ? Fill::yes : Fill::no;
    if (!first || first->type != at::kBool || !what.joins)
        return;
    if (n.find("_not") != std::string::npos)
        v.fill = first->fill == Fill::yes ? Fill::no : first->fill == Fill::no ? Fill::yes : first->fill;
    if ((n == "aten::sum" || n == "aten::mean" || n == "aten::count_nonzero") && !arguments.empty()) {
        v.range = n == "aten::mean" ? 1 : arguments[0].count() / std::max<int64_t>(result.numel(), 1);
        v.fill = first->fill == Fill::yes ? Fill::one : first->fill == Fill::no ? Fill::zero : Fill::share;
    }
}

bool is_score(const Version &v)
{
    return v.course && v.fill == Fill::score;
}

/* V17. `of`: a score among its arguments, or NULL. */
static void describe_score(Version &v, const Operator &what, const at::Tensor &result, const std::vector<Shape> &arguments, const Version *first,
                           const Version *of)
{
    if (!result.is_floating_point() || result.numel() != 1 || v.fill == Fill::one)
        return;
    bool is_right = first && first->fill == Fill::right, is_whole = !arguments.empty() && arguments[0].count() > 1;
    if (of && (what.makes_scores || what.is_arithmetic)) {
        v.fill = Fill::score;
        v.course = of->course;
    } else if (what.is_distance || (what.makes_scores && is_whole && (is_right || !first || first->type != at::kBool))) {
        v.fill = is_right ? Fill::right : Fill::score;
        v.range = what.name == "aten::sum" ? arguments[0].count() : 1;
        v.course = (what.hash << 3) + 4 * is_right + 2 * at::GradMode::is_enabled() + what.is_distance;
        auto [course, is_new] = courses.try_emplace(v.course);
        if (is_new)
            course->second.level = first_of(what, arguments);
    }
}

/* A word of a row, or some of them. */
static Fill in_part(Fill whole)
{
    return whole == Fill::probability ? Fill::fraction : whole == Fill::log_probability ? Fill::log_fraction : whole;
}

/* `first`: a version of what the result was made of, or NULL. `of`: a score among that, or NULL.
 * `is_itself`: its first two arguments are the same tensor. */
void describe_plausible(Version &v, const Operator &what, size_t place, const at::Tensor &result, const std::vector<Shape> &arguments,
                        const Version *first, const Version *of, bool is_itself)
{
    v.type = result.scalar_type();
    v.row = row_of(result, arguments, first);
    v.fill = what.fill;
    if (what.chooses && (place > 0 || what.fill == Fill::index)) {
        v.fill = Fill::index;
        v.range = choices(what, result, arguments);
        int64_t row = what.chooses_few && first ? row_of_choices(v.range, first->row) : v.range;
        if (v.row <= row / 6)
            v.range = row; /* of the first row of those that were joined: it is as good to choose from as all are */
    } else if (!what.has_fill && first && (first->type == v.type || first->fill == Fill::right)) {
        v.fill = v.row < first->row ? in_part(first->fill) : first->fill;
        v.range = first->range;
    }
    if (what.name == "aten::sum" && first && first->fill == Fill::probability && result.numel() < arguments[0].count())
        v.fill = Fill::one; /* of each row */
    if (what.compares && arguments.size() > 1 && !arguments[1].sizes.empty()) /* with answers, not with the end of a sentence */
        v.fill = Fill::right;
    describe_truth(v, what, result, arguments, first, is_itself);
    if (!place)
        describe_score(v, what, result, arguments, first, of);
}

/* One number that a program reads is mostly a loss or a norm, which a compiled function, a graph or a kernel of its own has made. A flag is false,
 * and a mask is half of what it could be. */
void describe_unseen(Version &v, c10::ScalarType type)
{
    v.type = type;
    if (type == at::kBool && v.size > 1) {
        v.is_made_up = true;
        v.fill = Fill::half;
    }
    if (!c10::isFloatingType(type) || v.size != static_cast<int64_t>(c10::elementSize(type)))
        return;
    v.is_made_up = true;
    v.fill = Fill::score;
    v.row = 1;
    v.course = UNSEEN;
}

/* A version is computed whole, without its shape: the rows that it had. */
static at::Tensor in_rows(const Version &v, const at::Tensor &t)
{
    int64_t last = t.dim() ? t.size(-1) : 1;
    if (t.dim() == 1 && v.row > 0 && last % v.row == 0)
        last = v.row;
    return t.view({-1, std::max<int64_t>(last, 1)});
}

static at::Tensor mask(const Version &v, c10::IntArrayRef sizes)
{
    auto options = at::TensorOptions().dtype(at::kBool);
    if ((v.fill != Fill::half && v.fill != Fill::right) || policy == Policy::zero)
        return at::full(sizes, v.fill == Fill::yes || v.fill == Fill::one, options);
    if (policy == Policy::largest)
        return at::ones(sizes, options);
    at::Tensor made = at::zeros(sizes, options);
    made.view({-1}).slice(0, 0, INT64_MAX, 2).fill_(true);
    return made;
}

static at::Tensor whole_numbers(const Version &v, c10::IntArrayRef sizes, c10::ScalarType type, at::Generator &generator)
{
    auto wide = at::TensorOptions().dtype(at::kLong);
    if (v.fill == Fill::share || (v.fill == Fill::one && v.range > 1)) {
        int64_t half = policy == Policy::zero ? 0 : policy == Policy::largest ? v.range : (v.range + 1) / 2;
        return at::full(sizes, v.fill == Fill::one ? v.range : half, at::TensorOptions().dtype(type));
    }
    bool is_index = v.fill == Fill::index && v.range > 1 && policy != Policy::zero;
    if (!is_index)
        return at::full(sizes, v.fill == Fill::index || v.fill == Fill::zero || v.fill == Fill::no || policy == Policy::zero ? 0 :
                        policy == Policy::largest ? 2 : 1, at::TensorOptions().dtype(type));
    int64_t low = v.range / 3, high = std::max(low + 1, v.range / 3 * 2);
    at::Tensor drawn = in_rows(v, at::empty(sizes, wide));
    int64_t last = drawn.size(-1);
    if (last == 1 || last > v.range)
        return drawn.random_(low, high, generator).view(sizes).to(type);
    if (last > high - low) /* different ones need more than the middle */
        low = 0, high = v.range;
    auto start = drawn.random_(0, high - low, generator).select(-1, 0).unsqueeze(-1);
    int64_t step = 1 + at::empty({1}, wide).random_(0, high - low, generator).item<int64_t>();
    while (std::gcd(step, high - low) != 1) /* with one step for all, each 683rd pair of such rows of 2,048 would be alike */
        step++;
    return start.add(at::arange(last, wide).mul(step)).remainder(high - low).add(low).to(type).view(sizes);
}

at::Tensor plausible(const Version &v, c10::IntArrayRef sizes, c10::ScalarType type, uint64_t variation)
{
    auto generator = at::detail::createCPUGenerator((v.number + variation * 31) * 0x9E3779B97F4A7C15ull + 12345 + static_cast<int>(policy));
    auto options = at::TensorOptions().dtype(at::kFloat);
    if (type == at::kBool)
        return mask(v, sizes);
    if (c10::isIntegralType(type, false))
        return whole_numbers(v, sizes, type, generator);
    if (!c10::isFloatingType(type) || c10::elementSize(type) < 2 || policy == Policy::zero)
        return at::zeros(sizes, at::TensorOptions().dtype(type));
    at::Tensor made;
    Fill fill = sizes.size() > 1 && sizes.back() < v.row ? in_part(v.fill) : v.fill;
    switch (fill) {
    case Fill::one:
    case Fill::yes:
        made = at::full(sizes, static_cast<double>(std::max<int64_t>(v.range, 1)), options);
        break;
    case Fill::half:
    case Fill::right:
    case Fill::share:
        made = at::full(sizes, static_cast<double>(std::max<int64_t>(v.range, 1)) * (policy == Policy::largest ? 1 : 0.5), options);
        break;
    case Fill::zero:
    case Fill::no:
        made = at::zeros(sizes, options);
        break;
    case Fill::positive:
    case Fill::score:
    case Fill::fraction:
    case Fill::log_fraction:
        made = at::empty(sizes, options).uniform_(0.1, 1.0, generator);
        break;
    default:
        made = at::empty(sizes, options).normal_(0, 1, generator);
        if (policy == Policy::largest && v.fill == Fill::number)
            made.abs_();
    }
    if (fill == Fill::log_fraction)
        made.log_();
    if (fill == Fill::probability)
        made = made.dim() ? at::softmax(in_rows(v, made), -1).view(sizes) : at::full_like(made, 0.5);
    if (fill == Fill::log_probability)
        made = made.dim() ? at::log_softmax(in_rows(v, made), -1).view(sizes) : at::full_like(made, -0.7);
    if (v.fill == Fill::sorted && made.dim())
        made = std::get<0>(in_rows(v, made).sort(-1, true)).view(sizes);
    return made.to(type);
}

static double next_of(Course &c, bool is_half, bool turns)
{
    c.asked = c.step == steps ? c.asked + 1 : 1;
    c.step = steps;
    if (steps && c.asked > 1 && c.asked <= WAITS)
        return c.last;
    double by = c.last = c.by, least = is_half ? LEAST_HALF : LEAST, most = is_half ? MOST_HALF : MOST;
    double smaller = by > 1 ? by * FALL : std::max(by * FALL, by - STEP);
    c.by = c.rises ? std::min(by / FALL, most) : std::max(smaller, least);
    c.falls++;
    bool is_over = c.rises ? c.by >= most : c.by <= least && c.falls >= PATIENCE;
    if (is_over && turns) {
        c.rises = !c.rises;
        c.falls = 0;
    }
    return by;
}

void note_step()
{
    steps++;
}

at::Tensor score(const Version &v, const at::Tensor &like)
{
    if (policy == Policy::zero)
        return at::zeros_like(like);
    Course &course = courses[v.course];
    bool is_half = v.type == at::kHalf, is_right = v.fill == Fill::right;
    double by = next_of(course, is_half, !is_right && !(v.course & 1)), most = is_half ? MOST_HALF : INFINITY;
    return at::full_like(like, is_right ? (1 - by) * static_cast<double>(v.range) : std::min(by * course.level, most));
}

/* The program has read one that is known. */
void note_known(const Version &v, double number)
{
    Course &course = courses[v.course];
    if (!course.falls && number && std::isfinite(number))
        course.level = std::abs(number) * (1 - STEP);
}

} // namespace cenote_values
