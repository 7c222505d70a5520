"""The texts of errors are those of NVIDIA's runtime, which programs look for: read where a libcudart is installed, because it needs no driver."""

import ctypes
import os
import pathlib
import subprocess
import sys

import pytest

import simulated

READ = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
runtime.cudaGetErrorName.restype = runtime.cudaGetErrorString.restype = ctypes.c_char_p
for code in (*range(1000), 10000):
    print(code, runtime.cudaGetErrorName(code).decode(), runtime.cudaGetErrorString(code).decode(), sep="|")
"""
WITHOUT_TEXT_THERE = {202: "context already current", 916: "key rotation"}  # the driver alone has these numbers


def installed() -> list[pathlib.Path]:
    """NVIDIA's libcudart.so.13 in the packages of this Python, or in a CUDA Toolkit."""
    torch = pytest.importorskip("torch")
    packages = pathlib.Path(torch.__file__).parents[1]
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    found = [*packages.glob("nvidia/cu13/lib/libcudart.so.13"), *packages.glob("*.libs/libcudart*.so.13"), *toolkit.glob("lib*/libcudart.so.13")]
    return [path for path in found if path.resolve().stat().st_size > 400_000]


def table(library) -> dict[int, tuple[str, str]]:
    without = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "CENOTE")}
    done = subprocess.run([sys.executable, "-c", READ, str(library)], env=without, text=True, capture_output=True, check=True)
    rows = (line.split("|") for line in done.stdout.splitlines())
    return {int(code): (name, text) for code, name, text in rows if text != "unrecognized error code"}


@pytest.fixture(scope="module")
def real() -> dict[int, tuple[str, str]]:
    found = installed()
    if not found:
        pytest.skip("no libcudart.so.13 of NVIDIA's is installed")
    return table(found[0])


def test_the_runtime_says_what_nvidias_says(real):
    """A newer or older one has other numbers, too."""
    ours = table(simulated.folder() / "libcudart.so.13")
    assert len(ours) > 100 and {code: (ours[code], real[code]) for code in ours if ours[code] != real.get(code, ours[code])} == {}


def test_the_driver_says_what_the_runtime_says(real):
    """Of the numbers that both have."""
    driver = ctypes.CDLL("libcuda.so.1")
    text = ctypes.c_char_p()
    said = {code: text.value.decode() for code in range(1000) if driver.cuGetErrorString(code, ctypes.byref(text)) == 0}
    assert said[700] == "an illegal memory access was encountered"
    assert {code: words for code, words in said.items() if words != real.get(code, ("", ""))[1]} == WITHOUT_TEXT_THERE
