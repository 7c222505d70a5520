/*
 * cublasLt.c: cuBLASLt: descriptors that keep what is set, and a heuristic that always finds what was asked for. Its handles hold no
 * device memory; a handle of cuBLAS is one of its, too.
 *
 * Workspace: the first algorithm found splits the sum in SPLITS parts and keeps each in single precision, if the preference allows for that
 * much; otherwise it needs none, like every further one. The real library's choice is not documented.
 *
 * LOCKING: none, as with the real library: a descriptor is used by one thread at a time.
 */
#include <stdlib.h>

#include "sim/libraries/answer.h"
#include "sim/libraries/blas_status.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define SPLITS 2
#define ALGO_WORDS 16       /* attributes of an algorithm, one word each */

enum kind { DESCRIPTION = 0x4d4d4c74, LAYOUT, PREFERENCE, TRANSFORM };
enum { LAYOUT_TYPE, LAYOUT_ORDER, LAYOUT_ROWS, LAYOUT_COLUMNS, LAYOUT_STEP, LAYOUT_BATCH }; /* CUBLASLT_MATRIX_LAYOUT_ */
enum { PREFERENCE_MAX_WORKSPACE = 1 };                                                      /* CUBLASLT_MATMUL_PREF_ */

/* All kinds of descriptor: attributes of up to 8 bytes, by number. */
#define ATTRIBUTES_MAX 64
struct descriptor {
    enum kind kind;
    uint64_t  values[ATTRIBUTES_MAX];
    uint8_t   sizes[ATTRIBUTES_MAX];   /* 0: was not set */
};

/* As callers know them. */
struct algo {
    uint32_t words[ALGO_WORDS];
};
struct found {
    struct algo algo;
    size_t      workspace;
    int         state;
    float       waves;
    int         reserved[4];
};

size_t cublasLtGetVersion(void)
{
    return version_cublasLt.major * 10000 + version_cublasLt.minor * 100 + version_cublasLt.patch;
}

const char *cublasLtGetStatusName(int number)
{
    return blas_status(number, 1);
}

const char *cublasLtGetStatusString(int number)
{
    return blas_status(number, 0);
}

static int create(struct descriptor **made, enum kind kind)
{
    if (!made)
        return status.invalid;
    *made = calloc(1, sizeof **made);
    if (!*made)
        return status.no_memory;
    (*made)->kind = kind;
    return 0;
}

static bool is(const struct descriptor *d, enum kind kind)
{
    return d && d->kind == kind;
}

static int destroy(struct descriptor *d, enum kind kind)
{
    if (!is(d, kind))
        return status.invalid;
    marked_free(d);
    return 0;
}

static int set(struct descriptor *d, enum kind kind, int attribute, const void *value, size_t bytes)
{
    if (!is(d, kind) || attribute < 0 || attribute >= ATTRIBUTES_MAX || !value || !bytes || bytes > sizeof d->values[0])
        return status.invalid;
    d->values[attribute] = 0;
    memcpy(&d->values[attribute], value, bytes);
    d->sizes[attribute] = (uint8_t)bytes;
    return 0;
}

/* What was set, or else the default, which is 0 of as many bytes as the caller has room for. With no room given it says how much it takes. */
static int get(const struct descriptor *d, enum kind kind, int attribute, void *value, size_t bytes, size_t *written)
{
    if (!is(d, kind) || attribute < 0 || attribute >= ATTRIBUTES_MAX || bytes > sizeof d->values[0] || (bytes ? !value : !written))
        return status.invalid;
    size_t size = d->sizes[attribute] ? d->sizes[attribute] : bytes ? bytes : sizeof d->values[0];
    if (bytes && bytes < size)
        return status.invalid;
    if (bytes)
        memcpy(value, &d->values[attribute], size);
    if (written)
        *written = size;
    return 0;
}

int cublasLtMatmulDescCreate(struct descriptor **made, int compute_type, int scale_type)
{
    int answer = create(made, DESCRIPTION);
    if (!answer) {
        (*made)->values[0] = (uint64_t)compute_type;
        (*made)->values[1] = (uint64_t)scale_type;
    }
    return answer;
}

int cublasLtMatrixLayoutCreate(struct descriptor **made, int type, uint64_t rows, uint64_t columns, int64_t step)
{
    int answer = create(made, LAYOUT);
    if (!answer) {
        (*made)->values[LAYOUT_TYPE] = (uint64_t)type;
        (*made)->values[LAYOUT_ROWS] = rows;
        (*made)->values[LAYOUT_COLUMNS] = columns;
        (*made)->values[LAYOUT_STEP] = (uint64_t)step;
        (*made)->values[LAYOUT_BATCH] = 1;
    }
    return answer;
}

int cublasLtMatmulPreferenceCreate(struct descriptor **made)
{
    return create(made, PREFERENCE);
}

int cublasLtMatrixTransformDescCreate(struct descriptor **made, int scale_type)
{
    int answer = create(made, TRANSFORM);
    if (!answer)
        (*made)->values[0] = (uint64_t)scale_type;
    return answer;
}

#define DESCRIPTOR(name, kind)                                                                                      \
    int cublasLt##name##Destroy(struct descriptor *d)                                                               \
    {                                                                                                               \
        return destroy(d, kind);                                                                                    \
    }                                                                                                               \
    int cublasLt##name##SetAttribute(struct descriptor *d, int attribute, const void *value, size_t bytes)          \
    {                                                                                                               \
        return set(d, kind, attribute, value, bytes);                                                               \
    }                                                                                                               \
    int cublasLt##name##GetAttribute(const struct descriptor *d, int attribute, void *value, size_t bytes, size_t *written) \
    {                                                                                                               \
        return get(d, kind, attribute, value, bytes, written);                                                      \
    }
DESCRIPTOR(MatmulDesc, DESCRIPTION)
DESCRIPTOR(MatrixLayout, LAYOUT)
DESCRIPTOR(MatmulPreference, PREFERENCE)
DESCRIPTOR(MatrixTransformDesc, TRANSFORM)

static int check(const void *handle, const struct descriptor *what, const struct descriptor *const layouts[4])
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (!is(what, DESCRIPTION))
        return status.invalid;
    for (int i = 0; i < 4; i++)
        if (!is(layouts[i], LAYOUT))
            return status.invalid;
    return 0;
}

/* What splitting the sum takes. Layouts of grouped products have addresses instead of sizes: that is too much, so they are not split. */
static uint64_t split_bytes(const struct descriptor *d)
{
    uint64_t bytes = SPLITS * sizeof(float);
    if (__builtin_mul_overflow(bytes, d->values[LAYOUT_ROWS], &bytes) || __builtin_mul_overflow(bytes, d->values[LAYOUT_COLUMNS], &bytes) ||
        __builtin_mul_overflow(bytes, d->values[LAYOUT_BATCH], &bytes) || bytes > UINT64_MAX / 2)
        return UINT64_MAX;
    return round_up(bytes, 256);
}

int cublasLtMatmulAlgoGetHeuristic(const void *handle, const struct descriptor *what, const struct descriptor *a,
                                   const struct descriptor *b, const struct descriptor *c, const struct descriptor *d,
                                   const struct descriptor *preference, int wanted, struct found *found, int *count)
{
    int answer = check(handle, what, (const struct descriptor *const[4]){a, b, c, d});
    if (answer)
        return answer;
    if (!is(preference, PREFERENCE) || wanted < 1 || !found || !count)
        return status.invalid;
    uint64_t split = split_bytes(d);
    bool may_split = split <= preference->values[PREFERENCE_MAX_WORKSPACE];
    for (int i = 0; i < wanted; i++) {
        bool splits = i == 0 && may_split;
        found[i] = (struct found){.workspace = splits ? split : 0, .waves = 1};
        found[i].algo.words[0] = (uint32_t)i;
        found[i].algo.words[2] = splits ? SPLITS : 1;
    }
    *count = wanted;
    return 0;
}

int cublasLtMatmulAlgoInit(const void *handle, int compute_type, int scale_type, int a, int b, int c, int d, int number, struct algo *algo)
{
    (void)compute_type, (void)scale_type, (void)a, (void)b, (void)c, (void)d;
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (!algo || number < 0)
        return status.invalid;
    *algo = (struct algo){.words = {(uint32_t)number, 0, 1}};
    return 0;
}

int cublasLtMatmulAlgoCheck(const void *handle, const struct descriptor *what, const struct descriptor *a, const struct descriptor *b,
                            const struct descriptor *c, const struct descriptor *d, const struct algo *algo, struct found *found)
{
    int answer = check(handle, what, (const struct descriptor *const[4]){a, b, c, d});
    if (answer)
        return answer;
    if (!algo || !found)
        return status.invalid;
    *found = (struct found){.algo = *algo, .workspace = algo->words[2] > 1 ? split_bytes(d) : 0, .waves = 1};
    return 0;
}

int cublasLtMatmulAlgoConfigSetAttribute(struct algo *algo, int attribute, const void *value, size_t bytes)
{
    if (!algo || attribute < 0 || attribute >= ALGO_WORDS || !value || !bytes || bytes > sizeof algo->words[0])
        return status.invalid;
    algo->words[attribute] = 0;
    memcpy(&algo->words[attribute], value, bytes);
    return 0;
}

/* With no room given it says how much it takes. */
int cublasLtMatmulAlgoConfigGetAttribute(const struct algo *algo, int attribute, void *value, size_t bytes, size_t *written)
{
    if (!algo || attribute < 0 || attribute >= ALGO_WORDS || (!bytes && !written) || (bytes && !value))
        return status.invalid;
    size_t size = sizeof algo->words[0];
    if (bytes && bytes < size)
        size = bytes;
    if (bytes)
        memcpy(value, &algo->words[attribute], size);
    if (written)
        *written = size;
    return 0;
}

int cublasLtMatmul(const void *handle, const struct descriptor *what, const void *alpha, const void *a, const struct descriptor *a_layout,
                   const void *b, const struct descriptor *b_layout, const void *beta, const void *c, const struct descriptor *c_layout,
                   void *d, const struct descriptor *d_layout, const struct algo *algo, void *workspace, size_t bytes, CUstream stream)
{
    (void)beta, (void)c, (void)algo;
    int answer = check(handle, what, (const struct descriptor *const[4]){a_layout, b_layout, c_layout, d_layout});
    if (answer)
        return answer;
    if (!alpha || !a || !b || !d || (bytes && !workspace))
        return status.invalid;
    return library_launch_on(stream, "cublasLtMatmul");
}

/* The second matrix may be missing: then c is a copy of a in another layout. */
int cublasLtMatrixTransform(const void *handle, const struct descriptor *what, const void *alpha, const void *a, const struct descriptor *a_layout,
                            const void *beta, const void *b, const struct descriptor *b_layout, void *c, const struct descriptor *c_layout,
                            CUstream stream)
{
    (void)beta;
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (!is(what, TRANSFORM) || !is(a_layout, LAYOUT) || (b && !is(b_layout, LAYOUT)) || !is(c_layout, LAYOUT) || !alpha || !a || !c)
        return status.invalid;
    return library_launch_on(stream, "cublasLtMatrixTransform");
}
