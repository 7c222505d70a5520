"""docs/memory-questions.md shows the real output of its programs."""
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


def test_the_page_is_true(clean, nursed_python):
    build = {name: os.environ[name] for name in ("CENOTE_BUILD",) if name in os.environ}
    done = subprocess.run([nursed_python, QUESTIONS / "answers.py", "--check"], env={**clean, **build}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_program_is_on_the_page():
    programs = {path.name for path in QUESTIONS.glob("*.py")} - {"answers.py"}
    assert programs and all(f"examples/questions/{name}" in PAGE for name in programs)
