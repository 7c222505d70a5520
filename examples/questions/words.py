"""What requested, allocated, cached and reserved mean: one tensor comes and goes."""
import torch

MIB = 1 << 20


def say(moment: str) -> None:
    stats = torch.cuda.memory_stats()
    requested, allocated = stats["requested_bytes.all.current"], torch.cuda.memory_allocated()
    reserved = torch.cuda.memory_reserved()
    print(f"{moment:<28} requested {requested:>11,}  allocated {allocated:>11,}  cached {reserved - allocated:>11,}  reserved {reserved:>11,}")


torch.cuda.init()
say("at the start")
small = torch.empty(100, dtype=torch.uint8, device="cuda")
say("a tensor of 100 bytes")
large = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
say("and one of 100 MiB")
del large
say("del of the large one")
torch.cuda.empty_cache()
say("empty_cache()")
