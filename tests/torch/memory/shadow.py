"""A model of the owner and the content of each byte, under random programs of graphs and eager work (programs.py).

`World` carries out the steps of a program. It does only what a correct program may do, orders streams only if it has to, and follows

* the owner of each byte: no block overlaps another that is live, or memory that a graph of another pool writes when it is replayed;
* what each block holds: a pattern that only its owner writes, filled and compared by the simulated GPU in the order of the streams, at both
  ends and in between, four times in each page of 2 MiB. A replay writes the patterns of its graph; what it copies from a block outside it
  has whatever that holds then;
* what a replay may overwrite: all that the graph wrote when it was captured, also in blocks that were freed since and that graphs of the same
  pool may have taken over. After the replay the contents of those blocks are unknown until their graphs are replayed.

If an allocator frees too early, moves memory under a graph, or gives a graph's memory to other blocks, contents are wrong or a rule is violated.
"""

import ctypes
import functools
from dataclasses import dataclass, field
from typing import Optional

import torch

KIB, MIB = 1 << 10, 1 << 20
ODD = 0x9E3779B97F4A7C15
SIZES = (512, 3 * KIB, 20 * KIB, 300 * KIB, MIB, 2 * MIB, 2 * MIB + 512, 3 * MIB, 5 * MIB, 9 * MIB)
COPIED_MAX = 20 * KIB
MODES = ("global", "thread_local", "relaxed")


class Failed(AssertionError):
    """The program found wrong contents, a violation, or two owners of one byte."""


@dataclass(eq=False)
class Block:
    tensor: Optional[torch.Tensor]
    at: int
    size: int
    stream: torch.cuda.Stream
    pattern: Optional[int] = None  # its content; None: unknown
    written: Optional[int] = None  # of a graph's block: what each replay leaves in it
    source: Optional["Block"] = None  # or where each replay copies it from
    readers: set = field(default_factory=set)  # streams that read it since it was last written
    recorded: set = field(default_factory=set)  # streams that record_stream named

    def overlaps(self, other: tuple) -> bool:
        return self.at < other[1] and other[0] < self.at + self.size


@dataclass(eq=False)
class Pool:
    """The memory that graphs share. They are replayed in any order, on any stream; `last` is the stream that used the memory last."""

    id: tuple
    keeper: object = None  # a MemPool, until the program drops it
    last: Optional[torch.cuda.Stream] = None


@dataclass(eq=False)
class Graph:
    handle: torch.cuda.CUDAGraph
    pool: Pool
    main: torch.cuda.Stream
    mode: str
    side: Optional[torch.cuda.Stream] = None  # while the capture is forked
    forked: set = field(default_factory=set)
    territory: list = field(default_factory=list)  # what a replay may write
    blocks: list = field(default_factory=list)  # live ones
    sources: set = field(default_factory=set)
    puts_off: bool = False  # in the capture a block was freed that other streams had read


@functools.cache
def spots(size: int) -> tuple:
    """Where contents are written and compared: all of a small block, some places of a large one."""
    if size <= 4 * KIB:
        return ((0, size),)
    return tuple((at, 512) for at in range(0, size - 512, 512 * KIB)) + ((size - 512, 512),)


class Gpu:
    """The simulated GPU, as far as the shadow needs it."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        work = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t]
        self.driver.sim_launch_fill.argtypes = self.driver.sim_launch_expect.argtypes = work
        self.driver.sim_launch_wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self.driver.sim_set_lag.argtypes = self.driver.sim_advance.argtypes = [ctypes.c_uint64]
        self.driver.sim_mismatches.restype = ctypes.c_uint64
        self.driver.sim_last_violation.restype = ctypes.c_char_p
        self.books = (ctypes.c_uint64 * 64)()

    def each(self, function, block: Block, pattern: int, stream) -> None:
        for at, size in spots(block.size):
            if function(stream.cuda_stream, block.at + at, pattern + at & (1 << 64) - 1, size):
                raise Failed(f"work on {block.at:#x} was refused: {self.violation()}")

    def fill(self, block: Block, pattern: int, stream) -> None:
        self.each(self.driver.sim_launch_fill, block, pattern, stream)

    def expect(self, block: Block, pattern: int, stream) -> None:
        self.each(self.driver.sim_launch_expect, block, pattern, stream)

    def faults(self) -> int:
        """Words that differed, and rules that were broken, so far. The last of struct sim_books counts violations."""
        self.driver.sim_books(self.books)
        return self.driver.sim_mismatches() + self.books[14]

    def used(self) -> int:
        """Bytes of memory that the allocator holds. PyTorch's own count takes milliseconds once it has seen many pools."""
        self.driver.sim_books(self.books)
        return self.books[0]

    def violation(self) -> str:
        return self.driver.sim_last_violation().decode()


class World:
    serial = 0

    def __init__(self, gpu: Gpu, lag: int, limit: int, width: int) -> None:
        self.gpu, self.width = gpu, width
        self.streams = side_streams()
        self.eager: list = []
        self.orphans: list = []  # (block, pool) of graphs that were destroyed
        self.graphs: list = []
        self.pools: list = []
        self.apart = None  # a MemPool for eager blocks
        self.capture: Optional[Graph] = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((limit + gpu.used()) / (4 << 30) if limit else 1.0)
        gpu.driver.sim_set_lag(lag)
        self.before = gpu.faults()

    # --- parts of steps

    def captures(self, stream) -> bool:
        return self.capture is not None and (stream is self.capture.main or stream in self.capture.forked)

    def live(self) -> list:
        return self.eager + [block for block, _ in self.orphans] + [block for graph in self.all_graphs() for block in graph.blocks]

    def all_graphs(self) -> list:
        return self.graphs + ([self.capture] if self.capture else [])

    def pattern(self) -> int:
        World.serial += 1
        return World.serial * ODD & (1 << 64) - 1

    def take(self, size: int, stream, graph: Optional[Graph] = None, apart: bool = False) -> Optional[Block]:
        """A block that overlaps no other owner's memory; None if there is no memory for it."""
        torch.cuda.set_stream(stream)
        try:
            if apart:
                with torch.cuda.use_mem_pool(self.apart):
                    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            else:
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            return None
        block = Block(tensor, tensor.data_ptr(), size, stream)
        for other in self.live():
            if block.overlaps((other.at, other.at + other.size)):
                raise Failed(f"{size} bytes at {block.at:#x} lie in a live block of {other.size} bytes at {other.at:#x}")
        for other in self.graphs:
            if graph is None or other.pool is not graph.pool:
                if any(block.overlaps(span) for span in other.territory):
                    raise Failed(f"{size} bytes at {block.at:#x} lie in memory that a graph of another pool writes")
        return block

    def free(self, block: Block, inside: bool = False) -> None:
        """If other streams read a block, PyTorch's own allocator asks the current stream whether the block is freed in a capture."""
        torch.cuda.set_stream(self.capture.main if inside else self.streams[0])
        if inside:
            self.capture.puts_off |= bool(block.recorded)
        block.tensor = None

    def write(self, block: Block, stream) -> None:
        block.pattern = self.pattern()
        self.gpu.fill(block, block.pattern, stream)

    def read(self, block: Block, stream) -> None:
        if block.pattern is not None:
            self.gpu.expect(block, block.pattern, stream)

    def order(self, pool: Pool, stream) -> bool:
        """Makes the stream wait for the last stream that used the pool's memory. Returns False if that stream is in a capture."""
        if pool.last is not None and self.captures(pool.last):
            return False
        if pool.last is not None and pool.last is not stream:
            stream.wait_stream(pool.last)
        pool.last = stream
        return True

    def may_read(self, block: Block) -> bool:
        return not self.captures(block.stream)

    def may_ask_driver(self) -> bool:
        """PyTorch's own allocator takes memory from the driver in the capture mode of the thread, which only a relaxed capture survives. And an
        allocation on a stream that does not capture does the work that was put off until the end of the capture."""
        graph = self.capture
        return self.may_ask_anything() or (graph.mode == "relaxed" and not graph.puts_off)

    def may_ask_anything(self) -> bool:
        """PyTorch's own allocator gives memory back during a capture, too, which invalidates the capture."""
        return not self.capture or torch.cuda.get_allocator_backend() == "cenote"

    # --- eager work

    def do_take(self, a: int, b: int, c: int) -> None:
        stream = self.streams[a % self.width]
        if self.captures(stream) or len(self.eager) > 12 or not self.may_ask_driver():
            return
        apart = c % 5 == 0
        if apart and self.apart is None:
            self.apart = torch.cuda.MemPool()
        block = self.take(SIZES[b % len(SIZES)], stream, apart=apart)
        if block:
            self.write(block, stream)
            self.eager.append(block)

    def do_give(self, a: int, b: int, c: int) -> None:
        """Frees a block after its last use, whatever the GPU is doing. Its stream reads it once more before, unless that stream captures."""
        used = {source for graph in self.all_graphs() for source in graph.sources}
        some = [block for block in self.eager if block not in used and not any(self.captures(stream) for stream in block.recorded)]
        if not some:
            return
        block = some[a % len(some)]
        if self.may_read(block):
            self.read(block, block.stream)
        self.eager.remove(block)
        self.free(block)

    def do_use(self, a: int, b: int, c: int) -> None:
        """Another stream reads a block, late."""
        stream = self.streams[b % len(self.streams)]
        if not self.eager:
            return
        block = self.eager[a % len(self.eager)]
        if self.captures(stream) or self.captures(block.stream) or stream is block.stream:
            return
        stream.wait_stream(block.stream)
        self.gpu.driver.sim_launch_wait(stream.cuda_stream, c % 7 * 50_000)
        self.read(block, stream)
        block.tensor.record_stream(stream)
        block.readers.add(stream)
        block.recorded.add(stream)

    def do_refill(self, a: int, b: int, c: int) -> None:
        if not self.eager:
            return
        block = self.eager[a % len(self.eager)]
        readers = block.readers | {graph.pool.last for graph in self.all_graphs() if block in graph.sources and graph.pool.last}
        if self.captures(block.stream) or any(self.captures(reader) for reader in readers):
            return
        for reader in readers:
            block.stream.wait_stream(reader)
        block.readers.clear()
        self.write(block, block.stream)

    def do_work(self, a: int, b: int, c: int) -> None:
        stream = self.streams[a % len(self.streams)]
        if not self.captures(stream):
            self.gpu.driver.sim_launch_wait(stream.cuda_stream, b % 20 * 100_000)

    def do_advance(self, a: int, b: int, c: int) -> None:
        self.gpu.driver.sim_advance(a % 20 * 200_000)

    def do_synchronize(self, a: int, b: int, c: int) -> None:
        stream = self.streams[a % len(self.streams)]
        if not self.capture:
            stream.synchronize()

    def do_empty_cache(self, a: int, b: int, c: int) -> None:
        if self.may_ask_anything():
            torch.cuda.empty_cache()

    # --- captures

    def do_begin(self, a: int, b: int, c: int) -> None:
        if self.capture or len(self.graphs) >= 4:
            return
        pools = [pool for pool in self.pools if any(graph.pool is pool for graph in self.graphs)]  # PyTorch allows no other
        pool = pools[b // 2 % len(pools)] if pools and b % 2 else self.new_pool(b)
        main, handle = self.streams[1 + a % (len(self.streams) - 1)], torch.cuda.CUDAGraph()
        if pool not in self.pools:
            self.pools.append(pool)
        torch.cuda.synchronize() if c % 5 == 0 else None
        torch.cuda.set_stream(main)
        mode = MODES[c % len(MODES)]
        handle.capture_begin(pool=pool.id, capture_error_mode=mode)
        self.capture = Graph(handle, pool, main, mode)

    def new_pool(self, b: int) -> Pool:
        if b % 3 == 0:
            keeper = torch.cuda.MemPool()
            return Pool(keeper.id, keeper)
        return Pool(torch.cuda.graph_pool_handle())

    def branch(self, a: int):
        """A stream of the capture that may get work."""
        graph = self.capture
        return graph.side if graph.side and a % 2 else graph.main

    def do_inner_take(self, a: int, b: int, c: int) -> None:
        graph = self.capture
        if not graph:
            return
        stream = self.branch(a)
        block = self.take(SIZES[b % len(SIZES)], stream, graph)
        if not block:
            return
        block.written = self.pattern()
        self.gpu.fill(block, block.written, stream)
        graph.blocks.append(block)
        graph.territory.append((block.at, block.at + block.size))

    def do_inner_copy(self, a: int, b: int, c: int) -> None:
        """Each replay copies from a block outside, which stays as long as the graph."""
        graph = self.capture
        some = [block for block in self.eager if block.size <= COPIED_MAX]
        if not graph or not some:
            return
        source, stream = some[b % len(some)], self.branch(a)
        block = self.take(source.size, stream, graph)
        if not block:
            return
        block.tensor.copy_(source.tensor, non_blocking=True)
        block.source = source
        graph.sources.add(source)
        graph.blocks.append(block)
        graph.territory.append((block.at, block.at + block.size))

    def do_inner_give(self, a: int, b: int, c: int) -> None:
        """Frees a block of the capture after a last read, so that each replay compares it. The main stream reads for a branch that has joined."""
        graph = self.capture
        if not graph or not graph.blocks:
            return
        block = graph.blocks.pop(a % len(graph.blocks))
        if block.written is not None:
            self.gpu.expect(block, block.written, block.stream if block.stream is graph.side else graph.main)
        self.free(block, inside=True)

    def do_inner_use(self, a: int, b: int, c: int) -> None:
        """A branch reads late what the other one wrote, and calls record_stream."""
        graph = self.capture
        some = [block for block in graph.blocks if block.stream is graph.main and block.written is not None] if graph else []
        if not some or not graph.side:
            return
        block = some[a % len(some)]
        graph.side.wait_stream(graph.main)
        self.gpu.driver.sim_launch_wait(graph.side.cuda_stream, b % 5 * 50_000)
        self.gpu.expect(block, block.written, graph.side)
        block.tensor.record_stream(graph.side)
        block.recorded.add(graph.side)

    def do_fork(self, a: int, b: int, c: int) -> None:
        graph = self.capture
        if not graph or graph.side:
            return
        others = [stream for stream in self.streams[1:] if stream is not graph.main]
        graph.side = others[a % len(others)]
        graph.forked.add(graph.side)
        graph.side.wait_stream(graph.main)

    def do_join(self, a: int, b: int, c: int) -> None:
        graph = self.capture
        if graph and graph.side:
            graph.main.wait_stream(graph.side)
            graph.side = None

    def do_end(self, a: int, b: int, c: int) -> None:
        graph = self.capture
        if not graph:
            return
        self.do_join(0, 0, 0)
        torch.cuda.set_stream(graph.main)
        if not graph.territory:
            self.gpu.driver.sim_launch_wait(graph.main.cuda_stream, 0)  # PyTorch warns of an empty one
        graph.handle.capture_end()
        self.capture = None
        self.graphs.append(graph)

    # --- graphs

    def do_replay(self, a: int, b: int, c: int) -> None:
        stream = self.streams[b % len(self.streams)]
        if not self.graphs or self.captures(stream):
            return
        graph = self.graphs[a % len(self.graphs)]
        if any(self.captures(source.stream) for source in graph.sources) or not self.order(graph.pool, stream):
            return
        for source in graph.sources:
            if source.stream is not stream:
                stream.wait_stream(source.stream)
        torch.cuda.set_stream(stream)
        graph.handle.replay()
        self.overwritten(graph)
        for block in graph.blocks:
            block.pattern = block.written if block.source is None else block.source.pattern
            if c % 3 == 0:
                self.read(block, stream)

    def overwritten(self, graph: Graph) -> None:
        """The blocks of graphs that were captured later in this pool, where this graph had blocks that were freed by then."""
        for sibling in self.graphs:
            if sibling is not graph and sibling.pool is graph.pool:
                for block in sibling.blocks:
                    if any(block.overlaps(span) for span in graph.territory):
                        block.pattern = None
        for block, pool in self.orphans:
            if pool is graph.pool and any(block.overlaps(span) for span in graph.territory):
                block.pattern = None

    def do_read_result(self, a: int, b: int, c: int) -> None:
        some = [(block, graph.pool) for graph in self.graphs for block in graph.blocks] + self.orphans
        stream = self.streams[b % len(self.streams)]
        if not some or self.captures(stream):
            return
        block, pool = some[a % len(some)]
        if self.order(pool, stream):
            self.read(block, stream)

    def do_drop_result(self, a: int, b: int, c: int) -> None:
        some = [(block, graph) for graph in self.graphs for block in graph.blocks]
        if some:
            block, graph = some[a % len(some)]
            graph.blocks.remove(block)
            self.free(block)

    def do_drop_orphan(self, a: int, b: int, c: int) -> None:
        """Frees a result whose graph is gone. If its pool is gone, too, its memory is ordinary: its stream must wait for the streams that used it."""
        if not self.orphans:
            return
        block, pool = self.orphans[a % len(self.orphans)]
        if pool.last is not None:
            if self.captures(block.stream) or self.captures(pool.last):
                return
            if pool.last is not block.stream:
                block.stream.wait_stream(pool.last)
        self.orphans = [pair for pair in self.orphans if pair[0] is not block]
        self.free(block)

    def do_reset(self, a: int, b: int, c: int) -> None:
        """Resets a graph, perhaps during a replay; its results stay."""
        if not self.graphs:
            return
        graph = self.graphs.pop(a % len(self.graphs))
        self.orphans += [(block, graph.pool) for block in graph.blocks]
        if b % 2:
            graph.handle.reset()
        graph.handle = None

    def do_forget_pool(self, a: int, b: int, c: int) -> None:
        if not self.may_ask_anything():
            return
        if c % 2:
            self.apart = None  # the blocks of the pool stay
            return
        kept = [pool for pool in self.pools if pool.keeper and not (self.capture and self.capture.pool is pool)]
        if kept:
            kept[a % len(kept)].keeper = None

    # --- judging

    def check(self, when: str) -> None:
        if self.gpu.faults() != self.before:
            raise Failed(f'{when}: {self.gpu.driver.sim_mismatches()} words differ; last violation: "{self.gpu.violation()}"')

    def do_judge(self, a: int, b: int, c: int) -> None:
        """Waits for everything, and checks that every block holds what its owner wrote."""
        if self.capture:
            return
        torch.cuda.synchronize()
        for block in self.live():
            self.read(block, self.streams[0])
        torch.cuda.synchronize()
        self.check("at rest")

    def close(self) -> None:
        self.do_end(0, 0, 0)
        self.do_judge(0, 0, 0)
        self.eager, self.orphans, self.graphs, self.pools, self.apart = [], [], [], [], None
        torch.cuda.set_stream(self.streams[0])
        self.gpu.driver.sim_set_lag(0)
        torch.cuda.synchronize()
        self.check("at the end")


@functools.cache
def side_streams() -> tuple:
    return (torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3)))
