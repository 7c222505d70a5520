/*
 * cusolver.c: cuSOLVER's dense solvers: how much workspace each asks for (by the formulas below), and info, which says that all went well.
 * Not here: any arithmetic. Factors and pivots stay as memory was.
 *
 * Workspace. The documentation gives no sizes. These are those of the algorithms as LAPACK documents them: blocked ones take a panel of
 * BLOCK columns, divide and conquer takes LAPACK's 1 + 6n + 2n^2, Jacobi and the approximate ones a copy of what they turn. In elements
 * of the matrix's type for the older calls, in bytes for cusolverDnX...
 *
 * LOCKING: none, as with the real library.
 */
#include <limits.h>

#include "sim/libraries/answer.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define BLOCK 64
#define WORKSPACE_ALIGNMENT 256

int cusolverGetVersion(int *version)
{
    if (!version)
        return status.invalid;
    *version = version_cusolver.major * 1000 + version_cusolver.minor * 100 + version_cusolver.patch;
    return 0;
}

/* --- sizes, in elements */

static double least(double a, double b)
{
    return a < b ? a : b;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double panel(double n)
{
    return n * BLOCK;
}

/* The tridiagonal matrix, the reflectors, and two squares for divide and conquer; without vectors the panel of the reduction alone. */
static double eigen(bool vectors, double n)
{
    return vectors ? 1 + 6 * n + 2 * n * n : 1 + 2 * n + panel(n);
}

/* A copy of the matrix and the panels of its reduction to two diagonals. */
static double singular(double m, double n)
{
    return m * n + panel(m + n) + 5 * least(m, n);
}

/* One-sided Jacobi turns a copy, and gathers the turns where vectors are wanted. */
static double singular_jacobi(bool vectors, double m, double n)
{
    return m * n + least(m, n) + (vectors ? n * n : 0);
}

/* The square of the matrix, its eigenvectors, and the singular values. */
static double singular_approximate(double n)
{
    return 2 * n * n + n;
}

/* Reduction to Hessenberg form: a copy, a panel, and LAPACK's 4n. */
static double general_eigen(double n)
{
    return n * n + panel(n) + 4 * n;
}

/* Doubles hold every size up to 2^53 exactly, and do not overflow on the way. */
static int tell_elements(const void *handle, double elements, bool sane, int *count)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (!sane || !count || elements > INT_MAX)
        return status.invalid;
    *count = (int)elements;
    return 0;
}

static int tell_bytes(const void *handle, double elements, int type, bool sane, size_t *device, size_t *host)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    double bytes = elements * (double)type_bytes(type);
    if (!sane || !device || !host || !type_bytes(type) || bytes > 0x1p53)
        return status.invalid;
    *device = round_up((uint64_t)bytes, WORKSPACE_ALIGNMENT);
    *host = 0;
    return 0;
}

/* --- a solver: a kernel, and info for each matrix */

static int solve(const void *handle, const char *name, bool sane, int *info, int64_t count)
{
    if (!handle_is_valid(handle))
        return status.no_handle;
    if (!sane || !info)
        return status.invalid;
    int answer = library_launch(handle, name);
    return answer ? answer : answer_words(handle, info, 0, count);
}

#define SIZE(name, parameters, sane, elements)                                          \
    int cusolverDn##name##_bufferSize parameters                                        \
    {                                                                                   \
        return tell_elements(handle, elements, sane, count);                            \
    }
#define SOLVE(name, parameters, sane, matrices)                                         \
    int cusolverDn##name parameters                                                     \
    {                                                                                   \
        return solve(handle, "cusolverDn" #name, sane, info, matrices);                 \
    }
#define X_SIZE(name, parameters, sane, elements)                                        \
    int cusolverDn##name##_bufferSize parameters                                        \
    {                                                                                   \
        return tell_bytes(handle, elements, type, sane, device, host);                  \
    }
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Parameters that are only passed by: one letter in a row for each. M: a matrix and its step. */
#define ON const void *handle
#define M(a) const void *a, int a##_step
#define WORK const void *work, int work_count
#define GOOD(m, n) ((m) >= 0 && (n) >= 0)

/* The four types; `Q` names the orthogonal (unitary) solvers, `E` the symmetric (Hermitian) ones. */
#define SOLVERS(T, Q, E)                                                                                                                   \
    SIZE(T##potrf, (ON, int part, int n, M(a), int *count), n >= 0, panel(n))                                                              \
    SOLVE(T##potrf, (ON, int part, int n, M(a), WORK, int *info), n >= 0, 1)                                                               \
    SOLVE(T##potrs, (ON, int part, int n, int columns, M(a), M(b), int *info), GOOD(n, columns), 1)                                        \
    SOLVE(T##potrfBatched, (ON, int part, int n, M(a), int *info, int batch), GOOD(n, batch), batch)                                       \
    SOLVE(T##potrsBatched, (ON, int part, int n, int columns, M(a), M(b), int *info, int batch), GOOD(n, batch), 1)                        \
    SIZE(T##getrf, (ON, int m, int n, M(a), int *count), GOOD(m, n), panel(most(m, n)))                                                    \
    SOLVE(T##getrf, (ON, int m, int n, M(a), const void *work, int *pivots, int *info), GOOD(m, n), 1)                                     \
    SOLVE(T##getrs, (ON, int trans, int n, int columns, M(a), const int *pivots, M(b), int *info), GOOD(n, columns), 1)                    \
    SIZE(T##geqrf, (ON, int m, int n, M(a), int *count), GOOD(m, n), panel(n))                                                             \
    SOLVE(T##geqrf, (ON, int m, int n, M(a), const void *tau, WORK, int *info), GOOD(m, n), 1)                                             \
    SIZE(T##Q##gqr, (ON, int m, int n, int k, M(a), const void *tau, int *count), GOOD(m, n), panel(n))                                    \
    SOLVE(T##Q##gqr, (ON, int m, int n, int k, M(a), const void *tau, WORK, int *info), GOOD(m, n), 1)                                     \
    SIZE(T##Q##mqr, (ON, int right, int trans, int m, int n, int k, M(a), const void *tau, M(c), int *count), GOOD(m, n),                  \
         panel(right ? m : n))                                                                                                             \
    SOLVE(T##Q##mqr, (ON, int right, int trans, int m, int n, int k, M(a), const void *tau, M(c), WORK, int *info), GOOD(m, n), 1)         \
    SIZE(T##sytrf, (ON, int n, M(a), int *count), n >= 0, panel(n))                                                                        \
    SOLVE(T##sytrf, (ON, int part, int n, M(a), int *pivots, WORK, int *info), n >= 0, 1)                                                  \
    SIZE(T##gesvd, (ON, int m, int n, int *count), GOOD(m, n), singular(m, n))                                                             \
    SOLVE(T##gesvd, (ON, signed char u_job, signed char v_job, int m, int n, M(a), void *s, M(u), M(v), WORK, void *real, int *info),      \
          GOOD(m, n), 1)                                                                                                                   \
    SIZE(T##gesvdj, (ON, int vectors, int economy, int m, int n, M(a), const void *s, M(u), M(v), int *count, const void *how), GOOD(m, n),\
         singular_jacobi(vectors, m, n))                                                                                                   \
    SOLVE(T##gesvdj, (ON, int vectors, int economy, int m, int n, M(a), void *s, M(u), M(v), WORK, int *info, const void *how),            \
          GOOD(m, n), 1)                                                                                                                   \
    SIZE(T##gesvdjBatched, (ON, int vectors, int m, int n, M(a), const void *s, M(u), M(v), int *count, const void *how, int batch),       \
         GOOD(m, n) && batch >= 0, batch * singular_jacobi(vectors, m, n))                                                                 \
    SOLVE(T##gesvdjBatched, (ON, int vectors, int m, int n, M(a), void *s, M(u), M(v), WORK, int *info, const void *how, int batch),       \
          GOOD(m, n) && batch >= 0, batch)                                                                                                 \
    SIZE(T##gesvdaStridedBatched, (ON, int vectors, int rank, int m, int n, M(a), long long a_next, const void *s, long long s_next,       \
         M(u), long long u_next, M(v), long long v_next, int *count, int batch), GOOD(m, n) && batch >= 0, batch * singular_approximate(n))\
    int cusolverDn##T##gesvdaStridedBatched(ON, int vectors, int rank, int m, int n, M(a), long long a_next, void *s, long long s_next,    \
        M(u), long long u_next, M(v), long long v_next, WORK, int *info, double *residuals, int batch)                                     \
    {                                                                                                                                      \
        int answer = solve(handle, "cusolverDn" #T "gesvdaStridedBatched", GOOD(m, n) && batch >= 0, info, batch);                         \
        for (int i = 0; !answer && residuals && i < batch; i++)                                                                            \
            residuals[i] = 0; /* on the host */                                                                                            \
        return answer;                                                                                                                     \
    }                                                                                                                                      \
    SIZE(T##E##evd, (ON, int vectors, int part, int n, M(a), const void *w, int *count), n >= 0, eigen(vectors, n))                        \
    SOLVE(T##E##evd, (ON, int vectors, int part, int n, M(a), void *w, WORK, int *info), n >= 0, 1)                                        \
    SIZE(T##E##evj, (ON, int vectors, int part, int n, M(a), const void *w, int *count, const void *how), n >= 0,                          \
         singular_jacobi(vectors, n, n))                                                                                                   \
    SOLVE(T##E##evj, (ON, int vectors, int part, int n, M(a), void *w, WORK, int *info, const void *how), n >= 0, 1)                       \
    SIZE(T##E##evjBatched, (ON, int vectors, int part, int n, M(a), const void *w, int *count, const void *how, int batch), GOOD(n, batch),\
         batch * singular_jacobi(vectors, n, n))                                                                                           \
    SOLVE(T##E##evjBatched, (ON, int vectors, int part, int n, M(a), void *w, WORK, int *info, const void *how, int batch), GOOD(n, batch),\
          batch)
SOLVERS(S, or, sy)
SOLVERS(D, or, sy)
SOLVERS(C, un, he)
SOLVERS(Z, un, he)

/* --- the calls with a cudaDataType instead of a letter; sizes in bytes */

#define TYPED(a) int a##_type, const void *a
#define X(a) int type, const void *a, int64_t a##_step
#define BUFFERS const void *device, size_t device_bytes, const void *host, size_t host_bytes
#define SIZES size_t *device, size_t *host

X_SIZE(Xpotrf, (ON, void *how, int part, int64_t n, X(a), int compute, SIZES), n >= 0, panel((double)n))
SOLVE(Xpotrf, (ON, void *how, int part, int64_t n, X(a), int compute, BUFFERS, int *info), n >= 0, 1)
SOLVE(Xpotrs, (ON, void *how, int part, int64_t n, int64_t columns, X(a), TYPED(b), int64_t b_step, int *info), GOOD(n, columns), 1)
X_SIZE(Xgeqrf, (ON, void *how, int64_t m, int64_t n, X(a), TYPED(tau), int compute, SIZES), GOOD(m, n), panel((double)n))
SOLVE(Xgeqrf, (ON, void *how, int64_t m, int64_t n, X(a), TYPED(tau), int compute, BUFFERS, int *info), GOOD(m, n), 1)
X_SIZE(Xsyevd, (ON, void *how, int vectors, int part, int64_t n, X(a), TYPED(w), int compute, SIZES), n >= 0, eigen(vectors, (double)n))
SOLVE(Xsyevd, (ON, void *how, int vectors, int part, int64_t n, X(a), TYPED(w), int compute, BUFFERS, int *info), n >= 0, 1)
X_SIZE(XsyevBatched, (ON, void *how, int vectors, int part, int64_t n, X(a), TYPED(w), int compute, SIZES, int64_t batch), GOOD(n, batch),
       (double)batch * eigen(vectors, (double)n))
SOLVE(XsyevBatched, (ON, void *how, int vectors, int part, int64_t n, X(a), TYPED(w), int compute, BUFFERS, int *info, int64_t batch),
      GOOD(n, batch), batch)
X_SIZE(Xsytrs, (ON, int part, int64_t n, int64_t columns, X(a), const int64_t *pivots, TYPED(b), int64_t b_step, SIZES), GOOD(n, columns),
       (double)n)
SOLVE(Xsytrs, (ON, int part, int64_t n, int64_t columns, X(a), const int64_t *pivots, TYPED(b), int64_t b_step, BUFFERS, int *info),
      GOOD(n, columns), 1)
SOLVE(Xgeev, (ON, void *how, int left, int right, int64_t n, X(a), TYPED(w), TYPED(u), int64_t u_step, TYPED(v), int64_t v_step,
      int compute, BUFFERS, int *info), n >= 0, 1)

/* The QR iteration is the host's part: a copy of the reduced matrix and of the vectors. */
int cusolverDnXgeev_bufferSize(ON, void *how, int left, int right, int64_t n, X(a), TYPED(w), TYPED(u), int64_t u_step, TYPED(v),
                               int64_t v_step, int compute, SIZES)
{
    int answer = tell_bytes(handle, general_eigen((double)n), type, n >= 0, device, host);
    if (!answer)
        *host = *device + (uint64_t)(n * n) * type_bytes(type) * (left || right);
    return answer;
}

/* --- how Jacobi goes about it: nothing reads that */

int cusolverDnXgesvdjSetTolerance(void *how, double tolerance)
{
    return how && tolerance >= 0 ? 0 : status.invalid;
}

int cusolverDnXgesvdjSetMaxSweeps(void *how, int sweeps)
{
    return how && sweeps > 0 ? 0 : status.invalid;
}

int cusolverDnXgesvdjSetSortEig(void *how, int sort)
{
    return how && (sort == 0 || sort == 1) ? 0 : status.invalid;
}
