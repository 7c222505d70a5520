"""The compiler that makes the adapter ends with all that it has started: g++ compiles in a process of its own. What else it does: test_plugin.py."""
import os
import subprocess
import time
import types

import pytest
from patience import patience

from cenote.native import adapter

COMPILER = "sleep 100000 & echo $! >part && mv part child; wait"


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("ending, raised", [(subprocess.TimeoutExpired("sh", 1), adapter.NotMade), (KeyboardInterrupt(), KeyboardInterrupt)])
def test_nothing_of_it_goes_on(tmp_path, monkeypatch, ending, raised):
    """Its time is over, or the user ends cenote: as soon as the compiler has a child."""
    communicate, until = subprocess.Popen.communicate, time.monotonic() + patience(20)

    def interrupted(child, timeout=None):
        while timeout is not None and not (tmp_path / "child").exists() and time.monotonic() < until:
            time.sleep(0.01)
        if timeout is not None:
            raise ending
        return communicate(child)
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(raised):
        adapter.run(["sh", "-c", COMPILER], types.SimpleNamespace(place=lambda: os.fspath(tmp_path)))
    pid = int((tmp_path / "child").read_text())
    while not is_gone(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert is_gone(pid)
