"""Runs a script as it is, and writes, just before it destroys its process group, what the rank holds: measured.py FOLDER SCRIPT ARGUMENT..."""
import json
import os
import runpy
import sys

import torch
import torch.distributed as dist

PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "requested_bytes.all.peak", "allocation.all.allocated")

folder, *sys.argv = sys.argv[1:]
destroy = dist.destroy_process_group


def measure(*arguments):
    torch.cuda.synchronize()
    left, total = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    figures = {**{name: stats[name] for name in PEAKS}, "outside": total - left - torch.cuda.memory_reserved()}
    with open(os.path.join(folder, f"{os.environ['RANK']}.json"), "w") as file:
        json.dump(figures, file)
    destroy(*arguments)


dist.destroy_process_group = measure
# Backward in the thread that calls it: the engine's own thread lets go of the last node, and with it of a stage's input, while the caller goes on and
# receives the next one. Whichever comes first decides where blocks lie, so that two runs of one program could hold a page more or less.
torch.autograd.set_multithreading_enabled(False)
runpy.run_path(sys.argv[0], run_name="__main__")
