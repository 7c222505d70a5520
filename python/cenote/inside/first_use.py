"""The first use of cenote on a card: does the card do what cenote relies on?

When cenote becomes PyTorch's allocator, it looks into the user's cache folder for a verdict on this machine's cards and driver. If there is none,
it runs `cenote-qualify --first-use`, a process of its own that tries the experiments without which cenote cannot start, and remembers the verdict.
That happens once for a driver and its cards. If the card does not read what was written, it gets a fallback: CENOTE_CONF says aliases:off or
provider:plain in this process and in those that it starts, and a line on stderr says so.

A look never ends the program, and never makes it wait for long: a step that hangs ends after ten seconds, and processes that start at the same time
share one try, also one that fails. Only a verdict is remembered; a failure (no memory, a card that another process uses exclusively) is not.

Not looked at: a machine whose CENOTE_CONF names provider or aliases, because the user has decided; and a simulated GPU without quirks. Programs in
C are not looked at either: libcenote starts no processes. They can run `cenote qualify`.
"""
import ctypes
import glob
import json
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional

from cenote import places
from cenote.base import outputs, trusted
from cenote.base.trusted import Folder
from cenote.launch import environment
from cenote.native import adapter

CONF = "CENOTE_CONF"
SECONDS = 60  # limit for the experiments on one card, and for another process that tries it
FALLBACKS = ("", "aliases:off", "provider:plain")  # what cenote-qualify may answer, the least change first
TRIED = (0, 3, 4)  # its exit statuses with a verdict
NO_DEVICE = ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_OPERATING_SYSTEM")  # in its message: no card, or a container that was started without it
NO_SUCH_DEVICE = "CUDA_ERROR_INVALID_DEVICE"
FOLDER = "cards"


class NoCard(Exception):
    """The driver or a device is missing, so PyTorch will use no GPU."""


class Verdict(NamedTuple):
    conf: str  # one of FALLBACKS
    text: str  # the card and what it lacks


def look(tell: Callable[[str], None]) -> None:
    """Sets CENOTE_CONF if the card needs it, and tells so. A look that fails changes nothing."""
    if not is_wanted(os.environ):
        return
    try:
        verdict = remembered_or_tried(key())
    except NoCard:
        return
    except Exception as why:  # whatever it is: the program could run without this look
        tell(f"cenote: this card could not be tried at its first use, and is taken to work: {' '.join(str(why).split())[:300]}. "
             "`cenote qualify` tries it")
        return
    if verdict.conf:
        os.environ[CONF] = ",".join(filter(None, [os.environ.get(CONF), verdict.conf]))
        tell(f"cenote: {verdict.text}, so {CONF} says {verdict.conf} from here on. `cenote qualify` says more")


def is_wanted(variables: Mapping[str, str]) -> bool:
    decided = {name for name, _ in environment.split_settings(variables.get(CONF, ""))} & {"provider", "aliases"}
    simulated = variables.get(environment.SIM, "")
    return not decided and (not simulated or "quirks:" in simulated)


# --- which cards

def models() -> list[str]:
    """The model of each card, as the kernel's driver names it. Empty where it does not: under WSL, on Jetson."""
    found = []
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        with open(path, encoding="utf-8", errors="replace") as file:
            found += [line.partition(":")[2].strip() for line in file if line.startswith("Model:")]
    return found


def driver() -> str:
    """What stands for the driver: the version of the kernel's part, and the file of libcuda.so.1, which a container may bring along."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoCard from None
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        path = next((line.split(maxsplit=5)[5].strip() for line in maps if "/libcuda.so." in line), "")
    status = os.stat(path) if os.path.exists(path) else None
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            version = file.readline().strip()
    except OSError:
        version = ""  # under WSL, on Jetson
    return f"{version} {path} {status and (status.st_size, status.st_mtime_ns)} {os.environ.get('CENOTE_DRIVER', '')}"


def key() -> str:
    """The name of the file that remembers the verdict: a digest of all that the verdict depends on."""
    simulated = os.environ.get(environment.SIM, "")
    machine = simulated.partition("quirks:")[2].partition(",")[0] if simulated else driver()
    cards = models()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if len(set(cards)) > 1 else ""
    program = adapter.read(places.qualify_program())
    return adapter.digest(machine.encode(), "\n".join(cards).encode(), visible.encode(), program) + ".json"


# --- the verdict

def remembered_or_tried(name: str) -> Verdict:
    """One process at a time tries a card. Others wait for it, and take its verdict, or its failure."""
    came = time.time()
    try:
        folder = trusted.own_folder(os.path.join(places.cache_folder(), FOLDER))
    except OSError:
        return tried()  # no cache that other users cannot change: at each start
    try:
        verdict = remembered(folder, name)
        if verdict is None:
            with adapter.locked(folder, SECONDS):
                verdict = remembered(folder, name) or try_and_remember(folder, name, came)
        return verdict
    finally:
        folder.close()


def try_and_remember(folder: Folder, name: str, came: float) -> Verdict:
    failure = name + ".failed"
    said = adapter.failed_since(folder, failure, came)
    if said is not None:
        raise NoCard if not said else ValueError(said)
    try:
        return remember(folder, name, tried())
    except Exception as why:
        with suppress(OSError), outputs.replacing(folder.descriptor, failure, 0o600) as file:
            file.write(b"" if isinstance(why, NoCard) else str(why).encode())
        raise


def remembered(folder: Folder, name: str) -> Optional[Verdict]:
    try:
        with os.fdopen(trusted.open_file(folder, name), encoding="utf-8") as file:
            verdict = Verdict(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
    return verdict if verdict.conf in FALLBACKS and isinstance(verdict.text, str) else None


def remember(folder: Folder, name: str, verdict: Verdict) -> Verdict:
    with suppress(OSError), outputs.replacing(folder.descriptor, name, 0o600) as file:  # a full disk: the next start tries again
        file.write(json.dumps(verdict._asdict()).encode())
    return verdict


def tried() -> Verdict:
    """The verdict that asks for the largest change. Cards of one model are tried once."""
    ordinals = range(len(models())) if len(set(models())) > 1 else range(1)
    return max(verdicts(ordinals), key=lambda verdict: FALLBACKS.index(verdict.conf))


def verdicts(ordinals: range) -> Iterator[Verdict]:
    for ordinal in ordinals:
        found = experiment(ordinal)
        if found is None:
            return  # CUDA_VISIBLE_DEVICES hides it
        lacks = ", ".join(dict.fromkeys(text.partition(" (")[0] for text in found["without"]))
        yield Verdict(found["conf"], f"{found['card']} works only without {lacks}" if lacks else found["card"])


def experiment(ordinal: int) -> Optional[dict[str, Any]]:
    """What cenote-qualify found; None: there is no such device."""
    variables = {name: value for name, value in os.environ.items() if name != CONF}
    if variables.get(environment.SIM):
        variables[environment.SIM] += ",quiet:1"  # some experiments break rules on purpose
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        command = [places.qualify_program(), "--first-use", "--device", str(ordinal), "--json", f"/dev/fd/{file.fileno()}"]
        done = subprocess.run(command, env=variables, pass_fds=[file.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, errors="replace", timeout=SECONDS)
        if done.returncode in TRIED:
            found: dict[str, Any] = json.load(file)
            if found["conf"] not in FALLBACKS:
                raise ValueError(f"cenote-qualify asks for {found['conf'][:40]!r}")
            return found
    if ordinal and NO_SUCH_DEVICE in done.stderr:
        return None
    if any(name in done.stderr for name in NO_DEVICE):
        raise NoCard
    raise ValueError(done.stderr.strip() or f"cenote-qualify ended with status {done.returncode}")
