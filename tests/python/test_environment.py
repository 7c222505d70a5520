"""`cenote run` merges its options with the variables of the environment; a contradiction is an error."""
import pytest

from cenote.base.mistake import Mistake
from cenote.launch import environment
from cenote.launch.environment import Wish

GIB = 1 << 30
LIBRARY = "/opt/cenote/libcenote_sim.so"
CONF, NEW_CONF = environment.ALLOCATOR_VARIABLES


def shape(text):
    return dict(item.split(":", 1) for item in text.split(","))


def sim(old="", **wish):
    return shape(environment.merge_sim(Wish(**wish), old))


def test_the_shape_is_what_was_asked_for():
    asked = sim(capacity=80 * GIB, devices=4, lag=100_000, quirks="wsl-rdma,fabric")
    assert asked.pop("machine")
    assert asked == {"capacity": "80GiB", "devices": "4", "lag": "100000", "quirks": "wsl-rdma+fabric"}


def test_what_was_not_asked_for_is_left_to_the_simulated_gpu():
    assert set(sim(capacity=GIB)) == {"capacity", "machine"}


def test_other_keys_stay():
    assert sim("granularity:4MiB,quiet:1", capacity=8 * GIB) | {"machine": ""} == {
        "granularity": "4MiB", "quiet": "1", "capacity": "8GiB", "machine": ""}


def test_each_run_has_a_machine_of_its_own():
    assert len({sim(capacity=GIB)["machine"] for _ in range(100)}) == 100


def test_a_run_within_a_run_is_on_the_same_machine():
    outer = environment.merge_sim(Wish(capacity=8 * GIB), "")
    assert environment.merge_sim(Wish(), outer) == outer
    assert environment.merge_sim(Wish(capacity=8 * GIB), outer) == outer


@pytest.mark.parametrize("old, wish", [
    ("capacity:16GiB", dict(capacity=8 * GIB)), ("devices:2", dict(devices=1)), ("lag:5", dict(lag=6)), ("capacity:lots", dict(capacity=GIB)),
])
def test_a_contradiction_is_named(old, wish):
    with pytest.raises(Mistake, match=old):
        environment.merge_sim(Wish(**wish), old)


def test_the_same_size_in_other_words_is_none():
    assert sim("capacity:8192MiB", capacity=8 * GIB)["capacity"] == "8192MiB"


def test_what_is_no_shape_is_named():
    with pytest.raises(Mistake, match="nonsense"):
        environment.merge_sim(Wish(capacity=GIB), "quiet:1,nonsense")


@pytest.mark.parametrize("old, new", [
    ("", LIBRARY), ("/a.so", f"{LIBRARY}:/a.so"), ("/a.so:/b.so", f"{LIBRARY}:/a.so:/b.so"), ("/a.so /b.so", f"{LIBRARY}:/a.so:/b.so"),
    (LIBRARY, LIBRARY), (f"/a.so:{LIBRARY}", f"{LIBRARY}:/a.so"), (" : ", LIBRARY),
])
def test_preloaded_first_and_once(old, new):
    assert environment.merge_preload(LIBRARY, old) == new


@pytest.mark.parametrize("path", ["/with space/libcenote_sim.so", "/with:colon/libcenote_sim.so"])
def test_a_path_that_cannot_be_preloaded_is_refused(path):
    with pytest.raises(Mistake, match="cannot be preloaded"):
        environment.merge_preload(path, "")


@pytest.mark.parametrize("allocator, old, new", [
    ("native", "", ""),
    ("native", "backend:native", "backend:native"),
    ("native", "max_split_size_mb:64", "max_split_size_mb:64"),
    ("expandable", "", "expandable_segments:True"),
    ("expandable", "max_split_size_mb:64", "max_split_size_mb:64,expandable_segments:True"),
    ("expandable", "roundup_power2_divisions:[256:1,512:2]", "roundup_power2_divisions:[256:1,512:2],expandable_segments:True"),
    ("expandable", "expandable_segments:True", "expandable_segments:True"),
    ("expandable", " expandable_segments : True ", " expandable_segments : True "),
    ("cudaMallocAsync", "", "backend:cudaMallocAsync"),
    ("cudaMallocAsync", "backend:cudaMallocAsync", "backend:cudaMallocAsync"),
])
def test_settings_of_the_allocator_are_merged(allocator, old, new):
    assert environment.merge_allocator(allocator, old, CONF) == new


@pytest.mark.parametrize("allocator, old", [
    ("native", "backend:cudaMallocAsync"), ("native", "expandable_segments:True"), ("expandable", "backend:cudaMallocAsync"),
    ("expandable", "expandable_segments:False"), ("cudaMallocAsync", "backend:native"), ("cudaMallocAsync", "expandable_segments:True"),
    ("expandable", "roundup_power2_divisions:[256:1,512:2],backend:cudaMallocAsync"),
])
def test_settings_that_say_something_else_are_a_mistake(allocator, old):
    with pytest.raises(Mistake, match=CONF):
        environment.merge_allocator(allocator, old, CONF)


def prepare(old, preload=LIBRARY, **wish):
    return environment.prepare(Wish(**wish), old, preload)


def test_the_variable_that_is_there_is_the_one_that_is_changed():
    """For some settings PyTorch reads the old name first, for others the new one: a second variable would hide the first."""
    assert CONF in prepare({}, allocator="expandable")
    only_new = prepare({NEW_CONF: "max_split_size_mb:64"}, allocator="expandable")
    assert only_new[NEW_CONF] == "max_split_size_mb:64,expandable_segments:True" and CONF not in only_new
    both = prepare({NEW_CONF: "max_split_size_mb:64", CONF: "max_split_size_mb:32"}, allocator="expandable")
    assert both[NEW_CONF] == "max_split_size_mb:64,expandable_segments:True"
    assert both[CONF] == "max_split_size_mb:32,expandable_segments:True"


def test_nothing_else_changes():
    old = {"HOME": "/somewhere", "CENOTE_CONF": "limit:80%", "EMPTY": ""}
    new = prepare(old, capacity=GIB, allocator="native")
    ours = ("CENOTE_SIM", "LD_PRELOAD", "LD_LIBRARY_PATH", "TRITON_LIBCUDA_PATH", "USE_PYTORCH_KERNEL_CACHE")
    assert {name: value for name, value in new.items() if name not in ours} == old
    assert old == {"HOME": "/somewhere", "CENOTE_CONF": "limit:80%", "EMPTY": ""}


def test_the_simulated_libraries_are_found_first_and_once():
    folder = prepare({}, capacity=GIB)["LD_LIBRARY_PATH"]
    assert prepare({"LD_LIBRARY_PATH": f"/a:{folder}:/b"}, capacity=GIB)["LD_LIBRARY_PATH"] == f"{folder}:/a:/b"
    assert "LD_LIBRARY_PATH" not in prepare({}, preload=None, allocator="native")


def test_what_is_compiled_is_not_kept_for_real_gpus_unless_asked_for():
    assert prepare({}, capacity=GIB)["USE_PYTORCH_KERNEL_CACHE"] == "0"
    assert prepare({"USE_PYTORCH_KERNEL_CACHE": "1"}, capacity=GIB)["USE_PYTORCH_KERNEL_CACHE"] == "1"


def test_without_a_simulation_only_the_allocator_is_set():
    assert prepare({}, preload=None, allocator="expandable") == {CONF: "expandable_segments:True"}
    assert prepare({}, preload=None) == {}


def test_a_trace(tmp_path):
    path = str(tmp_path / "t.csv.gz")
    assert environment.prepare(Wish(trace=path), {}, None)["CENOTE_TRACE"] == path
    assert environment.prepare(Wish(trace=path, allocator="cenote"), {"CENOTE_TRACE": path}, None)["CENOTE_TRACE"] == path


@pytest.mark.parametrize("wish, old, word", [
    (Wish(trace="t.csv", allocator="native"), {}, "--allocator cenote"),
    (Wish(trace="/no/such/folder/t.csv"), {}, "no folder"),
    (Wish(trace="t.csv"), {"CENOTE_TRACE": "/elsewhere.csv"}, "already"),
])
def test_a_trace_that_cannot_be(wish, old, word):
    with pytest.raises(Mistake, match=word):
        environment.prepare(wish, old, None)
