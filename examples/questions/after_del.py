"""Memory that is not freed after `del`, because another object still holds the tensor."""
import torch

import cenote

MIB = 1 << 20


def live(moment: str) -> None:
    print(f"{moment:<58} {torch.cuda.memory_allocated() / MIB:5.0f} MiB")


x = torch.zeros(64 * MIB, device="cuda")
live("a tensor of 256 MiB")
view = x[:10]
del x
live("del x, but a view of ten numbers shares its memory")
view = view.clone()
live("after view = view.clone()")

weight = torch.ones(16 * MIB, device="cuda", requires_grad=True)
loss = (weight * weight).exp().sum()
live("a parameter of 64 MiB and a loss")
loss = loss.detach()
live("the loss without its history")


def step() -> None:
    out = weight.exp().exp()
    raise RuntimeError(f"a shape does not fit: {tuple(out.shape)}")


try:
    step()
except RuntimeError as error:
    kept = error
live("an exception was caught and kept: its traceback has `out`")
kept = None
live("after kept = None")
