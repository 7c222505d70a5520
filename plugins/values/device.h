/*
 * device.h: what the simulated GPU can do for values, past PyTorch: its memory is read, it counts what runs unseen, and it answers the next copies.
 */
#pragma once

#include <cstddef>
#include <cstdint>

namespace cenote_values
{

bool connect_device();      /* false: this GPU is not simulated, or its library is older */
bool read_device(const void *from, void *to, int64_t bytes);

bool write_device(void *to, const void *from, int64_t bytes);

/* While one exists, the kernels and copies of this thread are those of an operator that the tape follows. */
class Explained {
public:
    Explained();
    ~Explained();
    Explained(const Explained &) = delete;
    Explained &operator=(const Explained &) = delete;

private:
    bool before_;
};

void forget_unexplained();  /* what was written past the operators. LOCKING: the tape's lock */
int  answer_copies(const uint64_t *numbers, int count);  /* of this thread, of at most 8 bytes, to the host. Returns how many the last ones left */

} // namespace cenote_values
