"""`cenote run`: sets the environment and becomes the program by exec, so that exit status, signals, terminal and standard streams are the program's
own."""
import os
import shutil
import signal
import sys
from typing import NoReturn, Sequence

from cenote import places
from cenote.base.mistake import Mistake
from cenote.launch import environment, python
from cenote.launch.environment import Wish
from cenote.places import NotBuilt, simulation_folder

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # the exit statuses of a shell


def found(name: str) -> str:
    """torchrun or accelerate of an environment that was not activated: PATH lacks them, and they lie beside this Python."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    return beside if os.sep not in name and shutil.which(name, os.F_OK) is None and shutil.which(beside) else name


def command_line(program: Sequence[str]) -> list[str]:
    """What to execute for `SCRIPT ...`, `-m MODULE ...`, `-c CODE ...` or `-- PROGRAM ...`."""
    if not program:
        raise Mistake("no program; `cenote run --help` shows how to name one")
    if program[0] == "--":
        if len(program) < 2 or not program[1]:
            raise Mistake("no program after --")
        return [found(program[1]), *program[2:]]
    if program[0] in ("-m", "-c") and len(program) < 2:
        raise Mistake(f"no {'module after -m' if program[0] == '-m' else 'code after -c'}")
    if program[0] not in ("-m", "-c", "-") and not os.path.exists(program[0]):
        raise Mistake(f"there is no file {program[0]!r}; a program that is not a Python script goes after --")
    return python.of_user(program)


def preload_library() -> str:
    path = os.path.join(simulation_folder(), "libcenote_sim.so")
    if not os.path.exists(path):
        raise NotBuilt(f"{path} is not there. To build the simulated libraries takes the headers of CUDA 13 or newer: pip install "
                       "nvidia-cuda-runtime, then `make build`")
    return path


def serving_library() -> str:
    """The path of libcenote_preload.so, without characters that LD_PRELOAD splits at."""
    name = "libcenote_preload.so"
    path = places.find(f"lib/{name}", os.path.join(places.build_folder(), name))
    return os.path.join(places.plain(os.path.dirname(path)), name)


def restore_signals() -> None:
    """Python ignores these signals, and exec would keep that for the program."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def prepare_plugin(is_ours: bool, variables: dict[str, str]) -> None:
    """Checks that CENOTE=on has an effect: a Python reads it only if cenote.pth is installed there."""
    if not places.switch_is_installed(sys.path):
        if is_ours:
            raise Mistake(f"CENOTE=on has no effect in {sys.executable}, where cenote is not installed; use the `cenote` beside a Python "
                          "that has it: `pip install .`, or `make run` for .venv")
        print(f"cenote run: cenote is not installed in {sys.executable}; if the program uses another Python, install cenote there, or call "
              "cenote.install() in the program", file=sys.stderr)
    if not places.is_installed():
        variables["CENOTE_BUILD"] = places.build_folder()


def is_in_path(name: str, variables: dict[str, str]) -> bool:
    """Is a file of that name there, executable or not? A folder of PATH that the user may not read says "Permission denied" to each search."""
    return os.sep in name or shutil.which(name, os.F_OK, variables.get("PATH")) is not None


def become(command: Sequence[str], variables: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    restore_signals()
    try:
        os.execvpe(command[0], list(command), variables)
    except ValueError:
        status, why = NOT_FOUND, "a name or an argument has a NUL in it"
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError) or not is_in_path(command[0], variables)
        status, why = (NOT_FOUND, "there is no such program in PATH") if is_missing else (NOT_EXECUTABLE, os.strerror(error.errno or 0))
    print(f"cenote run: {command[0]!r}: {why}", file=sys.stderr)
    sys.exit(status)


def run(wish: Wish, program: Sequence[str]) -> NoReturn:
    command = command_line(program)
    preload = None
    if environment.is_simulated(wish, os.environ):
        preload = preload_library()
        wish = wish._replace(prices=environment.prices(wish.prices, preload))
        if wish.quirks is not None:
            from cenote.simulated import quirks
            quirks.check(wish.quirks)
    elif wish.devices is not None or wish.lag is not None or wish.quirks is not None or wish.prices is not None:
        raise Mistake("--devices, --lag, --quirk and --prices are for the simulated GPU; add --sim SIZE")
    variables = environment.prepare(wish, os.environ, preload)
    if wish.allocator == "cenote":
        prepare_plugin(program[0] != "--", variables)
    elif (wish.figures or wish.report) and program[0] != "--" and not places.switch_is_installed(sys.path):
        option = "--json" if wish.figures is not None else "--report"
        raise Mistake(f"{option} has no effect in {sys.executable}, where cenote is not installed: `pip install .`, or `make run` for .venv")
    if preload is not None:
        from cenote.simulated import demands
        demands.warn(os.path.dirname(preload))
    become(command, variables)
