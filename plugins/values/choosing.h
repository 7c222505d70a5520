/* choosing.h: which of many unknown values an operator chooses: of tokens none that ends a sentence; see choosing.cpp. */
#pragma once

#include <tape.h> /* beside this file */

#include <ATen/core/stack.h>

namespace cenote_values
{

constexpr int64_t CHOICES_MOST = 16; /* from more of unknown ones none at an end is chosen: it could be the one that ends a sentence. Chosen. */

int64_t row_of_choices(int64_t choices, int64_t row); /* `row`: of a version */

/* A call's arguments are about to be used, and some of their values are made up. Leaves what can be chosen in them. */
class Choice {
public:
    Choice(const Call &call, torch::jit::Stack &stack);
    void map(torch::jit::Stack &results) const; /* indices into what was left become indices into what was there */

private:
    at::Tensor left_; /* undefined: all is */
};

} // namespace cenote_values
