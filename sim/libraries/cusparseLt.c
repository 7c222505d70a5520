/*
 * cusparseLt.c: cuSPARSELt, for matrices of which two in four (one in two, for 32 bits) entries are zero.
 *
 * Its objects lie in memory of the caller's, of a size that differs between versions but is never below 512 bytes: these take fewer. A
 * compressed matrix is half the values and two bits of place for each of them: 9/16 of the matrix for 16-bit types and 10/16 for 8-bit
 * ones. Compressing takes a second copy of the places, and a product takes memory only where the program asked for a split sum: each
 * part in single precision.
 *
 * LOCKING: none, as with the real library.
 */
#include "sim/libraries/answer.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define HANDLE 0x4c747073u
#define ALIGNMENT_MAX 256
#define ALGORITHMS 4            /* that an exhaustive search would try */

enum kind { MATRIX = 0x4d747073, PRODUCT, CHOICE, PLAN };
enum { CHOICE_NUMBER, CHOICE_MAX, CHOICE_ITERATIONS, CHOICE_SPLIT, CHOICE_MODE, CHOICE_BUFFERS, CHOICES }; /* CUSPARSELT_MATMUL_ */

struct lt {
    uint32_t magic;
};

struct matrix {
    enum kind kind;
    int       type;
    int64_t   rows;
    int64_t   columns;
    bool      structured;
};

struct product {
    enum kind kind;
    int64_t   rows;     /* of the result */
    int64_t   columns;
};

struct choice {
    enum kind kind;
    int       values[CHOICES];
};

struct plan {
    enum kind kind;
    uint64_t  bytes;
};

static int check(const struct lt *handle)
{
    return handle && handle->magic == HANDLE ? 0 : status.no_handle;
}

#define IS(object, wanted) ((object) && (object)->kind == (wanted))

int cusparseLtInit(struct lt *handle)
{
    if (!handle)
        return status.invalid;
    handle->magic = HANDLE;
    return 0;
}

int cusparseLtDestroy(struct lt *handle)
{
    int answer = check(handle);
    if (!answer)
        handle->magic = 0;
    return answer;
}

static int describe(const struct lt *handle, struct matrix *m, int64_t rows, int64_t columns, int64_t step, uint32_t alignment, int type,
                    bool structured)
{
    int answer = check(handle);
    if (answer)
        return answer;
    if (!m || rows <= 0 || columns <= 0 || step <= 0 || !alignment || alignment > ALIGNMENT_MAX || !type_bytes(type))
        return status.invalid;
    *m = (struct matrix){MATRIX, type, rows, columns, structured};
    return 0;
}

int cusparseLtDenseDescriptorInit(const struct lt *handle, struct matrix *m, int64_t rows, int64_t columns, int64_t step,
                                  uint32_t alignment, int type, int order)
{
    (void)order;
    return describe(handle, m, rows, columns, step, alignment, type, false);
}

int cusparseLtStructuredDescriptorInit(const struct lt *handle, struct matrix *m, int64_t rows, int64_t columns, int64_t step,
                                       uint32_t alignment, int type, int order, int sparsity)
{
    (void)order, (void)sparsity;
    return describe(handle, m, rows, columns, step, alignment, type, true);
}

int cusparseLtMatDescriptorDestroy(const struct matrix *m)
{
    return IS(m, MATRIX) ? 0 : status.invalid;
}

int cusparseLtMatmulDescriptorInit(const struct lt *handle, struct product *p, int a_op, int b_op, const struct matrix *a,
                                   const struct matrix *b, const struct matrix *c, const struct matrix *d, int type)
{
    (void)a_op, (void)b_op, (void)type;
    int answer = check(handle);
    if (answer)
        return answer;
    if (!p || !IS(a, MATRIX) || !IS(b, MATRIX) || !IS(c, MATRIX) || !IS(d, MATRIX))
        return status.invalid;
    if (a->structured == b->structured)
        return status.unsupported;  /* one of the two has to be */
    *p = (struct product){PRODUCT, d->rows, d->columns};
    return 0;
}

int cusparseLtMatmulDescSetAttribute(const struct lt *handle, struct product *p, int attribute, const void *value, size_t bytes)
{
    int answer = check(handle);
    return answer ? answer : IS(p, PRODUCT) && attribute >= 0 && value && bytes ? 0 : status.invalid;
}

int cusparseLtMatmulAlgSelectionInit(const struct lt *handle, struct choice *choice, const struct product *p, int algorithm)
{
    int answer = check(handle);
    if (answer)
        return answer;
    if (!choice || !IS(p, PRODUCT) || algorithm != 0)
        return status.invalid;
    *choice = (struct choice){CHOICE, {[CHOICE_MAX] = ALGORITHMS, [CHOICE_ITERATIONS] = 5, [CHOICE_SPLIT] = 1}};
    return 0;
}

int cusparseLtMatmulAlgSetAttribute(const struct lt *handle, struct choice *choice, int attribute, const void *value, size_t bytes)
{
    int answer = check(handle);
    if (answer)
        return answer;
    if (!IS(choice, CHOICE) || attribute < 0 || attribute >= CHOICES || attribute == CHOICE_MAX || !value || bytes != sizeof(int))
        return status.invalid;
    memcpy(&choice->values[attribute], value, bytes);
    return 0;
}

int cusparseLtMatmulAlgGetAttribute(const struct lt *handle, const struct choice *choice, int attribute, void *value, size_t bytes)
{
    int answer = check(handle);
    if (answer)
        return answer;
    if (!IS(choice, CHOICE) || attribute < 0 || attribute >= CHOICES || !value || bytes != sizeof(int))
        return status.invalid;
    memcpy(value, &choice->values[attribute], bytes);
    return 0;
}

int cusparseLtMatmulPlanInit(const struct lt *handle, struct plan *plan, const struct product *p, const struct choice *choice)
{
    int answer = check(handle);
    if (answer)
        return answer;
    if (!plan || !IS(p, PRODUCT) || !IS(choice, CHOICE))
        return status.invalid;
    int parts = choice->values[CHOICE_SPLIT];
    uint64_t bytes = parts > 1 ? (uint64_t)parts * sizeof(float) : 0;
    if (__builtin_mul_overflow(bytes, (uint64_t)p->rows, &bytes) || __builtin_mul_overflow(bytes, (uint64_t)p->columns, &bytes))
        return status.invalid;
    *plan = (struct plan){PLAN, bytes};
    return 0;
}

int cusparseLtMatmulPlanDestroy(const struct plan *plan)
{
    return IS(plan, PLAN) ? 0 : status.invalid;
}

int cusparseLtMatmulGetWorkspace(const struct lt *handle, const struct plan *plan, size_t *bytes)
{
    int answer = check(handle);
    if (answer)
        return answer;
    if (!IS(plan, PLAN) || !bytes)
        return status.invalid;
    *bytes = round_up(plan->bytes, 256);
    return 0;
}

/* On the first of the streams, or the default one. */
static int multiply(const struct lt *handle, const struct plan *plan, const void *a, const void *b, void *d, const void *workspace,
                    const CUstream *streams, int count, const char *name)
{
    int answer = check(handle);
    if (answer)
        return answer;
    if (!IS(plan, PLAN) || !a || !b || !d || (plan->bytes && !workspace) || count < 0 || (count && !streams))
        return status.invalid;
    return library_launch_on(count ? streams[0] : NULL, name);
}

#define MULTIPLY(symbol)                                                                                                            \
    int symbol(const struct lt *handle, const struct plan *plan, const void *alpha, const void *a, const void *b, const void *beta, \
               const void *c, void *d, void *workspace, CUstream *streams, int count)                                               \
    {                                                                                                                               \
        (void)alpha, (void)beta, (void)c;                                                                                           \
        return multiply(handle, plan, a, b, d, workspace, streams, count, #symbol);                                                 \
    }
MULTIPLY(cusparseLtMatmul)
MULTIPLY(cusparseLtMatmulSearch)

int cusparseLtSpMMACompressedSize2(const struct lt *handle, const struct matrix *m, size_t *bytes, size_t *buffer_bytes)
{
    int answer = check(handle);
    if (answer)
        return answer;
    if (!IS(m, MATRIX) || !m->structured || !bytes || !buffer_bytes)
        return status.invalid;
    uint64_t entries = (uint64_t)m->rows * (uint64_t)m->columns;
    uint64_t places = round_up(entries / 8, 2);
    *bytes = entries * type_bytes(m->type) / 2 + places;
    *buffer_bytes = places;
    return 0;
}

int cusparseLtSpMMACompress2(const struct lt *handle, const struct matrix *m, int is_a, int op, const void *dense, void *compressed,
                             void *buffer, CUstream stream)
{
    (void)is_a, (void)op;
    int answer = check(handle);
    if (answer)
        return answer;
    if (!IS(m, MATRIX) || !m->structured || !dense || !compressed || !buffer)
        return status.invalid;
    return library_launch_on(stream, "cusparseLtSpMMACompress2");
}
