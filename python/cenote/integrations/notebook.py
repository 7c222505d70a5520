"""The magic %%cenote of Jupyter and IPython (docs/ci.md): what GPU memory does a cell need, what does it leave behind, and does that fit a card?

    %load_ext cenote
    %%cenote --gpu rtx4090

Works in a kernel with a GPU, and in one that was started under `cenote run --sim 80GiB -- jupyter lab`, under any allocator of PyTorch. The peak is
that of the cell: PyTorch's peaks begin anew before it. The only state is what IPython holds.
"""
import argparse
import shlex
from typing import Any, Optional

from IPython.core.error import UsageError  # type: ignore[import-not-found, unused-ignore]

from cenote.base.quantity import readable as size
from cenote.fit import cards, limit
from cenote.integrations import training

START = "start it on a simulated one: cenote run --sim 80GiB --allocator cenote -- jupyter lab"


def load(shell: Any) -> None:
    def cenote(line: str, cell: str) -> None:
        """%%cenote [--gpu CARD]: runs the cell, and says what GPU memory it took at most, what it holds now, and whether that fits the card."""
        run(shell, card_of(line), cell)
    shell.register_magic_function(cenote, "cell")


def card_of(line: str) -> Optional[cards.Card]:
    try:
        words = shlex.split(line)
        if not words:
            return None
        named = cards.read_list(words[1]) if len(words) == 2 and words[0] == "--gpu" else []
    except (ValueError, argparse.ArgumentTypeError) as why:
        raise UsageError(f"%%cenote: {why}") from None
    if len(named) != 1:
        raise UsageError("%%cenote takes nothing, or one card or size: %%cenote --gpu a100-80gb")
    return named[0]


def torch_with_a_gpu() -> Any:
    """UsageError, which says what to type, if this kernel has no GPU."""
    try:
        import torch
    except ImportError as why:
        raise UsageError(f"%%cenote: PyTorch cannot be imported in this kernel ({why}); if it lacks NVIDIA's libraries, {START}") from None
    if not torch.version.cuda:
        raise UsageError(f"%%cenote: torch {torch.__version__} is built without CUDA; install one that is built for CUDA, which needs no GPU")
    if not torch.cuda.device_count():
        raise UsageError(f"%%cenote: this kernel has no GPU; {START}")
    return torch


def run(shell: Any, card: Optional[cards.Card], cell: str) -> None:
    torch = torch_with_a_gpu()
    torch.cuda.init()
    before = training.counters(torch)["allocated"]
    torch.cuda.reset_peak_memory_stats()
    result = shell.run_cell(cell)
    print(told(torch, before, card))
    error = result.error_before_exec or result.error_in_exec
    if error is not None:  # it was shown: the cell as a whole fails, so that what runs notebooks sees it
        raise UsageError(f"%%cenote: the cell ended with {type(error).__name__}")


def told(torch: Any, before: int, card: Optional[cards.Card]) -> str:
    free, total = torch.cuda.mem_get_info()
    now = training.counters(torch)
    others = max(total - free - now["reserved"], 0)
    needed = now["reserved_peak"] + others
    lines = [f"cenote: peak {size(now['allocated_peak'])}, held after the cell {size(now['allocated'])} ({limit.signed(now['allocated'] - before)})",
             f"  {size(needed)} at most with what the allocator caches, and {size(others)} for the context and others"]
    name, capacity = ("this GPU", total) if card is None else (card.title, card.capacity)
    left = capacity - needed
    lines.append(f"  {name} ({size(capacity)}): " + (f"fits, {size(left)} left" if left >= 0 else f"does not fit, {size(-left)} missing"))
    return "\n".join(lines)
