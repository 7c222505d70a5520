/*
 * operators.h: what an operator of PyTorch does with its arguments, as far as values go. Made once for each operator, from its schema and the
 * tables of operators.cpp; never changed after that.
 */
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <string>

namespace cenote_values
{

/* What a result is like where nothing was computed. Probabilities sum to 1 in each row; fractions are between 0 and 1, too. */
enum class Fill : uint8_t {
    number, positive, fraction, log_fraction, probability, log_probability, zero, one, no, yes, half, right, share, index, sorted, score
};

/* What the program reads back by it. */
enum class Reading : uint8_t { nothing, scalar, answer, copy, count, mask, put_mask };

struct Operator {
    std::string name;               /* with its namespace */
    std::string overload;
    uint64_t hash = 0;              /* of the name */
    c10::SmallVector<bool, 16> writes;  /* by argument */
    Fill    fill = Fill::number;
    Reading reading = Reading::nothing;
    bool has_fill = false;          /* `fill` is of a table; otherwise a result is like what it was made of */
    bool is_composite = false;      /* made of other operators, which are seen */
    bool passes = false;            /* writes nothing and makes nothing: views, questions; or its result is not initialised */
    bool is_trusted = false;        /* its schema says what it writes, and a CPU computes the same */
    bool is_heavy = false;          /* too much work for a CPU, or unknown to it */
    bool is_linear = false;         /* heavy, but not for small matrices: inverses, factors, eigenvalues */
    bool is_product = false;        /* of matrices */
    bool is_random = false;
    bool replaces = false;          /* what it writes does not depend on what was there */
    bool places = false;            /* writes where an index says, whatever was there */
    bool keeps = false;             /* of an optimizer: unknown values stay what they were */
    bool makes_scores = false;      /* if it makes one number (V17) */
    bool is_arithmetic = false;     /* what it makes of a score is one */
    bool is_distance = false;       /* ... and nothing waits for it to be large */
    bool is_truth = false;          /* the result says yes or no */
    bool compares = false;          /* ... where two things are the same: the mean of that is a share of right answers */
    bool joins = false;             /* of masks: what it makes of one that was made up is made up likewise */
    bool chooses = false;           /* an index into one of its inputs */
    bool chooses_few = false;       /* ... of the best ones, or by chance */
    bool opens = false;             /* asks for values by operators of its own, which are seen */
    bool lifts = false;             /* ends a copy that no operator has shown */
    bool exchanges = false;         /* with other processes */
};

Reading reading_of(const std::string &name);    /* of an operator */
/* LOCKING: takes a lock of its own, under which no other is taken. */
const Operator &operator_of(const c10::OperatorHandle &handle);
bool is_operator(const Operator &what, const c10::OperatorHandle &handle);  /* false: its place was taken by another one */
void operators_survive_forks();

} // namespace cenote_values
