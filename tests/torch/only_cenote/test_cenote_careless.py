"""Functions of the program that throw when cenote calls them, threads that call Python while it ends, and forked children that inherit held locks:
no memory is lost, no thread waits for ever, and the process goes on. For CENOTE_TEST_ALLOCATOR=cenote."""

import textwrap

import pytest

import careless
import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
SHAPE = "capacity:4GiB,devices:1,context_bytes:300MiB,shuts_down:1"


def run(code: str) -> str:
    """Runs a program. Returns what it prints."""
    return simulated.forked(careless.begin() + textwrap.dedent(code), shape=SHAPE, timeout=60).stdout


# --- what throws


def test_a_callback_that_throws_does_not_cross_the_library():
    """The callback runs below a function of C, which could not give back its locks. The next callbacks run, and the caller gets the same error."""
    said = run("""
        hold = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
        careless.careless_callback(THROWS)
        for _ in range(2):
            try:
                torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                print("out of memory")
        assert careless.careless_callbacks() >= 1
        del hold
        torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        print(torch.cuda.memory_reserved())
    """)
    assert said.splitlines()[:2] == ["out of memory"] * 2 and said.endswith("\n0\n")


@pytest.mark.parametrize("observer", ["careless.careless_profiler(THROWS)", "careless.careless_tracker(THROWS)"], ids=["profiler", "tracker"])
def test_a_block_is_not_lost_when_an_observer_throws(observer):
    """An allocation succeeds or leaves nothing behind, and a free is a free."""
    said = run(f"""
        torch.empty(1, device="cuda")
        before = torch.cuda.memory_allocated()
        live = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        {observer}
        for _ in range(3):
            try:
                torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            except RuntimeError as error:
                assert "careless" in str(error)
        del live
        print(torch.cuda.memory_allocated() - before)
    """)
    assert said == "0\n"


@pytest.mark.parametrize("manner", ["THROWS", "THROWS_A_NUMBER"])
def test_a_destructor_throws_nothing(manner):
    """A tensor is freed in a destructor: an exception of any type that left it would end the process."""
    said = run(f"""
        live = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        before = torch.cuda.memory_allocated()
        careless.careless_profiler({manner})
        del live
        careless.careless_profiler(NOTHING)
        print(before - torch.cuda.memory_allocated())
    """)
    assert said == f"{1 << 20}\n"


def test_a_device_that_cannot_be_added():
    """The second of three devices is refused once. The devices that were added work, and the next try adds the others."""
    done = simulated.fresh(f"""
        import ctypes
        refusing = ctypes.CDLL({careless.path("refusing.cpp")!r}, ctypes.RTLD_GLOBAL)
        import torch
        careless = ctypes.CDLL({careless.path()!r})
        careless.careless_tracker({careless.NOTHING})  # pools are watched from the first moment
        refusing.refuse_watch(2)
        for attempt in range(2):
            try:
                torch.cuda.init()
                print("there")
            except RuntimeError:
                print("refused")
        for device in range(3):
            before = [careless.careless_told_of(each) for each in range(3)]
            torch.empty(1 << 20, dtype=torch.uint8, device=f"cuda:{{device}}")
            print(*[careless.careless_told_of(each) > before[each] for each in range(3)])
        torch.cuda.memory._record_memory_history()
        for device in range(3):
            torch.empty(1 << 20, dtype=torch.uint8, device=f"cuda:{{device}}")
        for trace in torch.cuda.memory._snapshot()["device_traces"]:
            print(*[entry["action"] for entry in trace if "segment" not in entry["action"]])
    """, shape=SHAPE.replace("devices:1", "devices:3"))
    told = ["True False False", "False True False", "False False True"]
    assert done.stdout.splitlines() == ["refused", "there", *told] + ["alloc free_requested free_completed"] * 3


def test_a_filter_that_throws():
    """The filter runs before a block is allocated and under no lock, so that an exception loses nothing."""
    said = run("""
        torch.empty(1, device="cuda")
        before = torch.cuda.memory_allocated()
        careless.careless_filter(THROWS, ctypes.c_uint64(0), ctypes.c_uint64(77))
        for _ in range(3):
            try:
                torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            except RuntimeError as error:
                assert "careless" in str(error)
        careless.careless_filter_ends(ctypes.c_uint64(0), ctypes.c_uint64(77))
        torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        print(torch.cuda.memory_allocated() - before)
    """)
    assert said == "0\n"


# --- history begins and ends


RECORD, STOP, ANEW = ("torch.cuda.memory._record_memory_history(%s)" % words for words in ("", "None", "clear_history=True"))
SWITCHES = [("", RECORD, True), (RECORD, STOP, False), (RECORD, ANEW, True), (RECORD, f"{STOP}; {RECORD}", True)]


@pytest.mark.parametrize("before, switch, recorded", SWITCHES, ids=["begins", "ends", "is cleared", "ends and begins"])
def test_history_is_switched_during_an_allocation(before, switch, recorded):
    """The allocation waits in a function of the program, and gets memory that was freed meanwhile: allocations and frees alternate in the history."""
    said = run(f"""
        import threading
        torch.empty(1, device="cuda")
        {before}
        hold, kept = torch.empty(3 << 30, dtype=torch.uint8, device="cuda"), []
        at = hold.data_ptr()
        careless.careless_callback(STAYS)
        thread = threading.Thread(target=lambda: kept.append(torch.empty(3 << 30, dtype=torch.uint8, device="cuda")))
        thread.start()
        while not careless.careless_staying():
            time.sleep(0.001)
        {switch}
        del hold
        careless.careless_let_go()
        thread.join()
        assert kept[0].data_ptr() == at
        kept.clear()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        print(*[entry["action"] for entry in trace if entry["addr"] == at and "segment" not in entry["action"]])
        print(torch.cuda.memory_allocated())
    """)
    freed = "free_requested free_completed"
    assert said == (f"{freed} alloc {freed}" if recorded else "") + "\n0\n"


# --- Python ends


@pytest.mark.parametrize("asks", ["torch.cuda.memory._record_memory_history(stacks='python')",
                                  "import torch.cuda._gpu_trace as trace\n"
                                  "trace.register_callback_for_memory_deallocation(lambda at: None)\ntorch._C._activate_gpu_trace()"],
                         ids=["a history", "a trace"])
def test_threads_that_ask_python_when_it_ends(asks):
    """Python ends a thread that calls it too late. That must not unwind through a destructor (`terminate called without an active exception`)."""
    for _ in range(3):
        code = f"torch.empty(1, device='cuda')\n{asks}\ncareless.careless_for_ever(2)\ntime.sleep(0.2)\n"
        done = simulated.forked(careless.begin() + code, shape=SHAPE, timeout=60, check=False, whole=True)
        assert (done.returncode, done.stderr) == (0, "")


# --- children


INHERITS = """
torch.empty(1, device="cuda")
kept = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
with torch.cuda.use_mem_pool(pool):
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
with torch.cuda.graph(graph):
    kept.append(kept[0].clone())
pinned = torch.empty(1 << 20, dtype=torch.uint8).pin_memory()
{holds}
while not careless.careless_staying():
    time.sleep(0.001)
{waits}
child = os.fork()
if not child:
    signal.alarm(20)
    assert not torch._C._cuda_isHistoryEnabled()
    assert pool.use_count() == 1  # some versions ask in the destructor
    del kept, pool, graph, pinned
    try:
        torch.cuda.MemPool()
    except RuntimeError as error:
        assert "fork" in str(error), error
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
careless.careless_let_go()
"""
HOLDS = {
    "a tracker": ("careless.careless_tracker(STAYS); careless.careless_allocate()", ""),
    "a picture": ("careless.careless_tracker(STAYS); careless.careless_allocate()", "careless.careless_snapshot(); time.sleep(0.2)"),
    "a filter": ("careless.careless_filter(STAYS, ctypes.c_uint64(0), ctypes.c_uint64(77)); careless.careless_allocate()", ""),
}


@pytest.mark.parametrize("holder", HOLDS)
@pytest.mark.parametrize("history", [False, True], ids=["", "with a history"])
def test_a_child_waits_for_no_lock(holder, history):
    """The child drops what it inherited, while locks of the adapter are held by a thread that does not exist in the child."""
    holds, waits = HOLDS[holder]
    records = "torch.cuda.memory._record_memory_history(stacks='python')\n" if history else ""
    assert run(INHERITS.format(holds=records + holds, waits=waits)) == "7\n"
