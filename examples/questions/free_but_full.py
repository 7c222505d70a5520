"""Out of memory although gigabytes are free: small tensors that live lie between large ones that were freed."""
import torch

MIB = 1 << 20


def floats(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB // 4, device="cuda")


kept = []
for _ in range(7):  # each turn leaves one of two tensors behind: a checkpoint, a cache, a log
    large = floats(900)
    kept.append(floats(150))
    del large
    large = [floats(225) for _ in range(4)]
    kept.append(large[1])
    del large
try:
    batch = floats(1400)
    print("1400 MiB more: served")
except torch.OutOfMemoryError as error:
    print("1400 MiB more:", str(error).split(". GPU")[0])
print(f"allocated {torch.cuda.memory_allocated() // MIB} MiB, reserved {torch.cuda.memory_reserved() // MIB} MiB of 5120 MiB")
