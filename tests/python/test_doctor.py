"""`cenote doctor` names each problem and its remedy; the exit status says whether there is one."""
import importlib.util
import json
import shlex
import sys

import pytest

from cenote import doctor
from cenote.torch import seams

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def examine(run, nursed_run, tmp_path):
    """examine(OPTION..., NAME=VALUE...): exit status, and findings by subject. With `nursed` the doctor is a script of `cenote run`, which takes the
    options, in a process that has imported PyTorch: for findings that have nothing to do with that."""
    def call(*options, nursed=False, **variables):
        (tmp_path / "doctor.py").write_text("import sys\nfrom cenote.command import main\nsys.exit(main(['doctor', '--json']))\n")
        command = (nursed_run, "run", *options, "--quiet", "doctor.py") if nursed else (run, "doctor", "--json", *options)
        done = command[0](*command[1:], **variables)
        assert done.returncode in (0, 1), done.stderr
        found = {}
        for finding in json.loads(done.stdout):
            found.setdefault(finding["what"], []).append(finding)
        assert done.returncode == any(finding["state"] == "wrong" for each in found.values() for finding in each)
        return done.returncode, found
    return call


def test_a_simulated_gpu_is_fine(examine):
    status, found = examine("--sim", "8GiB", "--devices", "2")
    assert status == 0
    assert "simulated" in found["driver"][0]["text"]
    for device in ("device 0", "device 1"):
        texts = [finding["text"] for finding in found[device]]
        assert "8.0 GiB, pages of 2 MiB" in texts[0] and "vmm" in texts[1]
    assert sys.executable in found["Python"][0]["text"]
    if HAS_TORCH:
        assert found["adapter"][0]["state"] == "fine" and found["adapter"][0]["text"].endswith(".so")


def test_pinned_memory_that_was_not_built(examine, simulation_library, tmp_path):
    assert "pinned memory" not in examine("--sim", "1GiB", nursed=True)[1]
    assert examine("--sim", "1GiB", nursed=True, CENOTE_HOST="on")[1]["pinned memory"][0]["state"] == "fine"
    less = tmp_path / "less"
    less.mkdir()
    for path in simulation_library.parents[1].iterdir():
        if not path.name.startswith("libcenote_host"):
            (less / path.name).symlink_to(path)
    status, found = examine("--sim", "1GiB", nursed=True, CENOTE_HOST="on", CENOTE_BUILD=str(less))
    assert status == 1 and found["pinned memory"][0]["state"] == "wrong"
    assert "libcenote_host.so is not there: install hwloc's headers" in found["pinned memory"][0]["text"]


def test_no_gpu(examine):
    import ctypes
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("there is a driver here")
    except OSError:
        pass
    status, found = examine()
    assert status == 0  # nothing is wrong for those who ask whether a program fits
    assert found["driver"][0]["state"] == "remark" and "--sim" in found["driver"][0]["advice"]
    assert found["dry runs"][0]["state"] == "fine" and "cenote dry-run" in found["dry runs"][0]["text"]
    assert found["PyTorch"][0]["state"] == "fine"


def test_neither_a_gpu_nor_a_simulated_one(examine, simulation_library, tmp_path):
    for path in simulation_library.parents[1].iterdir():
        if path.name != "sim":
            (tmp_path / path.name).symlink_to(path)
    status, found = examine(CENOTE_BUILD=str(tmp_path))
    assert status == 1 and found["driver"][0]["state"] == "wrong" and "dry runs" not in found


def test_without_virtual_memory_management(examine):
    _, found = examine("--sim", "8GiB", CENOTE_SIM="vmm:0", nursed=True)
    assert found["device 0"][1]["state"] == "remark" and "async" in found["device 0"][1]["text"]


def test_what_pages_can_be(examine):
    """Doctor distinguishes what the driver reports from what the driver does."""
    def texts(quirk):
        status, found = examine("--sim", "8GiB", "--quirk", quirk, nursed=quirk != "rdma-required")
        assert status == 0
        return {finding["text"]: finding["state"] for finding in found["device 0"]}

    assert texts("rdma-required")["pages have file descriptors, made for RDMA"] == "fine"
    refused = "the driver says that memory can be made for RDMA, and refuses it"
    assert texts("wsl-rdma").items() >= {("pages have file descriptors", "fine"), (refused, "remark")}
    lost = "pages have no handles for other processes; the driver says that they have file descriptors, and refuses them"
    assert texts("attribute-lies").items() >= {(lost, "remark"), (refused, "remark")}
    without = [text for text, state in texts("vmm-lies").items() if state == "remark"]
    assert len(without) == 1 and "provider async" in without[0] and without[0].endswith("and refuses it")


def test_memory_of_the_host(examine):
    """An integrated GPU: what is free by the driver is less than what an allocation gets."""
    status, found = examine("--sim", "8GiB", "--quirk", "unified-memory", nursed=True)
    said = [finding for finding in found["device 0"] if "the host's" in finding["text"]]
    assert status == 0 and len(said) == 1 and said[0]["state"] == "remark", found["device 0"]
    assert "MemAvailable " in said[0]["text"] and "kB" in said[0]["text"] and "mem_get_info" in said[0]["advice"]


def test_a_mistake_in_the_options(examine):
    status, found = examine("--sim", "1GiB", CENOTE_CONF="page_mb:3", nursed=True)
    assert status == 1
    assert "page_mib" in found["CENOTE_CONF"][0]["text"] and found["CENOTE_CONF"][0]["state"] == "wrong"


def test_no_visible_gpu(examine):
    status, found = examine("--sim", "1GiB", CUDA_VISIBLE_DEVICES="")
    assert status == 1
    about = found.get("driver", []) + found.get("devices", [])
    assert any(finding["state"] == "wrong" and "CUDA_VISIBLE_DEVICES" in finding["advice"] for finding in about)


@pytest.mark.skipif(not HAS_TORCH, reason="the compiler is for PyTorch")
def test_no_compiler(examine, tmp_path):
    _, found = examine("--sim", "1GiB", CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path), nursed=True)
    (adapter,) = found["adapter"]
    assert adapter["state"] == "wrong" and "g++" in adapter["advice"] and "CENOTE=fallback" in adapter["advice"] and "compiler" not in found


@pytest.mark.skipif(not HAS_TORCH, reason="the compiler is for PyTorch")
def test_no_compiler_where_the_adapter_is_there(examine):
    examine("--sim", "1GiB", nursed=True)
    _, found = examine("--sim", "1GiB", CXX="no-such-compiler", nursed=True)
    assert "compiler" not in found and found["adapter"][0]["state"] == "fine"


def test_other_settings_are_named(examine):
    _, found = examine("--sim", "1GiB", PYTORCH_ALLOC_CONF="max_split_size_mb:64", nursed=True)
    assert found["PYTORCH_ALLOC_CONF"][0]["state"] == "remark"


class Library:
    """A libnccl.so.2 and a libucp.so.0 of some version."""

    def __init__(self, *version):
        self.version = version

    def ncclGetVersion(self, number):
        number._obj.value = self.version[0] * 10000 + self.version[1] * 100 + self.version[2]
        return 0

    def ucp_get_version(self, *numbers):
        for number, value in zip(numbers, self.version):
            number._obj.value = value


@pytest.mark.parametrize("check, version, variables, state, word", [
    ("nccl", (2, 28, 9), {}, "remark", "no_split"),
    ("nccl", (2, 29, 3), {}, "fine", ""),
    ("ucx", (1, 21, 0), {"UCX_MEMTYPE_CACHE": "n"}, "remark", "UCX 1.22"),
    ("ucx", (1, 22, 0), {}, "remark", "UCX_MEMTYPE_CACHE=n"),
    ("ucx", (1, 22, 0), {"UCX_MEMTYPE_CACHE": "n"}, "fine", ""),
])
def test_libraries_that_register_memory(monkeypatch, check, version, variables, state, word):
    from cenote import doctor
    monkeypatch.setattr(doctor.ctypes, "CDLL", lambda name: Library(*version))
    monkeypatch.delenv("UCX_MEMTYPE_CACHE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    finding, = getattr(doctor, check)()
    assert finding.state == state and ".".join(map(str, version)) in finding.text and word in finding.advice
    assert bool(finding.advice) == (state == "remark")


@pytest.mark.parametrize("conf, state", [("", "fine"), ("limit:1GiB, graphs : pages", "remark")])
def test_a_custom_all_reduce_that_is_installed(monkeypatch, conf, state):
    from cenote import doctor
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name == "vllm")
    monkeypatch.setenv("CENOTE_CONF", conf)
    found = [finding for finding in doctor.neighbours() if finding.what == "vLLM"]
    assert [finding.state for finding in found] == [state] and ("--disable-custom-all-reduce" in found[0].advice) == (state == "remark")


def test_it_is_readable(run):
    done = run("doctor", "--sim", "1GiB")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0].startswith("ok    Python")
    assert not done.stderr


@pytest.mark.parametrize("arguments", [["--devices", "2"], ["--what"], ["file"], ["--sim", "1"], ["--sim", "1GiB", "--devices", "99"]])
def test_bad_use(run, arguments):
    done = run("doctor", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("cenote doctor: ")


def test_a_reader_that_has_seen_enough(clean):
    import os
    import subprocess
    build = {name: os.environ[name] for name in ("CENOTE_BUILD",) if name in os.environ}
    command = f"{shlex.quote(sys.executable)} -m cenote doctor --sim 1GiB | head -1"
    done = subprocess.run(command, shell=True, env={**clean, **build}, capture_output=True, text=True)
    assert done.stdout.startswith("ok") and not done.stderr


def test_a_name_that_this_pytorch_is_too_old_for(monkeypatch):
    """Where code goes on without it, nothing is lost."""
    rows = [(feature, seam, seam.since != "2.15") for feature in seams.table().values() for seam in feature.seams]
    monkeypatch.setattr(seams, "examined", lambda: iter(rows))
    told = {version: {one.text.partition(":")[0]: one for one in doctor.private_names(version)} for version in ("2.9.1", "2.14.1+cu130", "2.15.0")}
    assert [found["remedies"].state for found in told.values()] == ["fine", "fine", "remark"]
    assert "no change to the program is tried" in told["2.15.0"]["remedies"].advice
    assert all("_ensure_backend_registered: a job of which" in found["phantoms"].advice for found in told.values())
