/* fake.c: see fake.h. */
#include "tests/driver/fake.h"

struct fake fake;

static CUresult answer(void)
{
    atomic_fetch_add(&fake.calls, 1);
    return fake.answer;
}

static CUresult fake_free(CUdeviceptr at)
{
    fake.last_freed = at;
    return answer();
}

static CUresult fake_alloc(CUdeviceptr *at, size_t size)
{
    *at = FAKE_BLOCK + size;
    return answer();
}

static CUresult fake_query(CUevent event)
{
    (void)event;
    return answer();
}

static CUresult fake_stream_id(CUstream stream, unsigned long long *id)
{
    (void)stream;
    *id = 77;
    return answer();
}

const struct driver fake_driver = {
    .cuMemFree = fake_free,
    .cuMemAlloc = fake_alloc,
    .cuEventQuery = fake_query,
    .cuCtxSynchronize = answer,
    .cuStreamGetId = fake_stream_id,
};
