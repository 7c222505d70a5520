/*
 * cusparse.c: cuSPARSE: descriptors that know their shape, buffer sizes, and the few counts a program allocates by. Not here: any
 * arithmetic, or a look into a matrix.
 *
 * Sizes. The documentation gives none; these are what the algorithms need that it describes, rounded up to 256 bytes:
 *     SpMM, SpMV      a word for each row, where one was split between blocks; SDDMM the same
 *     SpSV, SpSM      two words for each row (its level and how many it waits for), and SpSM a copy of the right hand sides
 *     bsrsv2, bsrsm2  the same by rows of blocks
 *     SpGEMM          first a word for each row; then every product with its column, `products` of them
 *     csrgeam2        a word for each row;  sorts: two more copies of both index arrays
 * Counts. A product has as many entries as if both matrices' entries were spread evenly, a sum those of both; at most rows x columns.
 *
 * LOCKING: none, as with the real library.
 */
#include <limits.h>
#include <stdlib.h>

#include "sim/libraries/answer.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define WORD 4
#define UNIT 256

struct cusparse {
    struct handle base;
    int           on_device;    /* pointer mode: where scalars are */
};

enum kind { SPARSE = 0x61707363, DENSE, VECTOR };

struct matrix {
    enum kind kind;
    int64_t   rows;
    int64_t   columns;
    int64_t   count;            /* of entries */
    int       type;
};

int cusparseCreate(void **handle)
{
    if (!handle)
        return status.invalid;
    *handle = handle_open(sizeof(struct cusparse));
    return *handle ? 0 : status.no_memory;
}

int cusparseSetPointerMode(void *handle, int mode)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (mode != 0 && mode != 1)
        return status.invalid;
    ((struct cusparse *)handle)->on_device = mode;
    return 0;
}

const char *cusparseGetErrorString(int error)
{
    static const char *const texts[] = {
        "success", "initialization error", "out of memory", "invalid value", "architecture mismatch", "mapping error",
        "execution failed", "internal error", "matrix type not supported", "zero pivot", "operation not supported",
        "insufficient resources",
    };
    return error >= 0 && error < (int)(sizeof texts / sizeof *texts) ? texts[error] : "unrecognized error code";
}

const char *cusparseGetErrorName(int error)
{
    static const char *const names[] = {
        "CUSPARSE_STATUS_SUCCESS", "CUSPARSE_STATUS_NOT_INITIALIZED", "CUSPARSE_STATUS_ALLOC_FAILED", "CUSPARSE_STATUS_INVALID_VALUE",
        "CUSPARSE_STATUS_ARCH_MISMATCH", "CUSPARSE_STATUS_MAPPING_ERROR", "CUSPARSE_STATUS_EXECUTION_FAILED", "CUSPARSE_STATUS_INTERNAL_ERROR",
        "CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED", "CUSPARSE_STATUS_ZERO_PIVOT", "CUSPARSE_STATUS_NOT_SUPPORTED",
        "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
    };
    return error >= 0 && error < (int)(sizeof names / sizeof *names) ? names[error] : "unrecognized error code";
}

int cusparseGetVersion(void *handle, int *version)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (!version)
        return status.invalid;
    *version = version_cusparse.major * 1000 + version_cusparse.minor * 100 + version_cusparse.patch;
    return 0;
}

/* --- descriptors */

static int open_matrix(struct matrix **made, struct matrix matrix)
{
    if (!made || matrix.rows < 0 || matrix.columns < 0 || matrix.count < 0 || !type_bytes(matrix.type))
        return status.invalid;
    *made = malloc(sizeof **made);
    if (!*made)
        return status.no_memory;
    **made = matrix;
    return 0;
}

static bool is(const struct matrix *m, enum kind kind)
{
    return m && m->kind == kind;
}

static int close_matrix(struct matrix *m, enum kind kind)
{
    if (!is(m, kind))
        return status.invalid;
    marked_free(m);
    return 0;
}

int cusparseCreateCoo(struct matrix **made, int64_t rows, int64_t columns, int64_t count, void *row, void *column, void *values,
                      int index_type, int base, int type)
{
    return open_matrix(made, (struct matrix){SPARSE, rows, columns, count, type});
}

int cusparseCreateCsr(struct matrix **made, int64_t rows, int64_t columns, int64_t count, void *row, void *column, void *values,
                      int row_type, int column_type, int base, int type)
{
    return open_matrix(made, (struct matrix){SPARSE, rows, columns, count, type});
}

int cusparseCreateDnMat(struct matrix **made, int64_t rows, int64_t columns, int64_t step, void *values, int type, int order)
{
    return open_matrix(made, (struct matrix){DENSE, rows, columns, 0, type});
}

int cusparseCreateDnVec(struct matrix **made, int64_t size, void *values, int type)
{
    return open_matrix(made, (struct matrix){VECTOR, size, 1, 0, type});
}

int cusparseDestroySpMat(struct matrix *m) { return close_matrix(m, SPARSE); }
int cusparseDestroyDnMat(struct matrix *m) { return close_matrix(m, DENSE); }
int cusparseDestroyDnVec(struct matrix *m) { return close_matrix(m, VECTOR); }

int cusparseSpMatGetSize(const struct matrix *m, int64_t *rows, int64_t *columns, int64_t *count)
{
    if (!is(m, SPARSE) || !rows || !columns || !count)
        return status.invalid;
    *rows = m->rows;
    *columns = m->columns;
    *count = m->count;
    return 0;
}

int cusparseCsrSetPointers(struct matrix *m, void *row, void *column, void *values)
{
    return is(m, SPARSE) ? 0 : status.invalid;
}

int cusparseCsrSetStridedBatch(struct matrix *m, int batch, int64_t rows_next, int64_t columns_next)
{
    return is(m, SPARSE) && batch > 0 ? 0 : status.invalid;
}

int cusparseSpMatSetAttribute(struct matrix *m, int attribute, const void *value, size_t bytes)
{
    return is(m, SPARSE) && value && bytes == sizeof(int) ? 0 : status.invalid;
}

int cusparseDnMatSetStridedBatch(struct matrix *m, int batch, int64_t next)
{
    return is(m, DENSE) && batch > 0 ? 0 : status.invalid;
}

#define PROPERTY(name, most)                                            \
    int cusparseSetMat##name(void *description, int value)              \
    {                                                                   \
        return description && value >= 0 && value <= (most) ? 0 : status.invalid; \
    }
PROPERTY(Type, 3)
PROPERTY(FillMode, 1)
PROPERTY(DiagType, 1)
PROPERTY(IndexBase, 1)

/* --- calls on descriptors: a size, or a kernel */

static int check(const void *handle, const struct matrix *a, enum kind a_kind, const struct matrix *b, enum kind b_kind,
                 const struct matrix *c, enum kind c_kind)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    return is(a, a_kind) && is(b, b_kind) && is(c, c_kind) ? 0 : status.invalid;
}

static int tell(int answer, double bytes, size_t *size)
{
    if (!answer && (!size || bytes > 0x1p53))
        return status.invalid;
    if (!answer)
        *size = round_up((uint64_t)bytes, UNIT);
    return answer;
}

static int run(int answer, const void *handle, const char *name)
{
    return answer ? answer : library_launch(handle, name);
}

static double levels(const struct matrix *a)
{
    return 2.0 * WORD * (double)a->rows;
}

static double copy_of(const struct matrix *b)
{
    return (double)b->rows * (double)b->columns * (double)type_bytes(b->type);
}

#define ON const void *handle
#define MATRIX struct matrix
#define SPMM                                                                                                            \
    ON, int a_op, int b_op, const void *alpha, const MATRIX *a, const MATRIX *b, const void *beta, MATRIX *c, int type, \
        int algorithm
#define SPMV ON, int op, const void *alpha, const MATRIX *a, const MATRIX *x, const void *beta, MATRIX *y, int type, int algorithm
#define SPSM ON, int a_op, int b_op, const void *alpha, const MATRIX *a, const MATRIX *b, MATRIX *c, int type, int algorithm, void *how
#define SPSV ON, int op, const void *alpha, const MATRIX *a, const MATRIX *x, MATRIX *y, int type, int algorithm, void *how
#define SIZE(name, parameters, checked, bytes)                                              \
    int cusparse##name##_bufferSize(parameters, size_t *size)                               \
    {                                                                                       \
        int answer = checked;                                                               \
        return answer ? answer : tell(0, bytes, size);                                      \
    }
#define RUN(name, parameters, checked)                                                      \
    int cusparse##name(parameters)                                                          \
    {                                                                                       \
        return run(checked, handle, "cusparse" #name);                                      \
    }
#define RUN_IN_BUFFER(name, parameters, checked)                                            \
    int cusparse##name(parameters, void *buffer)                                            \
    {                                                                                       \
        return run(checked, handle, "cusparse" #name);                                      \
    }
SIZE(SpMM, SPMM, check(handle, a, SPARSE, b, DENSE, c, DENSE), (double)a->rows * WORD)
RUN_IN_BUFFER(SpMM, SPMM, check(handle, a, SPARSE, b, DENSE, c, DENSE))
SIZE(SpMV, SPMV, check(handle, a, SPARSE, x, VECTOR, y, VECTOR), (double)a->rows * WORD)
RUN_IN_BUFFER(SpMV, SPMV, check(handle, a, SPARSE, x, VECTOR, y, VECTOR))
SIZE(SDDMM, SPMM, check(handle, a, DENSE, b, DENSE, c, SPARSE), (double)c->rows * WORD)
RUN_IN_BUFFER(SDDMM_preprocess, SPMM, check(handle, a, DENSE, b, DENSE, c, SPARSE))
RUN_IN_BUFFER(SDDMM, SPMM, check(handle, a, DENSE, b, DENSE, c, SPARSE))
SIZE(SpSM, SPSM, check(handle, a, SPARSE, b, DENSE, c, DENSE), levels(a) + copy_of(b))
RUN_IN_BUFFER(SpSM_analysis, SPSM, check(handle, a, SPARSE, b, DENSE, c, DENSE))
RUN(SpSM_solve, SPSM, check(handle, a, SPARSE, b, DENSE, c, DENSE))
SIZE(SpSV, SPSV, check(handle, a, SPARSE, x, VECTOR, y, VECTOR), levels(a))
RUN_IN_BUFFER(SpSV_analysis, SPSV, check(handle, a, SPARSE, x, VECTOR, y, VECTOR))
RUN(SpSV_solve, SPSV, check(handle, a, SPARSE, x, VECTOR, y, VECTOR))

/* --- sparse times sparse: each step asks for its buffer first, with none given */

#define SPGEMM SPMM, void *how

/* Entries that meet, if they are spread evenly: each of a's columns meets b's row of the same number. */
static double products(const MATRIX *a, const MATRIX *b)
{
    return a->columns ? (double)a->count * (double)b->count / (double)a->columns : 0;
}

int cusparseSpGEMM_workEstimation(SPGEMM, size_t *size, void *buffer)
{
    int answer = check(handle, a, SPARSE, b, SPARSE, c, SPARSE);
    if (answer || !buffer)
        return answer ? answer : tell(0, (double)a->rows * WORD, size);
    return run(0, handle, "cusparseSpGEMM_workEstimation");
}

/* From the second call on, c knows how many entries it will have. */
int cusparseSpGEMM_compute(SPGEMM, size_t *size, void *buffer)
{
    int answer = check(handle, a, SPARSE, b, SPARSE, c, SPARSE);
    if (answer)
        return answer;
    double met = products(a, b), all = (double)c->rows * (double)c->columns;
    if (!buffer)
        return tell(0, met * (double)(WORD + type_bytes(c->type)), size);
    c->count = (int64_t)(met < all ? met : all);
    return run(0, handle, "cusparseSpGEMM_compute");
}

RUN(SpGEMM_copy, SPGEMM, check(handle, a, SPARSE, b, SPARSE, c, SPARSE))

/* --- the older calls, on plain arrays */

static int tell_int(const void *handle, double bytes, int *size)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (!size || bytes < 0 || bytes > INT_MAX - UNIT)
        return status.invalid;
    *size = (int)round_up((uint64_t)bytes, UNIT);
    return 0;
}

/* Where the diagonal has a zero: nowhere. */
static int no_zero(const void *handle, int *position)
{
    static const int nowhere = -1;
    return handle_is_valid(handle) ? answer_bytes(handle, ((const struct cusparse *)handle)->on_device, position, &nowhere, sizeof nowhere)
                                   : status.no_handle;
}

int cusparseXbsrsv2_zeroPivot(ON, void *how, int *position) { return no_zero(handle, position); }
int cusparseXbsrsm2_zeroPivot(ON, void *how, int *position) { return no_zero(handle, position); }

#define BLOCKS const void *description, const void *values, const int *row, const int *column, int side, void *how
#define OLDER(T)                                                                                                                           \
    int cusparse##T##bsrsv2_bufferSize(ON, int order, int op, int rows, int count, BLOCKS, int *size)                                      \
    {                                                                                                                                      \
        return tell_int(handle, 2.0 * WORD * rows, size);                                                                                  \
    }                                                                                                                                      \
    int cusparse##T##bsrsm2_bufferSize(ON, int order, int a_op, int b_op, int rows, int columns, int count, BLOCKS, int *size)             \
    {                                                                                                                                      \
        return tell_int(handle, 2.0 * WORD * rows, size);                                                                                  \
    }                                                                                                                                      \
    int cusparse##T##csrgeam2_bufferSizeExt(ON, int m, int n, const void *alpha, const void *a, int a_count, const void *a_values,         \
        const int *a_row, const int *a_column, const void *beta, const void *b, int b_count, const void *b_values, const int *b_row,       \
        const int *b_column, const void *c, const void *c_values, const int *c_row, const int *c_column, size_t *size)                     \
    {                                                                                                                                      \
        return tell(!handle_is_valid(handle) ? status.no_handle : m < 0 ? status.invalid : 0, (double)m * WORD, size);                     \
    }
OLDER(S)
OLDER(D)
OLDER(C)
OLDER(Z)

int cusparseXcsrgeam2Nnz(ON, int m, int n, const void *a, int a_count, const int *a_row, const int *a_column, const void *b, int b_count,
                         const int *b_row, const int *b_column, const void *c, int *c_row, int *count, void *buffer)
{
    int answer = library_launch(handle, "cusparseXcsrgeam2Nnz");
    if (answer)
        return answer;
    if (m < 0 || n < 0 || a_count < 0 || b_count < 0 || !count)
        return status.invalid;
    int64_t sum = (int64_t)a_count + b_count, all = (int64_t)m * n;
    int entries = (int)(sum < all ? sum : all);
    if (((const struct cusparse *)handle)->on_device)
        return answer_words(handle, count, (unsigned)entries, 1);
    return answer_bytes(handle, false, count, &entries, sizeof entries);
}

#define SORT(name)                                                                                                          \
    int cusparseX##name##_bufferSizeExt(ON, int m, int n, int count, const int *row, const int *column, size_t *size)       \
    {                                                                                                                       \
        return tell(!handle_is_valid(handle) ? status.no_handle : count < 0 ? status.invalid : 0, 4.0 * WORD * count, size); \
    }
SORT(coosort)
SORT(csrsort)
