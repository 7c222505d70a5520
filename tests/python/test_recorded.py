"""`cenote replay --recorded`. The recordings are made here: PyTorch's own allocators on the simulated GPU, whose code is what the models are of. So
the models have to hold what they held, and put each block where they did. Six recordings of a real card are in traces/h100; docs/real-cards.md has
what came of others."""
import copy
import json
import pathlib
import pickle

import pytest

from cenote.replay import comparison, recorded, recording

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
KINDS = ("native", "expandable")

PROGRAM = """
import pickle, random, sys
import torch
chance, live = random.Random(7), []
streams = [torch.cuda.current_stream(), torch.cuda.Stream()]

def work(steps, count, size=lambda: int(2 ** chance.uniform(6, 25))):
    for _ in range(steps):
        if live and (len(live) > 60 or chance.random() < 0.45):
            live.pop(chance.randrange(len(live)))
            continue
        stream = chance.choice(streams[:count])
        with torch.cuda.stream(stream):
            try:
                block = torch.empty(size(), dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                del live[::2]
                continue
        if chance.random() < 0.2:
            block.record_stream(streams[-1])
        live.append(block)

def dump(name):
    with open(f"{sys.argv[1]}/{name}.pickle", "wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)

def record(most):
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(max_entries=most, stacks="python")

record(100000)
work(400, 1)
dump("whole")
record(100000)
work(300, 1)
torch.cuda.empty_cache()
work(300, 1)
dump("middle")
record(900)
work(900, 2)
live[:] = live[::2]
torch.cuda.empty_cache()
work(300, 2)
dump("two")

def begin_anew():
    live.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    record(100000)

begin_anew()
torch.cuda.set_per_process_memory_fraction(600 / 8192)
work(1500, 2, lambda: int(2 ** chance.uniform(6, 27)))
assert torch.cuda.memory_stats()["num_ooms"] > 0
dump("short")
torch.cuda.set_per_process_memory_fraction(1.0)

begin_anew()
for _ in range(6):
    work(300, 1, lambda: chance.choice((3, 5, 12, 16, 32)) << 20)
    del live[::3]
    torch.cuda.empty_cache()
dump("equals")
"""


@pytest.fixture(scope="module")
def taken(nursed_python, tmp_path_factory):
    """taken(KIND)[NAME]: a recording of PyTorch's allocator of that kind: of a whole program; from the middle on, with a cache that is emptied;
    of two streams, so long that its beginning is lost; of two streams and a limit that is too low; of blocks of few sizes, with a cache that is
    emptied, so that new segments lie below older ones."""
    from conftest import caller, clean_environment
    made = {}

    def take(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            (folder / "program.py").write_text(PROGRAM)
            done = caller(nursed_python, clean_environment(), folder)("run", "--sim", "8GiB", "--allocator", kind, folder / "program.py", folder)
            assert done.returncode == 0, done.stderr
            made[kind] = {name: folder / f"{name}.pickle" for name in ("whole", "middle", "two", "short", "equals")}
        return made[kind]
    return take


def runs_of(run, *arguments):
    done = run("replay", "--recorded", "--sim", "8GiB", "--json", "-", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)["runs"]


@pytest.mark.simulation
@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_goes_the_way_of_the_allocator(run, taken, tmp_path, kind):
    paths = taken(kind)
    for name, found in zip(paths, runs_of(run, "--plot", tmp_path / "out.png", *paths.values())):
        assert (found["recording"], found["model"], found["streams"]) == (name, kind, 2 if name in ("two", "short") else 1)
        assert found["equal"] == found["compared"] > 300 and found["blocks_in_place"] == found["blocks"] > 100, found["findings"]
        assert found["segment_events"] == found["segment_events_equal"] > 5
        assert found["findings"] == [recorded.TIES["segment"]] * (kind == "native" and name == "equals")
        assert found["card_peak_bytes"] == found[f"{kind}_peak_bytes"] and (found["card_first_bytes"] > 0) == (name in ("middle", "two"))
        assert found["requested_peak_bytes"] <= found["cenote_peak_bytes"] < 1.5 * found["requested_peak_bytes"] + 64 * MIB
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_model_goes_the_way_of_a_real_card(run):
    """PyTorch 2.11.0 on an H100: of equal free blocks that at the lowest address is taken."""
    for found in runs_of(run, *sorted((ROOT / "traces/h100").glob("*.pickle.gz"))):
        name = found["recording"]
        assert (name.partition("-")[0], found["findings"]) == (found["model"], []) and found["streams"] == 2
        assert found["equal"] == found["compared"] > 1000 and found["segment_events"] == found["segment_events_equal"] > 15, name
        assert found["blocks_in_place"] == found["blocks"] > 500 and found["card_peak_bytes"] == found[f"{found['model']}_peak_bytes"], name


@pytest.mark.simulation
@pytest.mark.torch
def test_a_card_that_did_something_else(run, taken, tmp_path):
    """In the recording a segment is taken that no allocation needs: the first disagreement is the allocation after it."""
    snapshot = pickle.loads(taken("native")["whole"].read_bytes())
    (events,), segment = snapshot["device_traces"], snapshot["segments"][0]
    alloc = [i for i, e in enumerate(events) if e["action"] == "alloc"][40]
    events[alloc]["frames"] = [{"filename": "train.py", "line": 12, "name": "step"}]
    events.insert(alloc, {**events[alloc], "action": "segment_alloc", "addr": 1 << 44, "size": 2 * MIB})
    snapshot["segments"].append({**segment, "address": 1 << 44, "total_size": 2 * MIB, "segment_type": "small",
                                 "blocks": [{"address": 1 << 44, "size": 2 * MIB, "requested_size": 0, "state": "inactive"}]})
    (tmp_path / "other.pickle").write_bytes(pickle.dumps(snapshot))
    (found,) = runs_of(run, tmp_path / "other.pickle")
    assert 0 < found["equal"] < found["compared"] and found["first_difference_event"] == alloc + 1
    assert found["segment_events_equal"] < found["segment_events"] and found["card_peak_bytes"] == found["native_peak_bytes"] + 2 * MIB
    assert f"first disagreement: event {alloc + 1:,} (alloc, " in found["findings"][0] and "train.py:12 step" in found["findings"][0]
    assert "the card took 2.00 MiB and held " in found["findings"][0] and "the model took nothing and held " in found["findings"][0]
    done = run("replay", "--recorded", tmp_path / "other.pickle")
    assert done.returncode == 0 and f"\nother: {found['findings'][0]}\n" in done.stdout, done.stderr


# --- without PyTorch

A, B = 16 * MIB, 64 * MIB  # addresses of two segments


def snapshot(*events, segments=((A, 2 * MIB, "small", ()), (B, 20 * MIB, "large", ())), **more):
    """Events are (action, address, size); a segment is (address, bytes, pool, its live blocks as (address, size, bytes asked for))."""
    def blocks(address, total, live):
        for at, size, requested in (*live, (address + total, 0, 0)):
            if at > address:
                yield {"address": address, "size": at - address, "requested_size": 0, "state": "inactive"}
            if size:
                yield {"address": at, "size": size, "requested_size": requested, "state": "active_allocated"}
            address = at + size
    return {"device_traces": [[{"action": action, "addr": address, "size": size, "stream": 0, "time_us": 100 + i, "frames": []}
                               for i, (action, address, size) in enumerate(events)]],
            "segments": [{"device": 0, "address": address, "total_size": total, "stream": 0, "segment_type": pool, "is_expandable": False,
                          "blocks": list(blocks(address, total, live))} for address, total, pool, live in segments], **more}


TAKES = ("segment_alloc", B, 20 * MIB), ("alloc", B, 5 * MIB)


def lines_of(tmp_path, made):
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(made))
    with open(tmp_path / "s.pickle", "rb") as file:
        return recording.recordings("s.pickle", file)[0]


def test_what_was_there_before(tmp_path):
    """A block of 3 MiB that lies in a piece of 3.5 MiB has all of it: the next block shows where it ends. Then comes the free rest."""
    found = lines_of(tmp_path, snapshot(("alloc", B + 7 * MIB // 2, 2 * MIB), ("free_completed", B, 3 * MIB),
                                        segments=((A, 2 * MIB, "small", ()), (B, 20 * MIB, "large", ((B + 7 * MIB // 2, 2 * MIB, 2 * MIB),)))))
    model_setup = [line.strip().split(",") for line in found.model[:found.model_setup]]
    assert [(line[1], line[3], line[6], line[7], line[8]) for line in model_setup] == [
        ("a", str(2 * MIB), "0", str(A), str(2 * MIB)), ("a", str(7 * MIB // 2), "1", str(B), str(22 * MIB)),
        ("a", str(33 * MIB // 2), "1", str(B + 7 * MIB // 2), str(22 * MIB)), ("f", "", "0", "", str(22 * MIB)), ("f", "", "0", "", str(22 * MIB))]
    assert [line.split(",")[1:4] for line in found.plain] == [["a", "2", str(3 * MIB)], ["a", "4", str(2 * MIB)], ["f", "2", ""]]
    assert [(moment.reserved, moment.live) for moment in found.moments] == [(22 * MIB, 5 * MIB), (22 * MIB, 2 * MIB)]


def test_segments_come_and_go(tmp_path):
    """The one of 20 MiB comes, the one of 2 MiB goes when the cache is given back, which a step says."""
    found = lines_of(tmp_path, snapshot(*TAKES, ("segment_free", A, 2 * MIB), ("free_completed", B, 5 * MIB), segments=((B, 20 * MIB, "large", ()),)))
    assert [line.split(",")[1] for line in found.model[found.model_setup:]] == ["a", "s", "f"] and found.reserved_before == 2 * MIB
    assert [(moment.event, moment.reserved, moment.changes) for moment in found.moments] == [(1, 22 * MIB, 1), (2, 20 * MIB, 1), (3, 20 * MIB, 0)]


def test_a_segment_comes_where_others_went(tmp_path):
    """The card was short: the allocator gives back, and takes."""
    found = lines_of(tmp_path, snapshot(("segment_free", A, 2 * MIB), *TAKES, segments=((B, 20 * MIB, "large", ((B, 5 * MIB, 5 * MIB),)),)))
    assert [line.split(",")[1] for line in found.model[found.model_setup:]] == ["s", "a"]
    assert [(moment.event, moment.reserved, moment.changes) for moment in found.moments] == [(0, 0, 1), (2, 20 * MIB, 1)]


def test_what_the_models_do_not_have(tmp_path):
    made = snapshot(*TAKES, allocator_settings={"max_split_size": 200 * MIB, "roundup_power2_divisions": {"1": 4}})
    made["segments"][0]["segment_pool_id"] = (0, 1)
    assert [note.split()[0] for note in lines_of(tmp_path, made).notes] == ["recorded", "recorded", "the"]


def change(path, value):
    def changed(made):
        at = made = copy.deepcopy(made)
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        return made
    return changed


@pytest.mark.parametrize("damage, why", [
    (change(["device_traces", 0, 0, "size"], 22 * MIB), "event 0 (segment_alloc) does not agree with the segments at the end"),
    (change(["device_traces", 0, 0, "addr"], 0), "event 0 (segment_alloc) does not agree with the segments at the end"),
    (change(["device_traces", 0, 0, "size"], "much"), "size is 'much'"), (change(["device_traces", 0, 0, "size"], -1), "size is -1"),
    (change(["device_traces", 0, 1], {"size": 1}), "'action'"), (change(["device_traces", 0, 1], 5), "device 0 is broken"),
    (change(["segments", 0, "total_size"], None), "total_size is None"), (change(["segments", 1, "segment_type"], []), "segment_type is []"),
    (change(["device_traces", 0], []), "no allocation was recorded"), (change(["device_traces"], 5), "device_traces"),
    (lambda s: snapshot(*TAKES, ("alloc", B, 512)), "allocates 0x4000000, which is live"),
    (lambda s: snapshot(*TAKES, ("free_completed", B + 1, 512)), "lies in no segment"),
    (lambda s: snapshot(*[("free_completed", B, 512)] * 2), "event 1 frees 0x4000000, which is not live"),
    (lambda s: snapshot(("free_completed", B, 4 * MIB), ("free_completed", B + 2 * MIB, 2 * MIB)), "lies in another"),
    (lambda s: snapshot(*TAKES, segments=((B, 20 * MIB, "large", ((B, 4 * MIB, 3 * MIB), (B + 2 * MIB, 2 * MIB, 9 * MIB))),)), "lies in no segment"),
])
def test_damaged_recordings(tmp_path, capsys, damage, why):
    (tmp_path / "bad.pickle").write_bytes(pickle.dumps(damage(snapshot(*TAKES))))
    with pytest.raises(SystemExit) as end:
        comparison.main(["--recorded", str(tmp_path / "bad.pickle")])
    said = capsys.readouterr()
    assert end.value.code == 2 and said.out == "" and len(said.err.splitlines()) == 1 and why in said.err and "bad.pickle" in said.err, said.err


@pytest.mark.parametrize("arguments, why", [
    (["--repeat", "2"], "--repeat"), (["--smallest"], "--smallest"), (["--under", "native"], "--under"), (["--lag", "5%"], "--lag"),
    (["--page", "2"], "--page"), (["--prices", "h100"], "--prices"), (["--sim", "8GiB,9GiB"], "one size in --sim"),
])
def test_options_that_do_not_go_together(tmp_path, capsys, arguments, why):
    with pytest.raises(SystemExit) as end:
        comparison.main(["--recorded", *arguments, str(tmp_path / "s.pickle")])
    assert end.value.code == 2 and why in capsys.readouterr().err


def test_a_trace_is_no_recording_of_a_card(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("t_us,op,id,bytes\n0,a,1,512\n")
    with pytest.raises(SystemExit) as end:
        comparison.main(["--recorded", str(tmp_path / "t.csv")])
    assert end.value.code == 2 and "memory snapshots of PyTorch" in capsys.readouterr().err
