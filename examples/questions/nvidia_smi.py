"""Why nvidia-smi shows more than PyTorch: what each process and library holds on the device."""
import ctypes

import torch

import cenote

x = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
del x
y = torch.zeros(100 << 20, dtype=torch.uint8, device="cuda")
driver = ctypes.CDLL("libcuda.so.1")  # another library of the process allocates memory of its own
other = ctypes.c_uint64()
assert driver.cuMemAlloc_v2(ctypes.byref(other), ctypes.c_size_t(512 << 20)) == 0
free, total = torch.cuda.mem_get_info()
print(f"torch.cuda.memory_allocated() says {torch.cuda.memory_allocated() >> 20} MiB, nvidia-smi {(total - free) >> 20} MiB")
print(cenote.explain())
