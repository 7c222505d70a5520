"""The magic %%cenote, in a real kernel of Jupyter."""
import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

# Starts a kernel as Jupyter does, which inherits the environment, and writes what each cell shows: its text, and whether it ended well.
CLIENT = """
import json, re, sys
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="python3", startup_timeout=600)
told = []
for cell in json.load(open(sys.argv[1])):
    shown = []
    def note(message):
        content = message["content"]
        shown.append(content.get("text") or content.get("data", {}).get("text/plain") or "\\n".join(content.get("traceback", [])))
    reply = client.execute_interactive(cell, output_hook=note, timeout=600)
    told.append([reply["content"]["status"], re.sub("\\x1b[^m]*m", "", "".join(shown))])
client.stop_channels()
manager.shutdown_kernel(now=True)
json.dump(told, open(sys.argv[2], "w"))
"""


@pytest.fixture
def kernel(tmp_path, clean):
    """kernel(CELLS, LAUNCHER..., NAME=VALUE...): status and text of each cell."""
    def call(cells, *launcher, **variables):
        (tmp_path / "client.py").write_text(CLIENT)
        (tmp_path / "cells.json").write_text(json.dumps(cells))
        done = subprocess.run([*launcher, sys.executable, "client.py", "cells.json", "told.json"], env={**clean, **variables}, cwd=tmp_path,
                              capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads((tmp_path / "told.json").read_text())
    return call


def test_a_kernel_on_the_simulated_gpu(kernel):
    start = (sys.executable, "-m", "cenote", "run", "--sim", "8GiB", "--allocator", "cenote", "--")
    cells = ["%load_ext cenote", "import torch\nkept = torch.empty(100 << 20, dtype=torch.uint8, device='cuda')",
             "%%cenote\npassing = torch.empty(2 << 30, dtype=torch.uint8, device='cuda')\ndel passing\nmore = kept.clone()\n6 * 7",
             "%%cenote --gpu 600MiB\ndel more", "%%cenote\ntorch.empty(9 << 30, dtype=torch.uint8, device='cuda')", "%%cenote --gpu gone\n1",
             "kept.numel()"]
    _, made, measured, small, short, wrong, last = kernel(cells, *start)
    assert made[0] == "ok" and measured[0] == "ok" and measured[1].startswith("42"), measured
    assert "cenote: peak 2.10 GiB, held after the cell 200.0 MiB (+100.0 MiB)" in measured[1], measured[1]
    assert "this GPU (8.00 GiB): fits, 5." in measured[1], measured[1]
    assert "held after the cell 100.0 MiB (-100.0 MiB)" in small[1] and "600MiB (600.0 MiB): does not fit, " in small[1], small[1]
    assert short[0] == "error" and "OutOfMemoryError" in short[1] and "cenote: peak 100.0 MiB" in short[1], short[1]
    assert wrong[0] == "error" and "UsageError: %%cenote: 'gone'" in wrong[1] and "Traceback" not in wrong[1], wrong[1]
    assert last == ["ok", str(100 << 20)]


def test_a_kernel_without_a_gpu(kernel, simulation_library):
    """PyTorch can be imported, as if NVIDIA's packages were installed, and sees no GPU. The cell does not run."""
    cells = ["%load_ext cenote", "%%cenote\nprint('it ' + 'ran')"]
    _, told = kernel(cells, LD_LIBRARY_PATH=str(simulation_library.parent), CUDA_VISIBLE_DEVICES="")
    assert told[0] == "error" and "this kernel has no GPU; start it on a simulated one: cenote run --sim 80GiB" in told[1], told[1]
    assert "it ran" not in told[1]
