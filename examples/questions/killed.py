"""Memory that stays after the program was killed: a worker that it started lives on."""
import os
import signal
import subprocess
import sys

WORKER = "import time, torch; x = torch.zeros(2 << 30, dtype=torch.uint8, device='cuda'); print('ready', flush=True); time.sleep(600)"
TRAINER = f"""
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdout=subprocess.PIPE, text=True)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(600)
"""
trainer = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True, preexec_fn=os.setpgrp)  # as a shell does
worker = int(trainer.stdout.readline())
trainer.kill()  # like `kill -9` or the out-of-memory killer of the system: the worker gets no signal
trainer.wait()
try:
    import torch
    import cenote
    torch.zeros(1, device="cuda")
    print(cenote.explain())
    try:
        torch.zeros(4 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(error)
finally:
    os.kill(worker, signal.SIGKILL)
