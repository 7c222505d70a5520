/*
 * cufft.c: cuFFT's plans: their sizes and the owner of their work area. A plan is a number; it allocates its work area itself, unless the
 * program said that it will bring one.
 *
 *     created  --cufftXtMakePlanMany-->  made  --cufftXtExec: a kernel
 *
 * Work area. The documentation names a worst case, eight times the signal, and no formula. Here: nothing where each line of the signal is
 * transformed in shared memory at one go (ONE_GO points, factors 2, 3, 5, 7, one dimension); else one copy of the signal, with its
 * lines that have a prime factor beyond 127 padded to a power of two above 2n - 1, and that twice (Bluestein's convolution).
 *
 * LOCKING: one lock around the table and its plans; not held while the driver is called but to allocate and free.
 */
#include <pthread.h>
#include <stdlib.h>

#include "sim/libraries/answer.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define PLANS_MAX 65536
#define PLANS_FIRST 64
#define ONE_GO 4096
#define RANK_MAX 3
#define SIZE_MOST (1ull << 56)  /* bytes of a work area; beyond is no size */

enum { INVALID_TYPE = 3, INVALID_SIZE = 8, NO_WORKSPACE = 13 }; /* CUFFT_ */

struct plan {
    bool        live;
    bool        made;
    bool        allocates;
    bool        brought;        /* `area` is the program's */
    CUstream    stream;
    CUcontext   context;
    uint64_t    bytes;
    CUdeviceptr area;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct plan *plans;      /* [0] is no plan */
static int plans_room;

static struct plan *find(int number)
{
    return number > 0 && number < plans_room && plans[number].live ? &plans[number] : NULL;
}

static int take(void)
{
    int number = 1;
    while (number < plans_room && plans[number].live)
        number++;
    if (number < plans_room)
        return number;
    int room = plans_room ? 2 * plans_room : PLANS_FIRST;
    struct plan *more = room <= PLANS_MAX ? realloc(plans, (size_t)room * sizeof *plans) : NULL;
    if (!more)
        return 0;
    memset(more + plans_room, 0, (size_t)(room - plans_room) * sizeof *plans);
    number = plans_room ? plans_room : 1;
    plans = more;
    plans_room = room;
    return number;
}

int cufftCreate(int *number)
{
    if (!number)
        return status.invalid;
    pthread_mutex_lock(&lock);
    int taken = take();
    if (taken) {
        plans[taken] = (struct plan){.live = true, .allocates = true};
        cuCtxGetCurrent(&plans[taken].context);
        *number = taken;
    }
    pthread_mutex_unlock(&lock);
    return taken ? 0 : status.no_memory;
}

/* The context may be gone, and the area with it. */
static void let_go(struct plan *p)
{
    CUcontext context;
    if (p->area && !p->brought && cuCtxPushCurrent(p->context) == CUDA_SUCCESS) {
        cuMemFree(p->area);
        cuCtxPopCurrent(&context);
    }
    p->area = 0;
    p->brought = false;
}

int cufftDestroy(int number)
{
    pthread_mutex_lock(&lock);
    struct plan *p = find(number);
    if (p) {
        let_go(p);
        p->live = false;
    }
    pthread_mutex_unlock(&lock);
    return p ? 0 : status.no_handle;
}

#define CHANGE(symbol, parameter, statement)                    \
    int symbol(int number, parameter)                           \
    {                                                           \
        pthread_mutex_lock(&lock);                              \
        struct plan *p = find(number);                          \
        if (p) {                                                \
            statement;                                          \
        }                                                       \
        pthread_mutex_unlock(&lock);                            \
        return p ? 0 : status.no_handle;                        \
    }
CHANGE(cufftSetStream, CUstream stream, p->stream = stream)
CHANGE(cufftSetAutoAllocation, int allocates, p->allocates = allocates != 0)
CHANGE(cufftSetWorkArea, void *area, let_go(p); p->area = (CUdeviceptr)area; p->brought = true)

/* The least power of two for a convolution of n points. */
static uint64_t padded(uint64_t n)
{
    uint64_t size = 1;
    while (size < 2 * n - 1)
        size *= 2;
    return size;
}

static uint64_t without_factors(uint64_t n, uint64_t largest)
{
    for (uint64_t factor = 2; factor <= largest; factor++)
        while (n % factor == 0)
            n /= factor;
    return n;
}

static int work_bytes(int rank, const long long *n, long long batch, uint64_t element, uint64_t *bytes)
{
    uint64_t points = (uint64_t)batch, copies = 1;
    bool one_go = rank == 1 && n[0] <= ONE_GO && without_factors((uint64_t)n[0], 7) == 1;
    for (int i = 0; i < rank; i++) {
        uint64_t line = (uint64_t)n[i];
        if (line > SIZE_MOST)
            return INVALID_SIZE;
        if (without_factors(line, 127) != 1) {
            line = padded(line);
            copies = 2;
        }
        if (__builtin_mul_overflow(points, line, &points))
            return INVALID_SIZE;
    }
    if (__builtin_mul_overflow(points, element * copies, bytes) || *bytes > SIZE_MOST)
        return INVALID_SIZE;
    *bytes = one_go ? 0 : round_up(*bytes, 256);
    return 0;
}

static int make(struct plan *p, uint64_t bytes)
{
    if (p->made)
        return status.no_handle; /* CUFFT_INVALID_PLAN: a plan is made once */
    if (p->allocates && bytes && !p->brought) {
        CUresult result = cuMemAlloc(&p->area, bytes);
        if (result)
            return result == CUDA_ERROR_OUT_OF_MEMORY ? status.no_memory : 7; /* CUFFT_SETUP_FAILED */
    }
    p->bytes = bytes;
    p->made = true;
    return 0;
}

int cufftXtMakePlanMany(int number, int rank, long long *n, long long *in_shape, long long in_step, long long in_next, int in_type,
                        long long *out_shape, long long out_step, long long out_next, int out_type, long long batch, size_t *work, int type)
{
    (void)in_shape, (void)in_step, (void)in_next, (void)out_shape, (void)out_step, (void)out_next;
    uint64_t bytes = 0;
    if (rank < 1 || rank > RANK_MAX || !n || !work)
        return status.invalid;
    for (int i = 0; i < rank; i++)
        if (n[i] < 1)
            return INVALID_SIZE;
    if (batch < 1)
        return INVALID_SIZE;
    if (!type_bytes(in_type) || !type_bytes(out_type) || !type_bytes(type))
        return INVALID_TYPE;
    int answer = work_bytes(rank, n, batch, type_bytes(type), &bytes);
    pthread_mutex_lock(&lock);
    struct plan *p = find(number);
    if (!p)
        answer = status.no_handle;
    else if (!answer)
        answer = make(p, bytes);
    pthread_mutex_unlock(&lock);
    if (!answer)
        *work = bytes;
    return answer;
}

/* The older way to name a transform: by one of six types, whose last four bits say what goes in and out, and whose others the precision. */
static int precision_of(int type)
{
    enum { C32 = 4, C64 = 5 }; /* cudaDataType */
    switch (type) {
    case 0x29: case 0x2a: case 0x2c: return C32; /* C2C, R2C, C2R */
    case 0x69: case 0x6a: case 0x6c: return C64; /* Z2Z, D2Z, Z2D */
    default: return -1;
    }
}

int cufftMakePlanMany64(int number, int rank, long long *n, long long *in_shape, long long in_step, long long in_next, long long *out_shape,
                        long long out_step, long long out_next, int type, long long batch, size_t *work)
{
    int precision = precision_of(type);
    return cufftXtMakePlanMany(number, rank, n, in_shape, in_step, in_next, precision, out_shape, out_step, out_next, precision, batch, work,
                               precision);
}

int cufftMakePlanMany(int number, int rank, const int *n, const int *in_shape, int in_step, int in_next, const int *out_shape, int out_step,
                      int out_next, int type, int batch, size_t *work)
{
    long long wide[RANK_MAX];
    (void)in_shape, (void)out_shape;
    if (rank < 1 || rank > RANK_MAX || !n)
        return status.invalid;
    for (int i = 0; i < rank; i++)
        wide[i] = n[i];
    return cufftMakePlanMany64(number, rank, wide, NULL, in_step, in_next, NULL, out_step, out_next, type, batch, work);
}

static int launch(int number, const void *in, const void *out, const char *name)
{
    pthread_mutex_lock(&lock);
    struct plan *found = find(number), p = found ? *found : (struct plan){0};
    pthread_mutex_unlock(&lock);
    if (!p.made)
        return status.no_handle;
    if (!in || !out)
        return status.invalid;
    if (p.bytes && !p.area)
        return NO_WORKSPACE;
    return library_launch_on(p.stream, name);
}

/* The direction is read for complex to complex only. */
#define EXECUTE(symbol) int symbol(int number, void *in, void *out) { return launch(number, in, out, #symbol); }
EXECUTE(cufftXtExec)
EXECUTE(cufftExecC2C)
EXECUTE(cufftExecR2C)
EXECUTE(cufftExecC2R)
EXECUTE(cufftExecZ2Z)
EXECUTE(cufftExecD2Z)
EXECUTE(cufftExecZ2D)

int cufftGetVersion(int *version)
{
    if (!version)
        return status.invalid;
    *version = version_cufft.major * 1000 + version_cufft.minor * 100 + version_cufft.patch;
    return 0;
}
