"""The adapter and the next PyTorch: what it adds gets its own default, what it changes is lost and said, and what cenote needs it may not change."""

import ctypes
import pathlib
import re
import shutil

import pytest
import torch

import simulated
from cenote.native import adapter

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")

HEADERS = ("c10/cuda/CUDACachingAllocator.h", "torch/csrc/cuda/CUDAPluggableAllocator.h")
ADDED = "virtual void tomorrow(int) = 0;\n  virtual void raw_delete(void* ptr) = 0;"
ADDED_TOO = "void tomorrow(int) override {}\n  void raw_delete(void* ptr) override;"


@pytest.fixture
def next_torch(tmp_path, monkeypatch):
    """next_torch((PATTERN, TEXT)...): this PyTorch, with those changes in the headers of its allocators. No program runs with it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(*changes):
        here = adapter.describe(torch)
        real, made = pathlib.Path(here.folder), tmp_path / "torch"
        for header in HEADERS:
            text = (real / "include" / header).read_text()
            for pattern, new in changes:
                text = re.sub(pattern, new, text)
            place = made / "include" / header
            place.parent.mkdir(parents=True)
            place.write_text(text)
        for folder in sorted({parent for header in HEADERS for parent in pathlib.PurePath("include", header).parents}):
            for path in (real / folder).iterdir():
                if not (made / folder / path.name).exists():
                    (made / folder / path.name).symlink_to(path)
        return here._replace(commit="next", folder=str(made))
    yield make
    shutil.rmtree(tmp_path / "torch", ignore_errors=True)


def test_here_no_method_is_lost():
    lost = adapter.active.cenote_torch_lost
    lost.restype = ctypes.c_char_p
    assert lost() == b""


def test_a_method_that_is_new_and_methods_that_have_changed(next_torch):
    changed = next_torch((r"virtual void raw_delete\(void\* ptr\) = 0;", ADDED), (r"void raw_delete\(void\* ptr\) override;", ADDED_TOO),
                         (r"(void |->)annotateMemory\(", r"\1annotateBlock("),
                         (r"virtual std::string getUserMetadata\(", "virtual std::string getUserMetadata(int = 0"))
    said = simulated.forked(f"""
import ctypes, torch
library = ctypes.CDLL({adapter.make(changed)!r})
library.cenote_torch_lost.restype = ctypes.c_char_p
print(library.cenote_torch_lost().decode())
""").stdout
    assert said == "getUserMetadata: torch.cuda.memory._get_memory_metadata; annotateMemory: torch.cuda.memory._annotate_memory\n"


def test_what_cenote_needs_may_not_change(next_torch):
    changed = next_torch((r"void\* raw_alloc\(size_t nbytes\)", "void* raw_alloc(size_t nbytes, int)"),
                         (r"->raw_alloc\(nbytes\)", "->raw_alloc(nbytes, 0)"))
    with pytest.raises(adapter.NotMade, match="raw_alloc.*override"):
        adapter.make(changed)
