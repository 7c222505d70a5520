"""Records traces of the programs of examples/torch: real PyTorch on the simulated GPU, under cenote.

    python traces/record.py [NAME...]

Runs the programs named, or all, one at a time (`cenote run --trace`, tagged.py), and writes traces/torch/NAME.csv.gz and what is known of each into
traces/torch/manifest.json, where programs that were not named keep their lines. Of several ranks the trace of rank 0 is kept. A trace is written
beside its place and takes it when it is whole and read through. Times in it are those of the machine that recorded: another recording differs in
them and in addresses, not in what was allocated.

Exit status: 0 done, 1 a program failed or the traces take too much room, 2 a wrong argument.
"""
import argparse
import datetime
import gzip
import hashlib
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "python"))

from cenote import places  # noqa: E402: where this tree's package lies is known only now
from cenote.replay import comparison, trace_file  # noqa: E402

FOLDER = HERE / "torch"
MANIFEST = FOLDER / "manifest.json"
PROGRAMS = ROOT / "examples" / "torch"
CAPACITY = "80GiB"
MOST_BYTES = 10_000_000  # of all traces together
MOST_SECONDS = 900

Line = dict[str, Any]


class Failed(Exception):
    """A recording failed; the text says why."""


class Program(NamedTuple):
    """How a program is recorded."""

    name: str
    steps: int  # as few as make a small file, as many as show twice what is hard about the program
    addresses: bool = False  # record addresses and reserved bytes, too: only `cenote view` needs them, and they take a third of the file
    ranks: int = 1
    launch: tuple[str, ...] = ()  # what starts the ranks


ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "4")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "4")

TABLE = (
    Program("resnet50_amp", 20),
    Program("resnet101_eval", 20),  # the evaluation comes at every tenth
    Program("gpt2_train", 10, addresses=True),
    Program("t5_train", 5),
    Program("llama_lora", 2),
    Program("llama_serve", 2),
    Program("diffusion", 10),  # pictures are sampled at the tenth
    Program("lstm", 60),
    Program("compiled", 8),
    Program("graphs", 3),
    Program("ddp", 8, ranks=4, launch=ACCELERATE),
    Program("fsdp", 4, ranks=4, launch=TORCHRUN),
)


# --- one recording

def command(program: Program, trace: pathlib.Path) -> list[str]:
    options = ["--sim", CAPACITY, "--devices", str(program.ranks), "--allocator", "cenote", "--trace", str(trace)]
    script = [str(HERE / "tagged.py"), str(PROGRAMS / f"{program.name}.py"), str(program.steps)]
    return [sys.executable, "-m", "cenote", "run", *options, *program.launch, *script]


def environment() -> dict[str, str]:
    """The environment for a recording, without the variables that would change it."""
    left_out = (*comparison.LEFT_OUT, "CENOTE_CONF")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")]))}


def finish(process: "subprocess.Popen[bytes]", name: str) -> int:
    """Runs the command and returns its status. It has a process group of its own, so that all ranks end when it is killed."""
    try:
        return process.wait(MOST_SECONDS)
    except BaseException as end:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(end, subprocess.TimeoutExpired):
            raise Failed(f"{name} took more than {MOST_SECONDS} s") from None
        raise


def run(program: Program, folder: pathlib.Path) -> Line:
    """Leaves traces in `folder`; what rank 0 says of itself, as examples/torch/figures.py does."""
    with open(folder / "log", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(command(program, folder / "%p.csv.gz"), cwd=folder, env=environment(), stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        status = finish(process, program.name)
        log.seek(0)
        lines = log.read().splitlines()
    said = [json.loads(line) for line in lines if line.startswith('{"program"')]
    first = next((line for line in said if line["rank"] == 0), None)
    if status or first is None or len(said) != program.ranks:
        raise Failed(f"{program.name} ended with status {status}; {len(said)} of {program.ranks} ranks said their figures: " + " | ".join(lines[-4:]))
    return first


def of_rank_0(program: Program, folder: pathlib.Path) -> pathlib.Path:
    """A process has a trace of each card, and rank 0 alone allocates on the first. `check` finds out whether it was that one."""
    found = [path for path in sorted(folder.glob("*.csv.gz")) if allocates_on_the_first_card(path)]
    if len(found) != 1:
        raise Failed(f"{program.name} left {len(found)} traces with allocations on the first card, and one process should")
    return found[0]


def allocates_on_the_first_card(path: pathlib.Path) -> bool:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        columns = file.readline().rstrip("\n").split(",")
        for line in file:
            row = dict(zip(columns, line.split(",")))
            if row["op"] == "a":
                return row["device"] == "0"
    return False


def pack(path: pathlib.Path, to: pathlib.Path, with_addresses: bool) -> None:
    """Writes a small file, with the same bytes for the same records: whole microseconds, gzip without date and name."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        columns = file.readline().rstrip("\n").split(",")
        time_at, kept = columns.index("t_us"), [i for i, name in enumerate(columns) if name not in ("address", "reserved") or with_addresses]
        lines = [",".join(columns[i] for i in kept)]
        for line in file:
            fields = line.rstrip("\n").split(",")
            fields[time_at] = fields[time_at].partition(".")[0]
            lines.append(",".join(fields[i] for i in kept))
    to.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), 9, mtime=0))


def look(path: pathlib.Path) -> Line:
    """What the file itself says, by cenote's reader, and by the text for what a replay has no use for."""
    trace = trace_file.load(str(path))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        columns = file.readline().rstrip("\n").split(",")
        op, label, bytes_ = (columns.index(name) for name in ("op", "label", "bytes"))
        rows = [line.rstrip("\n").split(",") for line in file]
    counts = {name: sum(row[op] == letter for row in rows) for name, letter in (("allocations", "a"), ("uses", "u"), ("steps", "s"))}
    return {"records": trace.records, **counts, "streams": len(trace.streams), "live_peak_bytes": trace.live_peak,
            "tags": sorted({row[label] for row in rows} - {""}), "largest_bytes": max(int(row[bytes_] or 0) for row in rows),
            "file_bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def versions() -> Line:
    import importlib.metadata
    names = ("torch", "torchvision", "transformers", "diffusers", "peft", "accelerate")
    return {"cenote": places.version(), "python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def record(program: Program) -> Line:
    with tempfile.TemporaryDirectory(prefix="cenote-record-") as name:
        folder = pathlib.Path(name)
        said = run(program, folder)
        new = FOLDER / f".{program.name}.csv.gz"
        pack(of_rank_0(program, folder), new, program.addresses)
        try:
            line = {"name": program.name, "file": f"{program.name}.csv.gz", "program": f"examples/torch/{program.name}.py",
                    "arguments": [str(program.steps)], "launch": list(program.launch), "ranks": program.ranks, "rank": 0,
                    **look(new), "gpu": f"simulated, {CAPACITY}", "date": str(datetime.date.today()), **versions()}
            check(program, line, said)
            new.replace(FOLDER / f"{program.name}.csv.gz")
        finally:
            new.unlink(missing_ok=True)
    return line


def check(program: Program, line: Line, said: Line) -> None:
    """The trace and PyTorch's own count of the same run, which rounds nothing in what it calls requested."""
    if line["live_peak_bytes"] != said["requested_peak"]:
        raise Failed(f"{program.name}: the trace has a peak of {line['live_peak_bytes']} bytes, and PyTorch counted {said['requested_peak']}")
    if line["steps"] != program.steps:
        raise Failed(f"{program.name}: {line['steps']} steps in the trace, and {program.steps} were taken")


# --- all of them

def read_manifest() -> list[Line]:
    found: list[Line] = json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.exists() else []
    return found


def write_manifest(lines: list[Line]) -> None:
    order = [program.name for program in TABLE]
    kept = sorted((line for line in lines if line["name"] in order), key=lambda line: order.index(line["name"]))
    new = MANIFEST.with_name(".manifest.json")
    new.write_text("[\n  " + ",\n  ".join(json.dumps(line) for line in kept) + "\n]\n", encoding="utf-8")
    new.replace(MANIFEST)


def record_all(programs: list[Program]) -> int:
    FOLDER.mkdir(exist_ok=True)
    for number, program in enumerate(programs, 1):
        since = time.monotonic()
        print(f"{number}/{len(programs)} {program.name} ...", end=" ", flush=True)
        line = record(program)
        write_manifest([old for old in read_manifest() if old["name"] != program.name] + [line])
        print(f"{line['records']} records, {line['streams']} streams, peak {line['live_peak_bytes'] / 2**30:.2f} GiB, "
              f"{line['file_bytes'] / 1e3:.0f} kB, {time.monotonic() - since:.0f} s", flush=True)
    total = sum(path.stat().st_size for path in FOLDER.iterdir())
    print(f"{total / 1e6:.2f} MB in {FOLDER}")
    if total >= MOST_BYTES:
        print(f"record.py: more than {MOST_BYTES / 1e6:.0f} MB: take fewer steps (TABLE)", file=sys.stderr)
    return int(total >= MOST_BYTES)


def main() -> int:
    parser = argparse.ArgumentParser(description="records traces of the programs of examples/torch, on the simulated GPU")
    parser.add_argument("names", metavar="NAME", nargs="*", help="of " + ", ".join(program.name for program in TABLE) + "; all by default")
    names = parser.parse_args().names
    unknown = [name for name in names if name not in [program.name for program in TABLE]]
    if unknown:
        parser.error(f"no program {unknown[0]!r}; there are " + ", ".join(program.name for program in TABLE))
    try:
        return record_all([program for program in TABLE if not names or program.name in names])
    except (Failed, places.NotBuilt, trace_file.BrokenTrace) as problem:
        print(f"\nrecord.py: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
