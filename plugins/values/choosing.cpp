/*
 * choosing.cpp: argmax, max along a dimension, topk and multinomial of unknown values. What is chosen is computed from the plausible values: a word
 * that the program has masked is not drawn.
 *
 * Rule V14: only what is in the middle third of a row can be chosen, because special tokens (the end of a sentence) are at the ends of a vocabulary.
 * A row is what was one when the values were made: a program joins the rows of several beams.
 *
 * All can be chosen if there are few, if the call takes more than half of those in the middle, or if it draws more than have a probability. What
 * sorts whole rows leaves nothing out. Where the values are not computed, plausible.cpp makes up an index in the same place.
 */
#include "choosing.h"

namespace cenote_values
{

int64_t row_of_choices(int64_t choices, int64_t row)
{
    return row > CHOICES_MOST && choices % row == 0 ? row : choices;
}

static int64_t number_at(const torch::jit::Stack &stack, size_t place, int64_t otherwise)
{
    return place < stack.size() && stack[place].isInt() ? stack[place].toInt() : otherwise;
}

static bool writes(const Call &call)
{
    for (const Operand &o : call.operands)
        if (o.is_written)
            return true;
    return false;
}

static bool has_enough(const at::Tensor &probabilities, const torch::jit::Stack &stack, int64_t wanted)
{
    bool puts_back = stack.size() > 2 && stack[2].isBool() && stack[2].toBool();
    return probabilities.gt(0).sum(-1).min().item<int64_t>() >= (puts_back ? 1 : wanted);
}

Choice::Choice(const Call &call, torch::jit::Stack &stack)
{
    const std::string &name = call.what.name;
    bool draws = name == "aten::multinomial", is_best = name == "aten::topk";
    if (!call.what.chooses_few || call.operands.empty() || call.operands[0].argument || writes(call))
        return;
    at::Tensor from = stack[0].toTensor();
    bool is_flat = !draws && !is_best && stack.size() > 1 && stack[1].isNone();
    if (is_flat && stack.size() > 2 && stack[2].toBool()) /* keeps dimensions, of which none is left */
        return;
    if (is_flat)
        from = from.reshape({-1});
    int64_t dimension = draws ? -1 : number_at(stack, is_best ? 2 : 1, -1), wanted = draws || is_best ? number_at(stack, 1, 1) : 1;
    if (!from.dim() || from.size(dimension) <= CHOICES_MOST)
        return;
    const VersionP &version = call.operands[0].version;
    auto positions = at::arange(from.size(dimension), at::TensorOptions().dtype(at::kLong));
    int64_t row = row_of_choices(from.size(dimension), version ? version->row : 0);
    auto in_row = positions.remainder(row);
    auto left = positions.masked_select(in_row.ge(row / 3).logical_and(in_row.lt(row / 3 * 2)));
    if (wanted * 2 > left.numel())
        return;
    from = from.index_select(dimension, left);
    if (draws && !has_enough(from, stack, wanted))
        return;
    stack[0] = from;
    if (is_flat)
        stack[1] = 0;
    left_ = left;
}

void Choice::map(torch::jit::Stack &results) const
{
    if (left_.defined())
        results.back() = left_.take(results.back().toTensor());
}

} // namespace cenote_values
