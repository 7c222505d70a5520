"""libcenote by ctypes: structs and tables agree with the header, and mistakes are exceptions with a message. No torch."""
import ctypes
import json
import pathlib
import pickle
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bindings():
    from cenote import places
    from cenote.native import bindings
    try:
        bindings.loaded()
    except places.NotBuilt as missing:
        pytest.skip(str(missing))
    return bindings


@pytest.fixture
def simulated(clean):
    """simulated(CODE): the output of Python on a simulated GPU, with `cenote` and `bindings` imported."""
    from cenote import places

    def call(code, check=True, **variables):
        try:
            preload = pathlib.Path(places.simulation_folder()) / "libcenote_sim.so"
        except places.NotBuilt as missing:
            pytest.skip(str(missing))
        environ = {**clean, "LD_PRELOAD": str(preload), "CENOTE_SIM": "capacity:1GiB,devices:2", **variables}
        done = subprocess.run([sys.executable, "-c", "import cenote\nfrom cenote.native import bindings\n" + code], env=environ, capture_output=True,
                              text=True, timeout=120)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout if check else done
    return call


# --- the header

def mirrored(bindings):
    return {"cenote_level": bindings.LevelStruct, "cenote_row": bindings.RowStruct, "cenote_step_note": bindings.StepStruct,
            "cenote_piece": bindings.PieceStruct, "cenote_moment": bindings.MomentStruct, "cenote_stats": bindings.stats_struct(),
            "cenote_marked": bindings.MarkedStruct, "cenote_sleep": bindings.SleepStruct}


def test_structs_lie_as_the_compiler_lays_them(bindings, tmp_path):
    """A field of the header that Python does not have would show in the size of the struct."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    lines, expected = [], []
    for name, struct in mirrored(bindings).items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, _ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));')
            where = getattr(struct, field)
            expected.append(f"{name}.{field} {where.offset} {where.size}")
    source = tmp_path / "layout.c"
    headers = "#include <cenote/report.h>\n#include <cenote/sleep.h>\n#include <stdio.h>\n"
    source.write_text(headers + "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
    subprocess.run([compiler, source, "-I", ROOT / "include", "-o", tmp_path / "layout"], check=True, timeout=120)
    assert subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.splitlines() == expected


def test_constants_are_the_headers(bindings, tmp_path):
    from cenote.labels import hooks, marker
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    names = {"CENOTE_TRIM_WAIT": bindings.WAIT, "CENOTE_PIECE_FREE": bindings.FREE, "CENOTE_PIECE_LIVE": bindings.LIVE,
             "CENOTE_PIECE_PENDING": bindings.PENDING, "CENOTE_KEEP": bindings.KEEP, "CENOTE_DISCARD": bindings.DISCARD,
             "CENOTE_DISCARD_ALL": bindings.DISCARD_ALL, "CENOTE_CONSTANT": bindings.CONSTANT}
    names |= {f"CENOTE_BY_{name.upper()}": number for number, name in enumerate(bindings.DIVISIONS)}
    names |= {f"CENOTE_PHASE_{name}": getattr(hooks, name) for name in ("NONE", "FORWARD", "BACKWARD", "OPTIMIZER", "EVALUATION")}
    kinds = ("OTHER", "PARAMETERS", "GRADIENTS", "OPTIMIZER", "BUFFERS", "ACTIVATIONS", "WORKSPACES")
    names |= {f"CENOTE_KIND_{name}": getattr(marker, name) for name in kinds}
    source = tmp_path / "constants.c"
    source.write_text("#include <cenote/report.h>\n#include <cenote/sleep.h>\n" +
                      "".join(f"_Static_assert({name} == {value}, \"{name}\");\n" for name, value in names.items()))
    subprocess.run([compiler, "-c", source, "-I", ROOT / "include", "-o", tmp_path / "constants.o"], check=True, timeout=120)


def test_every_function_is_declared_and_exported(bindings):
    header = "".join((ROOT / f"include/cenote/{name}.h").read_text() for name in ("cenote", "report", "share", "sleep"))
    declared = set(re.findall(r"CENOTE_API [^;]*?\b(cenote_\w+)\(", header))
    assert set(bindings.FUNCTIONS) <= declared
    for name, (_, arguments) in bindings.FUNCTIONS.items():
        assert bindings.function(name).argtypes == arguments
        listed = re.search(rf"\b{name}\(([^)]*)\)", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL))[1]
        assert len(arguments) == (0 if listed == "void" else listed.count(",") + 1), name


def test_tables_are_read(bindings):
    assert bindings.kinds()[:2] == ["other", "parameters"] and bindings.phases()[0] == "none"
    errors = {row[2]: int(row[1]) for row in bindings.table("errors.def")}
    assert errors["OUT_OF_MEMORY"] == 2
    counters = [row[1] for row in bindings.table("counters.def")]
    assert "reserved" in counters and len(counters) == len(set(counters))
    trim_above = next(row for row in bindings.table("options.def") if row[1] == "trim_above")
    assert len(trim_above) == 7 and "," in trim_above[6]  # a string with commas is one part


# --- mistakes

def test_a_function_that_the_library_lacks_is_named(bindings, monkeypatch):
    monkeypatch.setitem(bindings.FUNCTIONS, "cenote_from_the_future", (ctypes.c_int, []))
    with pytest.raises(bindings.Error, match="no cenote_from_the_future: it is older"):
        bindings.function("cenote_from_the_future")


@pytest.mark.parametrize("device", [-1, 1 << 40, "", "cpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:9999999999", "cuda:²", "\0"])
def test_what_is_no_device(bindings, device):
    with pytest.raises(bindings.Error) as error:
        bindings.device_number(device)
    assert error.value.name == "NO_DEVICE" and "\n" not in str(error.value)


@pytest.mark.parametrize("device", [1.0, True, b"cuda:1", [], object()])
def test_what_cannot_be_a_device(bindings, device):
    with pytest.raises(TypeError, match="a device is"):
        bindings.device_number(device)


@pytest.mark.parametrize("device, number", [(None, 0), (3, 3), ("cuda", 0), ("cuda:2", 2), ("1", 1)])
def test_what_is_a_device(bindings, device, number):
    assert bindings.device_number(device) == number


def test_without_a_driver(clean):
    """One line says what is missing, every time."""
    code = "import cenote\ntry:\n    cenote.stats()\nexcept cenote.Error as error:\n    print(error.name, error)"
    done = subprocess.run([sys.executable, "-c", code], env={**clean, "CENOTE_SIM": "", "LD_LIBRARY_PATH": ""}, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0 and done.stdout.startswith(("NO_DRIVER ", "DRIVER_TOO_OLD ", "NO_DEVICE ", "{")), done.stderr


@pytest.mark.simulation
def test_a_device_that_is_not_there(simulated):
    done = simulated("""
for device in (2, 65535, "cuda:7"):
    for ask in (cenote.stats, cenote.rows, cenote.steps, cenote.explain, lambda device: cenote.trim(device=device),
                lambda device: cenote.mark("x", device), lambda device: cenote.record(1, device), lambda device: cenote.save_trace("x", device)):
        try:
            ask("tag", device) if ask is cenote.rows else ask(device)
            print("no error", device, ask)
        except cenote.Error as error:
            assert error.name == "NO_DEVICE", error
print("end")
""")
    assert done == "end\n"


@pytest.mark.simulation
def test_numbers_and_names_that_cannot_be(simulated, tmp_path):
    done = simulated(f"""
folder = {str(tmp_path)!r}
cases = [
    (cenote.Error, lambda: cenote.trim(keep=-1)), (cenote.Error, lambda: cenote.trim(keep=1 << 64)), (TypeError, lambda: cenote.trim(keep=1.5)),
    (TypeError, lambda: cenote.trim(keep="1GiB")), (TypeError, lambda: cenote.trim(keep=True)),
    (cenote.Error, lambda: cenote.record(-1)), (cenote.Error, lambda: cenote.record(1 << 64)), (cenote.Error, lambda: cenote.record(1 << 63)),
    (TypeError, lambda: cenote.record(None)), (cenote.Error, lambda: cenote.explain(bytes=-5)), (cenote.Error, lambda: cenote.rows("colour")),
    (cenote.Error, lambda: cenote.rows(None)), (TypeError, lambda: cenote.mark(7)), (cenote.Error, lambda: cenote.mark("a\\0b")),
    (cenote.Error, lambda: cenote.mark("\\ud800")), (cenote.Error, lambda: cenote.snapshot(folder + "/x.txt")),
    (cenote.Error, lambda: cenote.snapshot(folder + "/a\\0.json")), (cenote.Error, lambda: cenote.snapshot(folder + "/none/x.json")),
    (cenote.Error, lambda: cenote.save_trace(folder + "/none/x.csv")), (OSError, lambda: cenote.snapshot(folder + "/none/x.pickle")),
    (TypeError, lambda: cenote.snapshot(None)), (cenote.Error, lambda: cenote.save_trace(b"x")),
]
cenote.stats()
for number, (kind, wrong) in enumerate(cases):
    try:
        wrong()
        print("no error", number)
    except kind as error:
        assert str(error) and "\\n" not in str(error), (number, error)
print(cenote.stats()["trims"], cenote.stats()["reserved"].current)
""")
    assert done == "0 0\n"
    assert list(tmp_path.iterdir()) == []


# --- figures

@pytest.mark.simulation
def test_a_program_without_torch(simulated, tmp_path):
    """The functions report blocks that were allocated in C, and steps that the program announced."""
    done = simulated(f"""
import ctypes
lib = bindings.loaded()
lib.cenote_alloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
lib.cenote_free.argtypes = [ctypes.c_void_p]
block = ctypes.c_void_p()
assert cenote.steps(1) == [] and cenote.rows("tag", 1) == []
with cenote.tag("outer"), cenote.tag("inner"):
    assert lib.cenote_alloc(bindings.pool(1), 3 << 20, None, ctypes.byref(block)) == 0
first = cenote.mark("first", 1)
assert (first.device, first.live, first.change, first.kinds) == (1, 3 << 20, 3 << 20, {{"other": 3 << 20}})
assert [(row.name, row.live, row.blocks) for row in cenote.rows(device=1)] == [("outer/inner", 3 << 20, 1)]
assert cenote.stats(1)["requested"].current == 3 << 20 and cenote.stats(1)["ooms"] == 0
piece, = [piece for piece in bindings.pieces(1) if piece.state == bindings.LIVE]
assert piece.address == block.value and piece.requested == 3 << 20
cenote.step()
cenote.step()
assert [step.number for step in cenote.steps(1)] == [1, 2] and cenote.steps(1)[1].live == 3 << 20
assert "GPU 1" in cenote.explain(1)
cenote.record(100, 1)
lib.cenote_free(block)
assert cenote.mark("second", 1).change == -(3 << 20)
cenote.save_trace({str(tmp_path)!r} + "/t.csv", 1)
cenote.snapshot({str(tmp_path)!r} + "/s.json", 1)
cenote.snapshot({str(tmp_path)!r} + "/s.pickle", 1)
cenote.trim()
assert cenote.stats(1)["reserved"].current == 0
import sys
print("torch" in sys.modules)
""")
    assert done == "False\n"
    assert sum(segment["total_size"] for segment in pickle.loads((tmp_path / "s.pickle").read_bytes())["segments"]) == 4 << 20
    assert json.loads((tmp_path / "s.json").read_text())
    assert (tmp_path / "t.csv").read_text().startswith("t_us,op,id,bytes")


def test_importing_the_package_loads_nothing(clean):
    """The functions exist before the library is loaded."""
    code = "import cenote, sys; print(sorted(n for n in sys.modules if n.startswith(('cenote', 'torch', 'ctypes'))), callable(cenote.tag))"
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "['cenote', 'cenote.places'] True\n"


def test_no_module_is_called_like_a_function():
    import cenote
    modules = {path.stem for path in (ROOT / "python/cenote").iterdir()}
    assert not modules & set(cenote.__all__)
    for name in cenote.__all__:
        assert getattr(cenote, name) is not None
