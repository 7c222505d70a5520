"""Prints two tables: what each program here takes on a simulated GPU under PyTorch's allocators and cenote, and under cenote in several settings.

    python table.py [--only WORD] [--under WORD] [--steps N] [--save FILE]

Runs every program under every allocator (`cenote run`), two at a time, and saves their figures as lines of JSON. The programs run the same way on a
real GPU. Ends with status 1 if a program failed that should not, or if cenote holds more than it may.
"""
import argparse
import concurrent.futures
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from typing import Any, NamedTuple, Optional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from cenote.base.progress import Programs  # noqa: E402  (needs the path above)

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "bench" / "results"
CAPACITY = "80GiB"
AT_A_TIME = 2
MOST_SECONDS = 900
ENVIRONMENT = {"cudaMallocAsync": {"TORCH_DIST_USE_NCCL2": "0"}}  # PyTorch's newer NCCL group needs snapshots, which cudaMallocAsync does not have
LIBRARIES = ("torch", "torchvision", "transformers", "diffusers", "peft", "accelerate")

Line = dict[str, Any]  # of figures.report()


class Setting(NamedTuple):
    name: str
    allocator: str
    conf: str = ""  # cenote's options
    behind: bool = False  # the GPU is one step behind: by as much time as the CPU needs for a step
    most: Optional[float] = None  # limit of reserved divided by requested, for programs that request more than LARGE


LARGE = 2 << 30
ALLOCATORS = tuple(Setting(name, name) for name in ("native", "expandable", "cudaMallocAsync", "cenote"))
# Moving pages may cost a share of wall time, and a step without kernels is too short for that: the budget is off here. The default is measured, too.
SETTINGS = (
    ALLOCATORS[-1],
    Setting("budget off", "cenote", "harvest_budget:off", most=1.03),
    Setting("2 MiB pages", "cenote", "page_mib:2,harvest_budget:off", most=1.02),
    Setting("a step behind", "cenote", "harvest_budget:off", behind=True, most=1.04),
)


class Program(NamedTuple):
    file: str
    what: str
    launch: tuple[str, ...] = ()  # the launcher, before the name of the program
    devices: int = 1
    refused: tuple[str, ...] = ()  # allocators under which PyTorch itself refuses the program


PROGRAMS = (
    Program("resnet50_amp.py", "ResNet-50, fp16 AMP, image sizes 160-288"),
    Program("resnet101_eval.py", "ResNet-101, training and evaluation in turns"),
    Program("gpt2_train.py", "GPT-2 355M training, sequences of 128-1024"),
    Program("t5_train.py", "T5-large training, pairs of varying lengths"),
    Program("llama_lora.py", "LLaMA-7B LoRA, checkpointing, accumulation"),
    Program("llama_serve.py", "LLaMA-7B serving, growing KV cache"),
    Program("diffusion.py", "Stable Diffusion UNet, training and sampling"),
    Program("lstm.py", "3-layer LSTM, sequences of 10-120"),
    Program("compiled.py", 'ViT-B, torch.compile(backend="cudagraphs")', refused=("cudaMallocAsync",)),
    Program("graphs.py", "LLM serving, CUDA graphs and a MemPool", refused=("cudaMallocAsync",)),
    Program("ddp.py", "ConvNeXt-L, DDP on 4 GPUs", ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "4"), 4),
    Program("fsdp.py", "LLaMA-7B training, FSDP on 4 GPUs", ("-m", "torch.distributed.run", "--nproc-per-node", "4"), 4),
)


class Run(NamedTuple):
    program: Program
    setting: Setting
    status: int
    seconds: float
    ranks: list[Line]  # the line of each rank
    log: str

    def is_good(self) -> bool:
        return self.status == 0 and len(self.ranks) == self.program.devices

    def is_as_expected(self) -> bool:
        return self.is_good() or self.setting.allocator in self.program.refused


def said(log: str) -> list[Line]:
    """The lines of figures.report() in a program's output."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith('{"program"')]
    return sorted(lines, key=lambda line: line["rank"])


def run(program: Program, setting: Setting, steps: Optional[int], lag: int = 0) -> Run:
    command = [sys.executable, "-m", "cenote", "run", "--sim", CAPACITY, "--devices", str(program.devices), "--allocator", setting.allocator]
    command += ["--lag", str(lag)] if lag else []
    command += [*program.launch, program.file, *([str(steps)] if steps else [])]
    environment = {**os.environ, **ENVIRONMENT.get(setting.allocator, {}), **({"CENOTE_CONF": setting.conf} if setting.conf else {})}
    since = time.monotonic()
    process = subprocess.Popen(
        command, cwd=HERE, env=environment, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        log, _ = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        log, _ = process.communicate()
        log += f"\n(stopped after {MOST_SECONDS} s)\n"
    return Run(program, setting, process.returncode, time.monotonic() - since, said(log), log)


def run_all(programs: list[Program], settings: list[Setting], steps: Optional[int]) -> list[Run]:
    progress = Programs(len(programs) * len(settings))
    ends: dict[tuple[Program, Setting], concurrent.futures.Future[Run]] = {}

    def one(program: Program, setting: Setting) -> Run:
        name = f"{program.file} under {setting.name}"
        lag = 0
        if setting.behind:
            first = ends[program, ALLOCATORS[-1]].result()
            lag = int(1e6 * max((rank["step_cpu_ms"] or 0 for rank in first.ranks), default=0))
        progress.start(name)
        result = run(program, setting, steps, lag)
        progress.end(name, "done" if result.is_good() else "refused by PyTorch" if result.is_as_expected() else "FAILED")
        return result

    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as executor:
        for program in programs:
            for setting in settings:
                ends[program, setting] = executor.submit(one, program, setting)
        runs = [end.result() for end in ends.values()]
    progress.close()
    return runs


def figures_of(runs: list[Run], program: Program) -> dict[Setting, Line]:
    """For each setting the line of the rank that requests most, with `waste`: reserved divided by requested, at the peaks."""
    good = {r.setting: r for r in runs if r.program is program and r.is_good()}
    counted = next((r for setting, r in good.items() if setting.allocator != "cudaMallocAsync"), None)  # cudaMallocAsync counts no requests
    if not counted:
        return {}
    most = max(counted.ranks, key=lambda rank: rank["requested_peak"])
    found: dict[Setting, Line] = {}
    for setting, r in good.items():
        rank = r.ranks[most["rank"]]
        requested = rank["requested_peak"] or most["requested_peak"]  # the requests are the same under every allocator
        found[setting] = {**rank, "waste": rank["reserved_peak"] / requested - 1, "seconds": r.seconds}
    return found


def row(runs: list[Run], settings: list[Setting], program: Program) -> str:
    figures = figures_of(runs, program)
    first = next(iter(figures.values()), None)
    cells = []
    for setting in settings:
        there = figures.get(setting)
        text = f"{100 * there['waste']:+.2f} %" if there else "not possible" if setting.allocator in program.refused else "failed"
        cells.append(f"{text:>{max(12, len(setting.name))}}")
    if first:
        ends = f"{first['host_peak'] / 1e9:8.2f} {max(r.seconds for r in runs if r.program is program):8.0f}"
        requested = f"{first['requested_peak'] / 1e9:9.2f}"
    else:
        ends, requested = " " * 17, " " * 9
    return f"{program.what:<46} {requested} " + " ".join(cells) + f" {ends}"


def table(runs: list[Run], settings: list[Setting], programs: list[Program], title: str) -> str:
    heads = " ".join(f"{setting.name:>{max(12, len(setting.name))}}" for setting in settings)
    lines = [
        f"{'':<46} {'requested':>9} {title:^{len(heads)}} {'host':>8} {'longest':>8}",
        f"{'program':<46} {'GB':>9} {heads} {'GB':>8} {'s':>8}",
    ]
    lines += [row(runs, settings, program) for program in programs]
    return "\n".join(lines)


def misses(runs: list[Run], programs: list[Program]) -> list[str]:
    """The settings in which cenote holds more than it may."""
    found = []
    for program in programs:
        for setting, line in figures_of(runs, program).items():
            if setting.most and line["requested_peak"] > LARGE and 1 + line["waste"] > setting.most:
                found.append(f"{program.file} with {setting.name}: {1 + line['waste']:.4f} of what is requested, at most {setting.most}")
    return found


NOTES = f"""
Peaks by PyTorch's own count on a simulated GPU of {CAPACITY}; of several ranks the one that requests most. Host: peak of one process.
"Budget off", "2 MiB pages": with harvest_budget:off, as steps without kernels are too short to judge moving pages by their time.
"A step behind": the first of these with a GPU that is one step behind the program. cudaMallocAsync counts no requests: its
reserved memory stands over what the others requested. Its pool is modelled, not NVIDIA's. "Not possible": PyTorch has no MemPool, and
none of the pools of compiled graphs, under that allocator."""


def machine() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores"


def save(path: pathlib.Path, runs: list[Run], alone: Optional[Run], steps: Optional[int]) -> None:
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    lines: list[Line] = [
        {
            "date": str(datetime.date.today()), "machine": machine(), "gpu": f"simulated GPU, {CAPACITY}",
            "python": platform.python_version(), **versions, "steps": steps or "as the programs say", "at_a_time": AT_A_TIME,
        }
    ]
    for r in [*runs, *([alone] if alone else [])]:
        head = {"allocator": r.setting.allocator, "setting": r.setting.name, "conf": r.setting.conf}
        head |= {"seconds": round(r.seconds, 1), "alone": r is alone}
        lines += [{**rank, **head} for rank in r.ranks] if r.is_good() else [{"program": r.program.file, **head, "status": r.status}]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def measure_alone(programs: list[Program]) -> Optional[Run]:
    """Measures the CPU time of a step, with nothing else running."""
    gpt2 = next((program for program in programs if program.file == "gpt2_train.py"), None)
    alone = run(gpt2, ALLOCATORS[0], None) if gpt2 else None
    if alone and alone.is_good():
        print(f"\nA training step of GPT-2 355M takes {alone.ranks[0]['step_cpu_ms']} ms of CPU time (median of 20).")
    return alone


def main() -> int:
    parser = argparse.ArgumentParser(description="what the programs here take under each of PyTorch's allocators, on a simulated GPU")
    parser.add_argument("--only", metavar="WORD", default="", help="programs whose file begins with WORD")
    parser.add_argument("--steps", metavar="N", type=int, help="so many steps of each, for a quick look")
    parser.add_argument("--save", metavar="FILE", type=pathlib.Path, default=RESULTS / f"{datetime.date.today()}-torch-programs.jsonl")
    parser.add_argument("--under", metavar="WORD", default="", help="allocators whose name begins with WORD")
    options = parser.parse_args()
    programs = [program for program in PROGRAMS if program.file.startswith(options.only)]
    if not programs:
        parser.error(f"no program begins with {options.only!r}")
    known = list(dict.fromkeys([*ALLOCATORS, *SETTINGS]))
    settings = [s for s in known if s.allocator.startswith(options.under)]
    runs = run_all(programs, settings, options.steps)
    for title, columns in (("reserved over requested under", ALLOCATORS), ("the same under cenote", SETTINGS)):
        shown = [setting for setting in columns if setting in settings]
        print(table(runs, shown, programs, title) + "\n")
    print(NOTES)
    alone = measure_alone(programs) if not options.under else None
    save(options.save, runs, alone, options.steps)
    print(f"saved in {options.save}")
    failed = [r for r in runs if not r.is_as_expected()]
    for r in failed:
        print(f"\n{r.program.file} under {r.setting.name} failed with status {r.status}; its last lines:")
        print("\n".join(r.log.splitlines()[-12:]))
    missed = misses(runs, programs)
    print("\n".join(missed))
    return 1 if failed or missed else 0


if __name__ == "__main__":
    sys.exit(main())
