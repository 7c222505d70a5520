/* plausible.h: values for what was not computed; see plausible.cpp. */
#pragma once

#include <tape.h> /* beside this file */

namespace cenote_values
{

enum class Policy : int { zero, typical, largest };
extern Policy policy;               /* set before the first call */

/* What the caller knows of an argument once the call is over. */
struct Shape {
    bool is_tensor = false;
    c10::DimVector sizes;
    int64_t number = INT64_MIN;     /* of an argument that is one */
    bool is_infinite = false;       /* a number that is */
    int64_t count() const;
};

void describe_plausible(Version &version, const Operator &what, size_t place, const at::Tensor &result, const std::vector<Shape> &arguments,
                        const Version *first, const Version *of, bool is_itself);
constexpr uint64_t UNSEEN = 8;              /* the course of the numbers that no operator has made: they may be no losses */
void describe_unseen(Version &version, c10::ScalarType type);   /* of what no operator has made */
at::Tensor plausible(const Version &version, c10::IntArrayRef sizes, c10::ScalarType type, uint64_t variation);
bool is_score(const Version &version);
at::Tensor score(const Version &version, const at::Tensor &like);   /* the next one of its course */
void note_known(const Version &version, double number);
void note_step();                           /* of an optimizer */
bool is_free_mask(const Version &version);  /* of yes and no, and made up */

} // namespace cenote_values
