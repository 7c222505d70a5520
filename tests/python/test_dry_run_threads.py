"""What threads read back that neither Python nor PyTorch started: those of a library of C++."""
import pytest
from test_dry_run import dry, line_of  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

FOREIGN = """
    import ctypes, time, torch
    libc, start = ctypes.CDLL(None), ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def foreign(do):                # in a thread that neither Python nor PyTorch starts
        done, thread = [], ctypes.c_ulong()
        function = start(lambda _: done.append(do()) or 0)
        libc.pthread_create(ctypes.byref(thread), None, function, None)
        libc.pthread_join(thread, None)
        return done[0]
    x = torch.arange(6, dtype=torch.float32, device="cuda")
    dirty = torch.full((1024,), torch.nan).cuda()   # what a block holds that is taken again
    del dirty
    want = [0, 1, 2, 3, 4, 5]
    assert foreign(lambda: x[3].item()) == 3 and foreign(lambda: x.tolist()) == want and foreign(lambda: x.cpu()).tolist() == want
    assert foreign(lambda: torch.zeros(6).copy_(x)).tolist() == want and foreign(lambda: x.to("cpu", torch.float64)).tolist() == want
    assert foreign(lambda: (torch.zeros(6).pin_memory().copy_(x, non_blocking=True), torch.cuda.synchronize())[0]).tolist() == want
    assert foreign(lambda: torch.equal(x, x)) and foreign(lambda: len(x.nonzero())) == 5
    assert foreign(lambda: [len(x.unique()), len((x > 2).nonzero()), (x * 2).tolist()]) == [6, 3, [0, 2, 4, 6, 8, 10]]  # seen from its first read on
    print("known")
    made = foreign(lambda: (x * 2).tolist())        # made
    kept = foreign(lambda: len(x[x > 2]))           # kept
    rows = foreign(lambda: len((torch.ones(64, 64, device="cuda") > 0).nonzero()))  # rows
    assert all(-9 < value < 9 for value in made) and kept == 3 and rows == 2048, (made, kept, rows)
    print("plausible")
"""


def test_threads_of_other_languages(dry):  # noqa: F811
    """They read what the last owner of a block had left, and counts of zero, and no verdict said so."""
    done, found = dry(FOREIGN, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0 and "known\nplausible" in done.stdout, done.stdout + done.stderr
    told = {row["line"] for row in found["unknown_reads"]}
    assert told == {line_of(FOREIGN, mark) for mark in ("# made", "# kept", "# rows")}, found["unknown_reads"]
