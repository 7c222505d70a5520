"""Starts a few ranks of a large job, in place of torchrun: python.of_ours starts it with WORLD NODE REAL FOLDER COMMAND...

Each real rank is a process with the variables that torchrun would give it, on the simulated machine of its node; the others are phantoms
(phantoms/entry.py). The lowest real rank has our standard streams; what another one printed last is shown if that rank fails.

If a real rank finds that it needs what only one phantom can say (the stage before it in a pipeline; rank 0's objects), it leaves a file in FOLDER,
the folder of the dry run, and ends. Then all ranks begin again, that one among them. So they do once if a rank fails after it got from phantoms what
is not known. Before that, all that the ranks have started is gone, and the store that they shared is another file: a rank of the time before that
wrote into the new one, or read it, made all wait for ever.

    all started -> the first fails: the others are ended -> a rank is needed: again, with that rank
                `-> all end
"""
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterator, Mapping, NamedTuple, NoReturn, Sequence

from cenote.base import outputs
from cenote.launch import environment, processes, python

REAL_MAX = 64  # ranks with a process, also after some were added
POLL = 0.05  # s
GRACE = 5  # s that a rank has to end after SIGTERM
TAIL = 2000  # bytes


class Job(NamedTuple):
    size: int
    node: int  # ranks of a node
    real: tuple[int, ...]  # rising

    @property
    def is_whole(self) -> bool:
        return len(self.real) == self.size


class Process(NamedTuple):
    rank: int
    child: "subprocess.Popen[bytes]"
    output: Any  # the file that has what it prints; None: it prints to our standard streams


def variables(job: Job, rank: int, store: str, old: Mapping[str, str]) -> dict[str, str]:
    """What torchrun sets for a rank, and where the rank finds the other real ones. Each node is a simulated machine of its own."""
    node, nodes = rank // job.node, str(job.size // job.node)
    new = {**old, "RANK": str(rank), "LOCAL_RANK": str(rank % job.node), "WORLD_SIZE": str(job.size), "LOCAL_WORLD_SIZE": str(job.node),
           "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": nodes, "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(job.size), "ROLE_NAME": "default",
           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
           "TORCHELASTIC_MAX_RESTARTS": "0", environment.PHANTOMS: ",".join(map(str, job.real)), environment.PHANTOMS_STORE: store}
    new.setdefault("OMP_NUM_THREADS", "1")
    items = [f"{item}-{node}" if item.startswith("machine:") else item for item in old.get(environment.SIM, "").split(",")]
    new[environment.SIM] = ",".join(items)
    return new


def start(job: Job, store: str, command: Sequence[str]) -> list[Process]:
    started = []
    for rank in job.real:
        is_first = rank == job.real[0]
        output = None if is_first else tempfile.TemporaryFile()
        child = subprocess.Popen(list(command), env=variables(job, rank, store, os.environ), stdin=None if is_first else subprocess.DEVNULL,
                                 stdout=output, stderr=output)
        started.append(Process(rank, child, output))
    return started


def end(started: Sequence[Process], how: int, folder: str) -> None:
    """Also what the ranks have started: a rank may be a shell script that has started Python."""
    for one in started:
        if processes.poll(one.child) is None:
            one.child.send_signal(how)
    last = time.monotonic() + GRACE
    while any(processes.poll(one.child) is None for one in started) and time.monotonic() < last:
        time.sleep(POLL)
    processes.end(folder, [one.child.pid for one in started if processes.poll(one.child) is None])
    for one in started:
        one.child.wait()


def attend(started: Sequence[Process], folder: str) -> list[Process]:
    """Waits until all ranks have ended, or one has failed; then ends the others. Returns those that failed by themselves."""
    running = list(started)
    while True:
        for one in [one for one in running if processes.poll(one.child) is not None]:
            running.remove(one)
            outputs.write(os.path.join(folder, f"{one.rank}{environment.ENDED}"), b"")
        failed = [one for one in started if processes.poll(one.child) not in (None, 0)]
        if failed or not running:
            end(started, signal.SIGTERM, folder)
            return failed
        time.sleep(POLL)


# --- what the folder of the dry run says

def needed(folder: str, real: Sequence[int], ending: str) -> tuple[int, ...]:
    named = (name.partition(".")[0] for name in os.listdir(folder) if name.endswith(ending))
    return tuple(sorted({int(rank) for rank in named} - set(real)))


def clear(folder: str) -> None:
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))


def reports(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in os.listdir(folder):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                yield os.path.join(folder, name), json.load(file)


def report_silent(one: Process, folder: str) -> None:
    """A rank that was killed, or that ended by os._exit, has reported no error: then its exit status is the error."""
    own = [(path, report) for path, report in reports(folder) if report["rank"] == str(one.rank)]
    if any(report["error"] is not None or report["failures"] for _, report in own):
        return
    status = one.child.returncode
    nothing: dict[str, Any] = {"pid": one.child.pid, "rank": str(one.rank), "ranks": None, "end": "", "steps": 0, "used_gpu": False, "devices": {},
                               "failures": [], "failures_count": 0, "error": None, "values": None}
    path, content = own[0] if own else (os.path.join(folder, f"{one.child.pid}.json"), nothing)
    name = f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"exit status {status}"
    content["error"] = {"type": name, "text": "", "is_out_of_memory": False, "stack": []}
    outputs.write(path, json.dumps(content).encode())


def show_tail(one: Process) -> None:
    if one.output is not None:
        one.output.seek(max(one.output.seek(0, os.SEEK_END) - TAIL, 0))
        sys.stderr.write(f"rank {one.rank} printed last:\n{one.output.read().decode(errors='replace')}")


def play(job: Job, folder: str, command: Sequence[str]) -> int:
    added: tuple[int, ...] = ()
    has_guessed = False
    for number in itertools.count(1):
        started = start(job, os.path.join(folder, f"store-{number}"), command)
        try:
            failed = attend(started, folder)
        except BaseException:
            end(started, signal.SIGINT, folder)
            raise
        added = needed(folder, job.real, environment.NEEDED) if failed else ()
        why = "a rank needs what only rank {} can say"
        if failed and not added and not has_guessed:
            added, has_guessed = needed(folder, job.real, environment.UNHEARD), True
            why = "a rank failed, and what rank {} sent it before was not known"
        if not added or len(job.real) + len(added) > REAL_MAX:
            break
        names = ", ".join(map(str, added))
        print(f"cenote dry-run: {why.format(names)}; again with rank {names} real, too", file=sys.stderr, flush=True)
        clear(folder)
        job = job._replace(real=tuple(sorted({*job.real, *added})))
    for one in failed:
        report_silent(one, folder)
        show_tail(one)
    return next((one.child.returncode & 0xff for one in failed), 0)


def line(job: Job, folder: str, command: Sequence[str]) -> list[str]:
    """The command that runs this module for a job."""
    return python.of_ours("cenote.launch.ranks", str(job.size), str(job.node), ",".join(map(str, job.real)), folder, *command)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: leave(128 + signal.SIGTERM))
    size, node, real, folder, *command = sys.argv[1:]
    try:
        return play(Job(int(size), int(node), tuple(map(int, real.split(",")))), folder, command)
    except OSError as error:
        print(f"cenote dry-run: {command[0]!r}: {error.strerror or error}", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def leave(status: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(status)
