/* simulated.c: see simulated.h. */
#include "tests/sim/simulated.h"

struct sim_shape simulated_shape(void)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.capacity = 1ull << 30;
    shape.context_bytes = 64 << 20;
    shape.manual_clock = true;
    return shape;
}

void simulated_begin_as(const struct sim_shape *shape)
{
    sim_reset(shape);
    sim_set_quiet(true);
    machine_begin();
}

void simulated_begin(void)
{
    struct sim_shape shape = simulated_shape();
    simulated_begin_as(&shape);
}

CUstream simulated_stream(void)
{
    CUstream stream = NULL;
    REQUIRE_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

struct sim_books simulated_books(void)
{
    struct sim_books books;
    sim_books(&books);
    return books;
}

uint64_t simulated_violations(void)
{
    return simulated_books().violations;
}
