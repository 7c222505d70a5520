"""Random programs for shadow.py: drawn from a seed, and shortened if they fail.

A program is a list of steps that is drawn before it runs. So a program that fails can run again with fewer steps.
"""

import os
import random
import sys
from dataclasses import dataclass
from typing import Optional

import torch

from shadow import KIB, MIB, Failed, Gpu, World

LIMITS = (0, 0, 24 * MIB, 40 * MIB, 64 * MIB)
LAGS = (0, 100_000, 3_000_000, 10**12)  # ns that the GPU is behind; with the last value its work ends only when the program waits

# How often each step is drawn. Captures are short, so that most steps are outside of them.
WEIGHTS = {
    "take": 18, "give": 12, "use": 6, "refill": 4, "work": 4, "advance": 4, "synchronize": 2, "empty_cache": 2,
    "begin": 10, "inner_take": 16, "inner_copy": 5, "inner_give": 10, "inner_use": 3, "fork": 4, "join": 3, "end": 5,
    "replay": 16, "read_result": 4, "drop_result": 3, "drop_orphan": 2, "reset": 4, "forget_pool": 1, "judge": 1,
}  # fmt: skip


@dataclass
class Program:
    lag: int  # of the GPU, in ns
    limit: int  # bytes that PyTorch may hold beyond what it holds already; 0: no limit
    width: int  # streams that eager blocks are taken on
    steps: list

    def run(self, gpu: Gpu) -> None:
        world = World(gpu, self.lag, self.limit, self.width)
        try:
            for name, a, b, c in self.steps:
                getattr(world, "do_" + name)(a, b, c)
            world.close()
        except BaseException:
            abandon(world)
            raise

    def without(self, first: int, count: int) -> "Program":
        return Program(self.lag, self.limit, self.width, self.steps[:first] + self.steps[first + count :])

    def __str__(self) -> str:
        head = f"lag {self.lag} ns, limit {self.limit} bytes, eager blocks on {self.width} streams"
        return "\n".join([head, *(f"    {name} {a} {b} {c}" for name, a, b, c in self.steps)])


def abandon(world: World) -> None:
    """After a failure: frees what the program holds, as far as that is possible."""
    if world.capture:
        try:
            torch.cuda.set_stream(world.capture.main)
            world.capture.handle.capture_end()
        except RuntimeError:
            pass
    torch.cuda.set_stream(world.streams[0])
    world.gpu.driver.sim_set_lag(0)


def draw(seed: int) -> Program:
    dice = random.Random(seed)
    if seed % 4:
        weights, length = WEIGHTS, dice.randrange(20, 70)
    else:  # much eager work around few graphs, so that memory moves
        weights, length = {**WEIGHTS, "take": 70, "give": 60, "synchronize": 1, "empty_cache": 0, "judge": 0}, dice.randrange(60, 120)
    names = dice.choices(list(weights), list(weights.values()), k=length)
    steps = [(name, *(dice.randrange(1 << 16) for _ in range(3))) for name in names]
    return Program(dice.choice(LAGS), dice.choice(LIMITS), dice.choice((1, 2, 4)), steps)


def fails(program: Program, gpu: Gpu) -> Optional[str]:
    try:
        program.run(gpu)
    except (Failed, RuntimeError) as error:
        return str(error).splitlines()[0]
    return None


def minimised(program: Program, gpu: Gpu, tries: int = 300) -> Program:
    """Leaves out steps, many at a time and then single ones, as long as it still fails."""
    size = len(program.steps) // 2
    while size and tries > 0:
        first = 0
        while first < len(program.steps) and tries > 0:
            shorter = program.without(first, size)
            tries -= 1
            if fails(shorter, gpu):
                program = shorter
            else:
                first += size
        size //= 2
    return program


def run_all(seeds) -> None:
    """Raises Failed for the first seed whose program fails, with the shortest program found that does unless CENOTE_SHADOW=quick."""
    gpu, allocated = Gpu(), torch.cuda.memory_allocated()
    for seed in seeds:
        program = draw(seed)
        said = fails(program, gpu)
        if said:
            if os.environ.get("CENOTE_SHADOW") == "quick":
                raise Failed(f"seed {seed}: {said}")
            shorter = minimised(program, gpu)
            raise Failed(f"seed {seed}: {said}\nshortest program that fails: {fails(shorter, gpu) or 'not any more'}\n{shorter}")
    left = torch.cuda.memory_allocated() - allocated
    if left > 8 * KIB:  # a first capture may have made the state of the random generator
        raise Failed(f"{left} bytes are allocated, and no block is left")


if __name__ == "__main__":
    import time

    since = time.monotonic()
    run_all(range(int(sys.argv[1]), int(sys.argv[2])))
    print(f"{int(sys.argv[2]) - int(sys.argv[1])} programs, nothing found, {time.monotonic() - since:.1f} s")
