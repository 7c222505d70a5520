/*
 * plausible.cpp: the policy for values that were not computed. What the program makes of such values is computed from them, as far as it is small:
 * so a softmax sums to 1, and boxes that were chosen do not overlap.
 *
 *     number       normal, with the deviation 1      loss       ln(classes) or 1, and falls each time one of the same lineage is asked for
 *     positive     0.1 to 1                          index      in the middle third of its range: special tokens are at its ends; different ones in
 *     probability  a softmax of numbers                         a row, so that all of a range are a permutation
 *     no, yes      not a NaN, not infinite, all      half       of a comparison: every other one. So masks that are counted, summed (share) or
 *                  of it, the same as itself                    chosen by agree
 *
 * Rule V10: all ways to ask for the count of a mask that was made up have one answer, and a test that is all of it is true, at every size.
 *
 * A number that falls is what a loop waits for, or not: once it has fallen as far as it can it rises, and so on. It falls from the first one of its
 * lineage, whatever the values that it is computed from are: those of a small batch are chance, by which a loss rises now and then. First it falls by
 * the same amount each time, so that a program which stops if a loss has not fallen by so much goes on. If the program has an optimizer, it falls
 * once for each of its steps: an evaluation of many batches is of one model. What is computed without gradients, as in an evaluation, has a lineage
 * of its own. No loop waits until a loss or a norm is large, so these stay where they have fallen to: a program may end if they rise. A count of
 * right answers rises only if nothing was chosen by such answers, which would have to be as many (V10).
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
#include <unordered_set>

namespace cenote_values
{

Policy policy = Policy::typical;

static constexpr double STEP = 1. / 40; /* of the first loss, from one that is asked for to the next, as long as that is less than a tenth. Chosen. */
static constexpr double FALL = 0.9;     /* ... from then on. Chosen: a loop until loss < 0.01 ends after 61 */
static constexpr double LEAST = 1e-12, LEAST_HALF = 1e-3;   /* a logarithm of it is finite, in 16 bits, too */
static constexpr double MOST = 1e6, MOST_HALF = 1e4;        /* what a number rises to if all that falling could end has ended. Chosen. */
static constexpr double HALF_MOST = 65504;                  /* of 16 bits */
static constexpr int PATIENCE = 280;                        /* reads until 1 has fallen to LEAST */
static constexpr int WAITS = 1000;  /* reads without a step of the optimizer, after which it counts as a loop that waits. Chosen. */
static constexpr int ROUNDS = 20;   /* in which a program that chooses by a mask does so, if ever: a count of such masks has to stay true. Chosen. */

/* Of the numbers of one lineage that the program has asked for. */
struct Course {
    double level = 0;       /* the first one, of each element that it is the sum of; 0: there was none, or it was nothing */
    double by = 1, last = 1;
    uint64_t step = 0;      /* in which it was read last */
    int asked = 0;          /* how often, in that step */
    int falls = 0;          /* since it turned */
    int rounds = 0;         /* in which a count stayed what it was */
    bool rises = false;
};
static std::unordered_map<uint64_t, Course> courses;        /* by lineage */
static std::unordered_set<uint64_t> chosen_by;              /* lineages of masks */
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

/* A loss that is no mean: reduction="sum". */
static bool sums(const Operator &what, const std::vector<Shape> &arguments)
{
    bool is_sum = false;
    for (size_t i = 2; i < arguments.size(); i++)
        is_sum |= arguments[i].number == 2;
    return is_sum && what.fill == Fill::loss;
}

/* ln(classes), which is what a model says that has learnt nothing; a sum of such if nothing divides it. */
static double loss_scale(const Operator &what, size_t place, const at::Tensor &result, const std::vector<Shape> &arguments)
{
    if (what.name.find("nll_loss") == std::string::npos || arguments.empty() || arguments[0].sizes.empty() || result.dim())
        return 1;
    int64_t classes = std::max<int64_t>(2, arguments[0].sizes[arguments[0].sizes.size() > 1 ? 1 : 0]);
    auto rows = static_cast<double>(arguments[0].count()) / static_cast<double>(classes);
    if (place == 1)
        return std::max(rows, 1.0); /* total_weight */
    return std::log(static_cast<double>(classes)) * (sums(what, arguments) ? rows : 1.0);
}

/* Operators that leave the shape as it is see rows that a view has joined. */
static int64_t unit_of(int64_t row, const at::Tensor &result, const std::vector<Shape> &arguments, const Version *first)
{
    bool is_same = !arguments.empty() && arguments[0].is_tensor && result.sizes() == c10::IntArrayRef(arguments[0].sizes);
    return is_same && first ? unit_of_choices(row, first->unit) : row;
}

/* Sizes of batches, sequences and images do not count, so that batches of several lengths are of one loss. Those of features do: the last one of a
 * batch of sequences, the channels of images, the classes of a softmax. A matrix has features, unless more is known of where it comes from: then it
 * may be a row for each sentence. */
static uint64_t features(const Shape &shape, bool is_all, int64_t dimension)
{
    auto rank = static_cast<int64_t>(shape.sizes.size());
    if (rank < (is_all ? 2 : 3))
        return static_cast<uint64_t>(rank);
    int64_t at = dimension != INT64_MIN ? (dimension + rank) % rank : rank < 4 ? rank - 1 : 1;
    return static_cast<uint64_t>(rank + 8 * shape.sizes[at]);
}

uint64_t lineage_of(const Operator &what, size_t place, const std::vector<Shape> &arguments, const Origin &from)
{
    bool is_upload = !from.is_there && (what.name == "aten::copy_" || what.name == "aten::_to_copy");
    uint64_t sum = (is_upload ? 0 : what.hash) + place + from.lineage + 2 * at::GradMode::is_enabled();
    bool is_softmax = what.fill == Fill::probability || what.fill == Fill::log_probability;
    int64_t dimension = is_softmax && arguments.size() > 1 ? arguments[1].number : INT64_MIN;
    /* The others are targets, masks and weights. */
    return arguments.empty() ? sum : (sum ^ features(arguments[0], !from.is_there, dimension)) * 0x100000001B3ull;
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

/* One number that a loop can wait for. */
static void describe_course(Version &v, const Operator &what, const at::Tensor &result, const std::vector<Shape> &arguments, const Version *first)
{
    bool is_number = result.is_floating_point() && result.numel() == 1, adds = what.name == "aten::sum" || what.name == "aten::count_nonzero";
    bool is_count = v.is_match && result.numel() == 1 && (adds || what.name == "aten::mean");
    v.falls = is_count || (what.falls && is_number && !(first && first->type == at::kBool && !first->is_match));
    v.is_loss = is_number && !v.is_match && (v.falls || (first && first->is_loss));
    bool compares = what.is_match && arguments.size() > 1 && !arguments[1].sizes.empty(); /* with answers, not with the end of a sentence */
    v.matches = compares ? v.lineage : v.is_match && !what.is_match ? first->matches : 0;
    if (is_count && adds && !arguments.empty())
        v.range = std::max<int64_t>(arguments[0].count(), first && first->is_match ? first->range : 0);
    v.summed = what.name == "aten::sum" || sums(what, arguments) ? std::max<int64_t>(arguments[0].count(), 1) : 1;
}

/* A word of a row, or some of them. */
static Fill in_part(Fill whole)
{
    return whole == Fill::probability ? Fill::fraction : whole == Fill::log_probability ? Fill::log_fraction : whole;
}

/* `from`: where it comes from; `first`: a version of what the result was made of, or NULL.
 * `is_itself`: its first two arguments are the same tensor. */
void describe_plausible(Version &v, const Operator &what, size_t place, const at::Tensor &result, const std::vector<Shape> &arguments,
                        const Origin &from, const Version *first, bool is_itself)
{
    v.type = result.scalar_type();
    v.lineage = lineage_of(what, place, arguments, from);
    v.row = result.dim() ? result.size(-1) : 1;
    v.unit = unit_of(v.row, result, arguments, first);
    v.is_distance = what.is_distance || from.is_distance;
    v.is_match = what.is_match || (what.moves && first && first->is_match);
    v.fill = what.fill;
    bool is_second = place > 0;
    if (what.chooses && (is_second || what.fill == Fill::index)) {
        v.fill = Fill::index;
        v.range = choices(what, result, arguments);
        int64_t unit = what.chooses_few && first ? unit_of_choices(v.range, first->unit) : v.range;
        if (v.row <= unit / 6)
            v.range = unit; /* of the first row of those that were joined: it is as good to choose from as all are */
    } else if (!what.has_fill && first && first->type == v.type) {
        v.fill = v.row < first->row ? in_part(first->fill) : first->fill;
        v.range = first->range;
        v.scale = first->scale;
    }
    if (what.name == "aten::sum" && first && first->fill == Fill::probability && result.numel() < arguments[0].count())
        v.fill = Fill::one; /* of each row */
    describe_truth(v, what, result, arguments, first, is_itself);
    describe_course(v, what, result, arguments, first);
    if (v.falls && v.fill == Fill::positive)
        v.fill = Fill::loss; /* the same each time, but that it falls */
    if (v.fill == Fill::loss)
        v.scale = static_cast<float>(loss_scale(what, place, result, arguments));
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
    v.falls = v.is_made_up = true;
    v.fill = Fill::loss;
    v.row = 1;
    v.lineage = std::hash<std::string>()("unseen") + static_cast<uint64_t>(v.size);
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
    if (v.fill != Fill::half || policy == Policy::zero)
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
    case Fill::share:
        made = at::full(sizes, static_cast<double>(std::max<int64_t>(v.range, 1)) * (policy == Policy::largest ? 1 : 0.5), options);
        break;
    case Fill::zero:
    case Fill::no:
        made = at::zeros(sizes, options);
        break;
    case Fill::loss:
        made = at::full(sizes, v.scale, options);
        break;
    case Fill::positive:
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

/* What a minus is put before: -likelihood, 1 - similarity. If a loss is made of it, then it rises: to 0, or to what it is taken from. */
void note_objective(Version &v, double goal)
{
    if (!v.is_loss || v.is_match || v.is_known || v.is_likely || v.bytes.defined())
        return;
    v.falls = v.is_objective = true;
    v.goal = static_cast<float>(goal);
}

static Course &course_of(const Version &v)
{
    return courses[v.lineage];
}

/* How far the number is from what it comes closer to, of each element that it is the sum of. */
static double distance_of(double number, const Version &v)
{
    if (v.is_match) {
        auto all = std::max(static_cast<double>(std::max<int64_t>(v.range, 1)), number);
        return (all - number) / all;
    }
    double distance = std::abs(number - (v.is_objective ? v.goal : 0));
    return (std::isfinite(distance) ? distance : v.scale) / static_cast<double>(v.summed);
}

static double at_distance(double distance, double number, const Version &v)
{
    if (v.is_match) {
        auto all = std::max(static_cast<double>(std::max<int64_t>(v.range, 1)), number);
        return all - all * std::min(distance, 1.0);
    }
    distance *= static_cast<double>(v.summed);
    return v.is_objective ? v.goal - distance : distance;
}

/* Each unknown loss or distance that the program looks at is smaller than the last one of its lineage, until it turns. Right answers become more. */
void let_fall(at::Tensor &number, const Version &v)
{
    bool is_float = number.is_floating_point(), is_half = number.scalar_type() == at::kHalf;
    if (policy == Policy::zero) {
        number = is_float ? number.nan_to_num(0, 0, 0) : number;
        return;
    }
    Course &course = course_of(v);
    if (!is_float && (!v.matches || course.rounds++ < ROUNDS || chosen_by.count(v.matches)))
        return;
    auto own = number.item<double>();
    if (course.level <= 0)
        course.level = distance_of(own, v);
    if (course.level <= 0 && v.is_objective) /* nothing begins at its goal */
        course.level = 1;
    bool turns = !v.is_match && !v.is_objective && !v.is_distance;
    double made = at_distance(course.level * next_of(course, is_half, turns), own, v);
    if (is_half)
        made = std::clamp(made, -HALF_MOST, HALF_MOST);
    number = at::full_like(number, is_float ? made : std::round(made));
}

/* One that is known, before others of its lineage are not: these go on below it. */
void note_known(const at::Tensor &number, const Version &v)
{
    if (policy == Policy::zero || !number.is_floating_point() || v.is_match)
        return;
    Course &course = course_of(v);
    course.level = distance_of(number.item<double>(), v) * (1 - STEP) / course.by;
}

void note_choice(const Version &mask)
{
    if (mask.is_match)
        chosen_by.insert(mask.matches);
}

} // namespace cenote_values
