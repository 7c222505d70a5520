"""cudnn.benchmark: trying algorithms needs workspaces, and each new input shape tries again."""
import torch

MIB = 1 << 20


def run(benchmark: bool) -> None:
    torch.backends.cudnn.benchmark = benchmark
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1)).cuda()
    for size in (192, 224, 256, 224):
        net(torch.randn(16, 3, size, size, device="cuda")).mean().backward()
    print(f"benchmark={benchmark!s:5}  peak allocated {torch.cuda.max_memory_allocated() / MIB:6.0f} MiB  "
          f"peak reserved {torch.cuda.max_memory_reserved() / MIB:6.0f} MiB")


run(False)
run(True)
