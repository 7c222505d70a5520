"""How long does a memory snapshot of a gigabyte take to become a page: `cenote view` beside PyTorch's own viewer?

    python bench/view/snapshot.py [--steps N]

A training on the simulated GPU records its memory history with PyTorch's defaults (stacks of C++ and Python) and dumps it; 1,450 steps make 1.1 GB.
Then each viewer reads that file in a process of its own, and a third process only unpickles it, which every reader has to do. Prints JSON: seconds,
of them processor time, host memory, and the size of the page. Not a test: it takes five minutes and some 10 GB of /tmp.
"""
import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, torch
torch.cuda.memory._record_memory_history(max_entries=20_000_000)
layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(8, 64 + step % 37, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot(sys.argv[2])
"""
UNPICKLE = "import gc, pickle, sys; gc.disable(); pickle.load(open(sys.argv[1], 'rb')); __import__('os')._exit(0)"


def measured(name: str, command: list[str], page: pathlib.Path) -> dict[str, object]:
    began, pid = time.monotonic(), os.fork()
    if not pid:
        os.dup2(2, 1)
        os.execv(command[0], command)
    _, status, used = os.wait4(pid, 0)
    assert not status, command
    return {"viewer": name, "seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            "host_bytes": used.ru_maxrss << 10, "page_bytes": page.stat().st_size if page.exists() else None}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1450)
    options = parser.parse_args()
    spec = importlib.util.find_spec("torch")
    assert spec and spec.origin
    viewer = str(pathlib.Path(spec.origin).parent / "cuda/_memory_viz.py")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "train.py").write_text(PROGRAM)
        snapshot, page = str(place / "snapshot.pickle"), place / "page.html"
        subprocess.run([sys.executable, "-m", "cenote", "run", "--sim", "80GiB", "--allocator", "native", place / "train.py", str(options.steps),
                        snapshot], check=True)
        runs = []
        for name, command in (("unpickling alone", ["-c", UNPICKLE, snapshot]), ("cenote view", ["-m", "cenote", "view", snapshot, "-o", str(page)]),
                              ("torch.cuda._memory_viz trace_plot", [viewer, "trace_plot", snapshot, "-o", str(page)])):
            page.unlink(missing_ok=True)
            runs.append(measured(name, [sys.executable, *command], page))
        print(json.dumps({"bench": "bench/view/snapshot.py", "date": datetime.date.today().isoformat(), "snapshot_bytes": os.path.getsize(snapshot),
                          "load": os.getloadavg()[0], "runs": runs}))


if __name__ == "__main__":
    main()
