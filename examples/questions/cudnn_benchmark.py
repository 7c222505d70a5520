"""cudnn.benchmark tries all algorithms, which takes their workspaces, again for each new input shape."""
import subprocess
import sys

import torch

MIB = 1 << 20


def measure() -> None:
    """Runs in a process of its own for each setting, because PyTorch remembers what it chose for a shape."""
    convolution = torch.nn.Conv2d(64, 128, 3, padding=1, bias=False).cuda()
    for size in (56, 112, 224):
        images = torch.randn(8, 64, size, size, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        out = convolution(images)
        workspace = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        print(f"benchmark={torch.backends.cudnn.benchmark!s:5}  {size} x {size}: images {images.nbytes / MIB:3.0f} MiB, "
              f"result {out.nbytes / MIB:3.0f} MiB, workspace of the first call {workspace / MIB:4.0f} MiB")


if len(sys.argv) > 1:
    torch.backends.cudnn.benchmark = sys.argv[1] == "on"
    with torch.no_grad():
        measure()
else:
    for setting in ("off", "on"):
        subprocess.run([sys.executable, __file__, setting], check=True)
