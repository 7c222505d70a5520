"""torch.linalg, torch.fft, torch.sparse and matrix products on the simulated libraries: every call runs, returns the right shape, and asks for
nothing that is not simulated. The tests look at no values: kernels do nothing.
"""

import pytest

import simulated

torch = pytest.importorskip("torch")

GPU = "cuda:0"
LINALG, FFT = torch.linalg, torch.fft
REAL, COMPLEX = (torch.float32, torch.float64), (torch.complex64, torch.complex128)


@pytest.fixture(autouse=True)
def nothing_is_missing(capfd):
    yield
    torch.cuda.synchronize()
    err = capfd.readouterr().err
    assert "is not simulated" not in err, err


def cuda(*shape, dtype=torch.float32):
    """Zeros: a kernel would not fill it, a memset does."""
    return torch.zeros(*shape, dtype=dtype, device=GPU)


def shapes(result):
    """Shapes of a tensor or of a tuple of them."""
    if isinstance(result, torch.Tensor):
        return tuple(result.shape)
    return [tuple(r.shape) for r in result]


def expect(result, shape):
    parts = [result] if isinstance(result, torch.Tensor) else list(result)
    assert all(p.device.type == "cuda" for p in parts)
    assert shapes(result) == shape


# --- products

PRODUCTS = {
    "mm": (lambda d: torch.mm(cuda(32, 48, dtype=d), cuda(48, 64, dtype=d)), (32, 64)),
    "mm transposed": (lambda d: torch.mm(cuda(48, 32, dtype=d).t(), cuda(64, 48, dtype=d).t()), (32, 64)),
    "mv": (lambda d: torch.mv(cuda(32, 48, dtype=d), cuda(48, dtype=d)), (32,)),
    "dot": (lambda d: torch.dot(cuda(48, dtype=d), cuda(48, dtype=d)), ()),
    "bmm": (lambda d: torch.bmm(cuda(5, 32, 48, dtype=d), cuda(5, 48, 64, dtype=d)), (5, 32, 64)),
    "matmul broadcast": (lambda d: cuda(2, 1, 32, 48, dtype=d) @ cuda(5, 48, 64, dtype=d), (2, 5, 32, 64)),
    "addmm": (lambda d: torch.addmm(cuda(64, dtype=d), cuda(32, 48, dtype=d), cuda(48, 64, dtype=d)), (32, 64)),
    "addmm full": (lambda d: torch.addmm(cuda(32, 64, dtype=d), cuda(32, 48, dtype=d), cuda(48, 64, dtype=d), beta=2), (32, 64)),
    "addmv": (lambda d: torch.addmv(cuda(32, dtype=d), cuda(32, 48, dtype=d), cuda(48, dtype=d)), (32,)),
    "addbmm": (lambda d: torch.addbmm(cuda(32, 64, dtype=d), cuda(5, 32, 48, dtype=d), cuda(5, 48, 64, dtype=d)), (32, 64)),
    "baddbmm": (lambda d: torch.baddbmm(cuda(5, 32, 64, dtype=d), cuda(5, 32, 48, dtype=d), cuda(5, 48, 64, dtype=d)), (5, 32, 64)),
    "linear": (lambda d: torch.nn.functional.linear(cuda(7, 16, 48, dtype=d), cuda(64, 48, dtype=d), cuda(64, dtype=d)), (7, 16, 64)),
    "tensordot": (lambda d: torch.tensordot(cuda(4, 5, 6, dtype=d), cuda(5, 6, 7, dtype=d), 2), (4, 7)),
    "einsum": (lambda d: torch.einsum("bij,bjk->bik", cuda(3, 4, 5, dtype=d), cuda(3, 5, 6, dtype=d)), (3, 4, 6)),
}


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_product(name, dtype):
    run, shape = PRODUCTS[name]
    expect(run(dtype), shape)


def test_vdot():
    expect(torch.vdot(cuda(9, dtype=torch.complex64), cuda(9, dtype=torch.complex64)), ())


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_epilogue(dtype, gelu):
    expect(torch._addmm_activation(cuda(64, dtype=dtype), cuda(32, 48, dtype=dtype), cuda(48, 64, dtype=dtype), use_gelu=gelu), (32, 64))


def test_training_step_through_linear_and_gelu():
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 16)).to(GPU, torch.bfloat16)
    x = cuda(64, 128, dtype=torch.bfloat16).requires_grad_()
    model(x).sum().backward()
    expect(x.grad, (64, 128))
    assert [tuple(p.grad.shape) for p in model.parameters()] == [tuple(p.shape) for p in model.parameters()]


def test_int8_product():
    result = torch._int_mm(cuda(32, 64, dtype=torch.int8), cuda(64, 48, dtype=torch.int8))
    expect(result, (32, 48))
    assert result.dtype is torch.int32


@pytest.mark.parametrize("rows", [False, True], ids=["tensor", "row"])
def test_scaled_product(rows):
    a = cuda(64, 128, dtype=torch.float8_e4m3fn)
    b = cuda(32, 128, dtype=torch.float8_e4m3fn).t()
    scales = (cuda(64, 1), cuda(1, 32)) if rows else (cuda(1), cuda(1))
    expect(torch._scaled_mm(a, b, *scales, out_dtype=torch.bfloat16), (64, 32))


def test_grouped_product():
    a, b = cuda(64, 32, dtype=torch.bfloat16), cuda(4, 16, 32, dtype=torch.bfloat16)
    ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32, device=GPU)
    expect(torch._grouped_mm(a, b.transpose(-2, -1), offs=ends, out_dtype=torch.bfloat16), (64, 16))


def test_product_with_blas_lt_preferred():
    before = torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        for dtype in (torch.float16, torch.float32, torch.float64, torch.complex64):
            expect(torch.mm(cuda(33, 65, dtype=dtype), cuda(65, 17, dtype=dtype)), (33, 17))
            expect(torch.bmm(cuda(3, 33, 65, dtype=dtype), cuda(3, 65, 17, dtype=dtype)), (3, 33, 17))
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def test_dot_reads_zero():
    """The one value that a simulated library returns."""
    full = torch.zeros(8, device=GPU)
    assert torch.dot(full, full).item() == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_product_on_another_device():
    before = torch.cuda.mem_get_info(1)[0]
    a = torch.zeros(64, 64, device="cuda:1")
    result = a @ a
    assert result.device.index == 1
    assert before - torch.cuda.mem_get_info(1)[0] > 0


def test_product_in_a_graph():
    a, b = cuda(64, 64), cuda(64, 64)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.mm(a, b)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = torch.mm(a, b)
    graph.replay()
    expect(result, (64, 64))


def test_cublas_takes_its_pool_beside_pytorch():
    """The first product opens a handle. Its 32 MiB (compute capability 9; the environment may set less) are not in PyTorch's statistics."""
    code = """
        import torch
        a = torch.zeros(64, 64, device="cuda")
        torch.cuda.synchronize()
        def others():
            return torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
        before = others()
        torch.mm(a, a)
        print(others() - before)
    """
    assert int(simulated.forked(code).stdout) == 32 << 20
    assert int(simulated.forked(code, CUBLAS_WORKSPACE_CONFIG=":4096:8").stdout) == 32 << 20
    assert int(simulated.forked(code, CUBLAS_WORKSPACE_CONFIG=":16:8").stdout) == 2 << 20  # 128 KiB, and memory comes in pages of 2 MiB


# --- torch.linalg

N, M = 12, 8
SQUARE = lambda d: cuda(N, N, dtype=d)  # noqa: E731
TALL = lambda d: cuda(N, M, dtype=d)  # noqa: E731
WIDE = lambda d: cuda(M, N, dtype=d)  # noqa: E731
MANY = lambda d: cuda(3, N, N, dtype=d)  # noqa: E731
BIG = lambda d: cuda(600, 600, dtype=d)  # noqa: E731

LINEAR = {
    "cholesky": (lambda d: LINALG.cholesky(SQUARE(d)), (N, N)),
    "cholesky of many": (lambda d: LINALG.cholesky(MANY(d)), (3, N, N)),
    "cholesky_ex": (lambda d: LINALG.cholesky_ex(MANY(d), check_errors=True), [(3, N, N), (3,)]),
    "cholesky_solve": (lambda d: torch.cholesky_solve(TALL(d), SQUARE(d)), (N, M)),
    "cholesky_solve of many": (lambda d: torch.cholesky_solve(cuda(3, N, 1, dtype=d), MANY(d)), (3, N, 1)),
    "cholesky_inverse": (lambda d: torch.cholesky_inverse(SQUARE(d)), (N, N)),
    "lu": (lambda d: LINALG.lu(TALL(d)), [(N, N), (N, M), (M, M)]),
    "lu_factor": (lambda d: LINALG.lu_factor(SQUARE(d)), [(N, N), (N,)]),
    "lu_factor of many": (lambda d: LINALG.lu_factor(MANY(d)), [(3, N, N), (3, N)]),
    "lu_factor of a big one": (lambda d: LINALG.lu_factor(BIG(d)), [(600, 600), (600,)]),
    "lu_solve": (lambda d: LINALG.lu_solve(*LINALG.lu_factor(SQUARE(d)), TALL(d)), (N, M)),
    "lu_solve of many": (lambda d: LINALG.lu_solve(*LINALG.lu_factor(MANY(d)), cuda(3, N, 2, dtype=d)), (3, N, 2)),
    "solve": (lambda d: LINALG.solve(SQUARE(d), TALL(d)), (N, M)),
    "solve of many": (lambda d: LINALG.solve(MANY(d), cuda(3, N, 2, dtype=d)), (3, N, 2)),
    "solve_triangular": (lambda d: LINALG.solve_triangular(SQUARE(d), TALL(d), upper=True), (N, M)),
    "solve_triangular of many": (lambda d: LINALG.solve_triangular(MANY(d), cuda(3, N, 2, dtype=d), upper=False), (3, N, 2)),
    "inv": (lambda d: LINALG.inv(SQUARE(d)), (N, N)),
    "inv of many": (lambda d: LINALG.inv(MANY(d)), (3, N, N)),
    "inv_ex": (lambda d: LINALG.inv_ex(SQUARE(d), check_errors=True), [(N, N), ()]),
    "tensorinv": (lambda d: LINALG.tensorinv(cuda(4, 6, 8, 3, dtype=d)), (8, 3, 4, 6)),
    "tensorsolve": (lambda d: LINALG.tensorsolve(cuda(2, 3, 6, dtype=d), cuda(2, 3, dtype=d)), (6,)),
    "det": (lambda d: LINALG.det(SQUARE(d)), ()),
    "det of many": (lambda d: LINALG.det(MANY(d)), (3,)),
    "slogdet": (lambda d: LINALG.slogdet(MANY(d)), [(3,), (3,)]),
    "qr": (lambda d: LINALG.qr(TALL(d)), [(N, M), (M, M)]),
    "qr complete": (lambda d: LINALG.qr(TALL(d), mode="complete"), [(N, N), (N, M)]),
    "qr of many": (lambda d: LINALG.qr(cuda(3, N, M, dtype=d)), [(3, N, M), (3, M, M)]),
    "qr of a big one": (lambda d: LINALG.qr(BIG(d)), [(600, 600), (600, 600)]),
    "householder_product": (lambda d: LINALG.householder_product(TALL(d), cuda(M, dtype=d)), (N, M)),
    "ormqr": (lambda d: torch.ormqr(TALL(d), cuda(M, dtype=d), cuda(N, 5, dtype=d)), (N, 5)),
    "geqrf": (lambda d: torch.geqrf(TALL(d)), [(N, M), (M,)]),
    "eigh": (lambda d: LINALG.eigh(SQUARE(d)), [(N,), (N, N)]),
    "eigh of many": (lambda d: LINALG.eigh(MANY(d)), [(3, N), (3, N, N)]),
    "eigh of a big one": (lambda d: LINALG.eigh(BIG(d)), [(600,), (600, 600)]),
    "eigvalsh": (lambda d: LINALG.eigvalsh(SQUARE(d)), (N,)),
    "eigvals": (lambda d: LINALG.eigvals(SQUARE(d)), (N,)),
    "svd": (lambda d: LINALG.svd(TALL(d), full_matrices=False), [(N, M), (M,), (M, M)]),
    "svd full": (lambda d: LINALG.svd(WIDE(d)), [(M, M), (M,), (N, N)]),
    "svd of many": (lambda d: LINALG.svd(MANY(d)), [(3, N, N), (3, N), (3, N, N)]),
    "svdvals": (lambda d: LINALG.svdvals(TALL(d)), (M,)),
    "svd_lowrank": (lambda d: torch.svd_lowrank(TALL(d), q=4), [(N, 4), (4,), (M, 4)]),
    "lstsq": (lambda d: LINALG.lstsq(TALL(d), cuda(N, 2, dtype=d)).solution, (M, 2)),
    "lstsq of many": (lambda d: LINALG.lstsq(cuda(3, N, M, dtype=d), cuda(3, N, 2, dtype=d)).solution, (3, M, 2)),
    "pinv": (lambda d: LINALG.pinv(TALL(d)), (M, N)),
    "pinv hermitian": (lambda d: LINALG.pinv(SQUARE(d), hermitian=True), (N, N)),
    "matrix_rank": (lambda d: LINALG.matrix_rank(SQUARE(d)), ()),
    "matrix_power": (lambda d: LINALG.matrix_power(SQUARE(d), 5), (N, N)),
    "matrix_power negative": (lambda d: LINALG.matrix_power(SQUARE(d), -2), (N, N)),
    "matrix_exp": (lambda d: LINALG.matrix_exp(SQUARE(d)), (N, N)),
    "matrix_norm": (lambda d: LINALG.matrix_norm(SQUARE(d), 2), ()),
    "nuclear norm": (lambda d: LINALG.matrix_norm(SQUARE(d), "nuc"), ()),
    "norm": (lambda d: LINALG.norm(SQUARE(d)), ()),
    "cond": (lambda d: LINALG.cond(SQUARE(d)), ()),
    "multi_dot": (lambda d: LINALG.multi_dot([TALL(d), WIDE(d), TALL(d)]), (N, M)),
    "cross": (lambda d: LINALG.cross(cuda(5, 3, dtype=d), cuda(5, 3, dtype=d)), (5, 3)),
    "vander": (lambda d: LINALG.vander(cuda(5, dtype=d)), (5, 5)),
    "ldl_factor": (lambda d: LINALG.ldl_factor(SQUARE(d)), [(N, N), (N,)]),
    "ldl_solve": (lambda d: LINALG.ldl_solve(*LINALG.ldl_factor(SQUARE(d)), TALL(d)), (N, M)),
}


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
@pytest.mark.parametrize("name", LINEAR)
def test_linalg(name, dtype):
    run, shape = LINEAR[name]
    expect(run(dtype), shape)


@pytest.mark.parametrize("driver", ["gesvd", "gesvdj", "gesvda"])
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_svd_by_driver(driver, dtype):
    expect(LINALG.svd(cuda(3, 40, 20, dtype=dtype), full_matrices=False, driver=driver), [(3, 40, 20), (3, 20), (3, 20, 20)])
    expect(LINALG.svd(cuda(40, 20, dtype=dtype), full_matrices=False, driver=driver), [(40, 20), (20,), (20, 20)])


@pytest.mark.parametrize("library", ["cusolver", "magma"])
def test_linalg_by_library(library):
    before = torch.backends.cuda.preferred_linalg_library()
    try:
        torch.backends.cuda.preferred_linalg_library(library)
        expect(LINALG.inv(MANY(torch.float32)), (3, N, N))
        expect(LINALG.cholesky(MANY(torch.float32)), (3, N, N))
        expect(LINALG.eigh(SQUARE(torch.float32)), [(N,), (N, N)])
        expect(LINALG.lu_factor(SQUARE(torch.float32)), [(N, N), (N,)])
    finally:
        torch.backends.cuda.preferred_linalg_library(before)


def test_gradients_of_decompositions():
    plain = LINALG.inv, LINALG.cholesky, LINALG.det, LINALG.eigvalsh, LINALG.svdvals
    for run in (*plain, lambda a: LINALG.qr(a)[0], lambda a: LINALG.solve(a, a)):
        a = SQUARE(torch.float64).requires_grad_()
        run(a).sum().backward()
        expect(a.grad, (N, N))


def test_eig_meets_a_check_of_pytorch():
    """PyTorch checks with a kernel of its own whether all values are finite, and reads the answer from memory that no kernel wrote: 0 means no."""
    with pytest.raises(RuntimeError, match="infs or NaNs"):
        LINALG.eig(SQUARE(torch.float32))


# --- torch.fft

LINE = 360
FOURIER = {
    "fft": (lambda: FFT.fft(cuda(4, LINE, dtype=torch.complex64)), (4, LINE)),
    "ifft": (lambda: FFT.ifft(cuda(4, LINE, dtype=torch.complex128)), (4, LINE)),
    "fft of a real": (lambda: FFT.fft(cuda(4, LINE)), (4, LINE)),
    "fft of half": (lambda: FFT.fft(cuda(4, 256, dtype=torch.complex32)), (4, 256)),
    "fft of a prime": (lambda: FFT.fft(cuda(4, 1009, dtype=torch.complex64)), (4, 1009)),
    "fft of a long line": (lambda: FFT.fft(cuda(1 << 16, dtype=torch.complex64)), (1 << 16,)),
    "fft along the first": (lambda: FFT.fft(cuda(LINE, 4, dtype=torch.complex64), dim=0), (LINE, 4)),
    "rfft": (lambda: FFT.rfft(cuda(4, LINE)), (4, LINE // 2 + 1)),
    "irfft": (lambda: FFT.irfft(cuda(4, LINE // 2 + 1, dtype=torch.complex64)), (4, LINE)),
    "hfft": (lambda: FFT.hfft(cuda(4, 33, dtype=torch.complex64)), (4, 64)),
    "ihfft": (lambda: FFT.ihfft(cuda(4, 64)), (4, 33)),
    "fft2": (lambda: FFT.fft2(cuda(4, 30, 42, dtype=torch.complex64)), (4, 30, 42)),
    "ifft2": (lambda: FFT.ifft2(cuda(4, 30, 42, dtype=torch.complex64)), (4, 30, 42)),
    "rfft2": (lambda: FFT.rfft2(cuda(4, 30, 42)), (4, 30, 22)),
    "irfft2": (lambda: FFT.irfft2(cuda(4, 30, 22, dtype=torch.complex64)), (4, 30, 42)),
    "fftn": (lambda: FFT.fftn(cuda(8, 9, 10, 11, dtype=torch.complex128)), (8, 9, 10, 11)),
    "rfftn": (lambda: FFT.rfftn(cuda(8, 9, 10)), (8, 9, 6)),
    "irfftn": (lambda: FFT.irfftn(cuda(8, 9, 6, dtype=torch.complex64)), (8, 9, 10)),
    "stft": (lambda: torch.stft(cuda(2, 4000), 400, window=cuda(400), return_complex=True), (2, 201, 41)),
}


@pytest.mark.parametrize("name", FOURIER)
def test_fft(name):
    run, shape = FOURIER[name]
    expect(run(), shape)


def test_fft_plans_are_kept_and_dropped():
    cache = torch.backends.cuda.cufft_plan_cache[0]
    cache.clear()
    for length in (16, 24, 16):
        FFT.fft(cuda(2, length, dtype=torch.complex64))
    assert cache.size == 2
    before = cache.max_size
    cache.max_size = 1
    assert cache.size == 1
    cache.max_size = before
    cache.clear()
    assert cache.size == 0


def test_fft_takes_its_work_area_from_pytorch():
    """A line that is too long for one pass takes one copy of the signal, as PyTorch's peak shows."""
    signal = cuda(1 << 20, dtype=torch.complex64)
    result = FFT.fft(signal)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    FFT.fft(signal, out=result)
    assert torch.cuda.max_memory_allocated() - before >= signal.nbytes


# --- torch.sparse

def csr(rows, columns, each, dtype=torch.float32):
    """`each` entries in every row."""
    row = torch.arange(0, rows * each + 1, each, dtype=torch.int32).to(GPU)
    column = (torch.arange(rows * each, dtype=torch.int32) % each).to(GPU)
    return torch.sparse_csr_tensor(row, column, cuda(rows * each, dtype=dtype), (rows, columns))


def bsr(blocks, side, dtype=torch.float32):
    row = torch.arange(blocks + 1, dtype=torch.int32).to(GPU)
    column = torch.arange(blocks, dtype=torch.int32).to(GPU)
    return torch.sparse_bsr_tensor(row, column, cuda(blocks, side, side, dtype=dtype), (blocks * side, blocks * side))


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_sparse_times_dense(dtype):
    a = csr(20, 30, 3, dtype)
    expect(a @ cuda(30, 7, dtype=dtype), (20, 7))
    expect(a @ cuda(30, dtype=dtype), (20,))
    expect(torch.addmm(cuda(20, 7, dtype=dtype), a, cuda(30, 7, dtype=dtype)), (20, 7))
    expect(torch.addmv(cuda(20, dtype=dtype), a, cuda(30, dtype=dtype)), (20,))
    expect(cuda(7, 20, dtype=dtype) @ a, (7, 30))
    expect(torch.sparse.mm(a, cuda(30, 7, dtype=dtype)), (20, 7))


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_sparse_times_sparse(dtype):
    result = csr(20, 30, 3, dtype) @ csr(30, 40, 4, dtype)
    assert result.layout is torch.sparse_csr and tuple(result.shape) == (20, 40)
    assert result.values().shape == (60 * 120 // 30,)


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_sum_of_sparse(dtype):
    result = csr(20, 30, 3, dtype) + csr(20, 30, 4, dtype)
    assert tuple(result.shape) == (20, 30)
    assert result.values().shape == (20 * 7,)


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_sampled_product(dtype):
    result = torch.sparse.sampled_addmm(csr(20, 30, 3, dtype), cuda(20, 9, dtype=dtype), cuda(9, 30, dtype=dtype))
    assert tuple(result.shape) == (20, 30)


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
@pytest.mark.parametrize("columns", [1, 6])
def test_sparse_triangular_solve(dtype, columns):
    solution, _ = torch.triangular_solve(cuda(30, columns, dtype=dtype), csr(30, 30, 3, dtype), upper=False)
    expect(solution, (30, columns))


@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX], ids=str)
def test_sparse_blocks(dtype):
    a = bsr(6, 4, dtype)
    expect(a @ cuda(24, 5, dtype=dtype), (24, 5))
    expect(torch.addmm(cuda(24, 5, dtype=dtype), a, cuda(24, 5, dtype=dtype)), (24, 5))
    expect(torch.addmv(cuda(24, dtype=dtype), a, cuda(24, dtype=dtype)), (24,))
    expect(torch.triangular_solve(cuda(24, 3, dtype=dtype), a, upper=True)[0], (24, 3))
    expect(torch.triangular_solve(cuda(24, 1, dtype=dtype), a, upper=True)[0], (24, 1))


def test_coordinates():
    index = torch.stack([torch.arange(6), torch.arange(6)]).to(GPU)
    a = torch.sparse_coo_tensor(index, cuda(6), (6, 8), is_coalesced=True)
    expect(torch.sparse.mm(a, cuda(8, 5)), (6, 5))
    expect(torch.sparse.addmm(cuda(6, 5), a, cuda(8, 5)), (6, 5))
    assert tuple(a.to_sparse_csr().shape) == (6, 8)
    assert tuple(csr(6, 8, 2).to_sparse_coo().shape) == (6, 8)
    expect(a.to_dense(), (6, 8))
    expect(csr(6, 8, 2).to_dense(), (6, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8], ids=str)
def test_two_of_four(dtype):
    """Compresses and multiplies through cuSPARSELt."""
    dense = cuda(128, 256, dtype=dtype)
    compressed = torch._cslt_compress(dense)
    assert compressed.numel() * compressed.element_size() == dense.nbytes * (10 if dtype is torch.int8 else 9) // 16
    result = torch._cslt_sparse_mm(compressed, cuda(64, 256, dtype=dtype).t())
    expect(result, (128, 64))


def test_two_of_four_search():
    compressed = torch._cslt_compress(cuda(128, 256, dtype=torch.float16))
    assert torch._cslt_sparse_mm_search(compressed, cuda(64, 256, dtype=torch.float16).t()) >= 0


def test_semi_structured_tensor():
    weight = torch.tensor([0, 0, 1, 1], dtype=torch.float16).tile((128, 64)).to(GPU)
    sparse = torch.sparse.to_sparse_semi_structured(weight)
    expect(torch.nn.functional.linear(cuda(64, 256, dtype=torch.float16), sparse), (64, 128))


# --- code compiled at run time

def test_jiterator():
    square = torch.cuda.jiterator._create_jit_fn("template <typename T> T square(T x, T y) { return x * x + y; }")
    expect(square(cuda(100), cuda(100)), (100,))
    several = torch.cuda.jiterator._create_multi_output_jit_fn(
        "template <typename T> void two(T x, T &a, T &b) { a = x; b = -x; }", num_outputs=2)
    expect(several(cuda(7)), [(7,), (7,)])


def test_special_functions_compiled_at_run_time():
    for run in (torch.special.bessel_j0, torch.special.i1e, torch.special.ndtri, torch.special.erfcx, torch.digamma, torch.lgamma):
        expect(run(cuda(10)), (10,))


def test_nothing_compiled_reaches_the_cache_of_real_gpus(monkeypatch, tmp_path):
    monkeypatch.delenv("USE_PYTORCH_KERNEL_CACHE", raising=False)
    code = "import torch; torch.special.bessel_j0(torch.zeros(3, device='cuda'))"
    simulated.forked(code, PYTORCH_KERNEL_CACHE_PATH=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    simulated.forked(code, PYTORCH_KERNEL_CACHE_PATH=str(tmp_path), USE_PYTORCH_KERNEL_CACHE="1")
    assert list(tmp_path.iterdir()) != []  # PyTorch does have such a cache, which a program can switch on


def test_raw_kernel():
    kernel = torch.cuda._compile_kernel('extern "C" __global__ void add(const float *a, float *b, int n) {}', "add")
    a, b = cuda(32), cuda(32)
    kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[a, b, 32])
    expect(b, (32,))
