"""docs/memory-questions.md, docs/first.md and docs/dry-run.md show the real output of their programs."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTIONS = ROOT / "examples" / "questions"
PAGE = (ROOT / "docs" / "memory-questions.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the programs are PyTorch's")


@pytest.mark.parametrize("page", ["memory-questions.md", "first.md", "dry-run.md"])
def test_the_page_is_true(clean, nursed_python, page):
    build = {name: os.environ[name] for name in ("CENOTE_BUILD",) if name in os.environ}
    command = [nursed_python, ROOT / "tools/answers", "--check", page]
    done = subprocess.run(command, env={**clean, **build}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_program_is_on_the_page():
    programs = {path.name for path in QUESTIONS.glob("*.py")}
    assert programs and all(f"examples/questions/{name}" in PAGE for name in programs)
