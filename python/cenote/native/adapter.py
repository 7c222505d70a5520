"""The adapter: cenote as a subclass of PyTorch's allocator, compiled for the torch that is installed.

PyTorch's interface changes with its versions. So the package brings the adapter's sources, and the machine's own compiler compiles them, once, in
some seconds. The library is kept in the user's cache folder, in a folder named after all it was made from but the compiler; its file name stands
for the compiler. A machine without a compiler uses a library that is there. A released wheel brings the library for some versions of PyTorch,
compiled ahead (tools/wheel/build.py), in a folder of the same name; then neither compiler nor cache is asked. Only files that no other user can have
changed are loaded (base/trusted.py).

In the same way `cenote dry-run` gets the library that keeps values (plugins/values), and labels get the one that names blocks (plugins/names): other
Rooms of sources.
"""
import ctypes
import fcntl
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Callable, Iterator, NamedTuple, Optional, Sequence

from cenote import places
from cenote.base import outputs, trusted
from cenote.base.trusted import Folder
from cenote.torch import seams

SECONDS = 300  # limit for the compiler, and for waiting until another process has compiled
PAUSE = 0.02  # s, between two looks whether that process is done
FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
MACHINE = platform.machine()  # tools/wheel/build.py compiles for another, too
PACKAGES = "nvidia-cuda-runtime and nvidia-cuda-crt"


class NotMade(RuntimeError):
    """There is no adapter for this torch; the text says what is missing, in one paragraph."""


class Torch(NamedTuple):
    """The properties of the installed torch that the adapter depends on."""

    version: str
    commit: str
    cuda: str
    has_new_abi: bool
    folder: str


class Compiler(NamedTuple):
    command: tuple[str, ...]
    says: str  # its name and version


class Room(NamedTuple):
    """A folder of sources that become one library."""

    name: str  # of the folder in plugins/; it begins the name of the library's folder in the cache, too
    uses_cenote: bool  # the library calls libcenote


ADAPTER, VALUES, NAMES = Room("torch", True), Room("values", False), Room("names", False)


active: Optional[ctypes.CDLL] = None  # the adapter that is PyTorch's allocator in this process


class Library(NamedTuple):
    """A compiled adapter. `load` loads the open file, because the path may name another file by then."""

    path: str
    descriptor: int


def describe(torch: ModuleType) -> Torch:
    if not torch.version.cuda:
        raise NotMade(f"torch {torch.__version__} is built without CUDA")
    folder = os.path.dirname(os.path.abspath(str(torch.__file__)))
    abi = seams.find("torch._C._GLIBCXX_USE_CXX11_ABI")
    return Torch(torch.__version__, torch.version.git_version, torch.version.cuda, abi is not False, folder)


def compiler() -> Optional[Compiler]:
    """$CXX, or g++; None if it does not run."""
    command = tuple(shlex.split(os.environ.get("CXX") or "g++"))
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return Compiler(command, said.partition("\n")[0])


def sources(room: Room = ADAPTER) -> list[str]:
    """Every file that the library is compiled from, with headers."""
    ours = places.plugin_folder(room.name)
    public = [os.path.join(places.include_folder(), "cenote")] if room.uses_cenote else []
    return sorted(os.path.join(folder, name) for folder in (ours, *public) for name in os.listdir(folder) if name.endswith((".cpp", ".h", ".def")))


# --- the headers of CUDA's runtime

def cuda_places(site_folders: Sequence[str]) -> Iterator[str]:
    """Folders that may have cuda_runtime_api.h: those that the user names, of packages beside torch, of the toolkit, of the system."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield os.path.join(os.environ[variable], "include")
    for site in site_folders:
        nvidia = os.path.join(site, "nvidia")
        for name in sorted(os.listdir(nvidia)) if os.path.isdir(nvidia) else []:
            yield os.path.join(nvidia, name, "include")
    yield "/usr/local/cuda/include"
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include")
    yield "/usr/include"


def has_cuda_headers(folder: str) -> bool:
    """NVIDIA has crt/ in another package than the rest; the adapter needs both."""
    return all(os.path.exists(os.path.join(folder, *name.split("/"))) for name in ("cuda_runtime_api.h", "crt/host_defines.h"))


def cuda_include(torch: Torch) -> str:
    sites = [os.path.dirname(torch.folder), sysconfig.get_path("purelib"), *sys.path]
    found = next((folder for folder in cuda_places(sites) if has_cuda_headers(folder)), None)
    if found is None:
        major = torch.cuda.partition(".")[0]
        raise NotMade("the headers of CUDA's runtime (cuda_runtime_api.h, crt/host_defines.h) are not on this machine. "
                      f"Install the packages {PACKAGES} "
                      f"(pip install 'nvidia-cuda-runtime=={major}.*' 'nvidia-cuda-crt=={major}.*'), or the CUDA Toolkit and set CUDA_HOME")
    return found


# --- the cache

def digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:16]


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def entry_name(torch: Torch, room: Room = ADAPTER) -> str:
    """The name of the folder in the cache: a digest of everything that the adapter is made from but the compiler."""
    files = [part for path in [*sources(room), __file__] for part in (os.path.basename(path).encode(), read(path))]
    facts = [repr(torch._replace(folder="")).encode(), places.version().encode(), " ".join(FLAGS).encode(), MACHINE.encode()]
    return f"{room.name}-{re.sub('[^A-Za-z0-9.+]', '_', torch.version)}-{digest(*facts, *files)}"


def own_folder(name: str, tell: Callable[[str], None]) -> Folder:
    """A folder for the library that no other user can change: in the cache or, if the cache cannot be used, one that is removed at exit."""
    try:
        return trusted.own_folder(os.path.join(places.cache_folder(), name))
    except OSError as why:
        tell(f"cenote: the adapter is compiled at each start, because the cache cannot be used: {why}. XDG_CACHE_HOME names another folder for it")
    import atexit
    path = tempfile.mkdtemp(prefix="cenote-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return trusted.made_by_us(path)


def given_library(name: str) -> Optional[Library]:
    """A library in a cache that this process may only read, as that of an image. Whichever compiler made it: no other can be kept there."""
    try:
        folder = trusted.given_folder(os.path.join(places.cache_folder(), name))
    except OSError:
        return None
    try:
        return any_library(folder)
    except OSError:  # it may be entered and not read
        return None
    finally:
        folder.close()


def opened_library(folder: Folder, name: str) -> Optional[Library]:
    """None if it is missing, or another user could have written it."""
    try:
        return Library(os.path.join(folder.path, name), trusted.open_file(folder, name))
    except OSError:
        return None


def any_library(folder: Folder) -> Optional[Library]:
    names = [name for name in sorted(os.listdir(folder.place())) if name.endswith(".so")]
    return next(filter(None, (opened_library(folder, name) for name in names)), None)


@contextmanager
def locked(folder: Folder, seconds: float) -> Iterator[None]:
    """One process at a time. A process that was stopped holds up no other for longer than `seconds`; then, and where files cannot be locked, several
    may be inside at once: the file that comes last is kept."""
    until = time.monotonic() + seconds
    file = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder.descriptor)
    try:
        while not take(file) and time.monotonic() < until:
            time.sleep(PAUSE)
        yield
    finally:
        os.close(file)


def take(file: int) -> bool:
    """False: another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


# --- making it

def run(command: Sequence[str], folder: Folder) -> None:
    """Runs the compiler in `folder`, with its temporary files there, too. If it fails: NotMade with the first errors."""
    variables = {**os.environ, "TMPDIR": "."}
    child = subprocess.Popen(list(command), cwd=folder.place(), env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True)
    try:
        said, _ = child.communicate(timeout=SECONDS)
    except BaseException as why:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # g++ has processes of its own, which would go on for minutes
        child.communicate()
        if isinstance(why, subprocess.TimeoutExpired):
            raise NotMade(f"{command[0]} did not end within {SECONDS} s") from None
        raise
    if child.returncode:
        lines = said.decode(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line] or lines[-3:] or [f"exit status {child.returncode}"]
        raise NotMade(f"{command[0]} failed: " + "; ".join(line.strip() for line in errors[:3]))


def compile_into(folder: Folder, name: str, torch: Torch, tool: Compiler, room: Room) -> None:
    """Writes the library whole or not at all. All sources are one unit: most of the time goes to PyTorch's headers, read once this way."""
    ours = places.plugin_folder(room.name)
    torch_include, torch_lib = os.path.join(torch.folder, "include"), os.path.join(torch.folder, "lib")
    includes = [f"-I{ours}", f"-I{places.include_folder()}", *(f"-isystem{folder}" for folder in (torch_include, cuda_include(torch)))]
    # In messages and in the library files have their names in the repository, not paths of this machine.
    names = {ours: f"plugins/{room.name}", torch_include: "torch/include"}
    flags = [*FLAGS, *(f"-ffile-prefix-map={folder}={name}" for folder, name in names.items()), f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.has_new_abi)}"]
    with trusted.passing_folder(folder, "part-") as part:
        with os.fdopen(outputs.create(part.descriptor, "all.cpp", 0o600), "w", encoding="utf-8") as file:
            file.writelines(f'#include "{source}"\n' for source in sorted(os.listdir(ours)) if source.endswith(".cpp"))
        # When the adapter is loaded, libcenote and PyTorch are in the process and found by their sonames: it needs no path to them.
        libraries = [*([places.library()] if room.uses_cenote else []), f"-L{torch_lib}", "-ltorch_cuda", "-lc10_cuda", "-lc10", "-ltorch_cpu"]
        run([*tool.command, *flags, *includes, "-shared", "all.cpp", *libraries, "-o", "adapter.so"], part)
        os.chmod("adapter.so", 0o700, dir_fd=part.descriptor)  # whatever umask says
        os.rename("adapter.so", name, src_dir_fd=part.descriptor, dst_dir_fd=folder.descriptor)


def make(torch: Torch) -> str:
    """The path of the adapter for this torch, compiled now if it is missing. Raises NotMade. For messages: load what `opened` returns."""
    library = opened(torch)
    os.close(library.descriptor)
    return library.path


def opened(torch: Torch, tell: Callable[[str], None] = lambda text: None, room: Room = ADAPTER, may_be_given: bool = True) -> Library:
    """The same, open. If the library cannot be kept, `tell` gets a line that says why. `may_be_given`: one of the wheel serves, or of a cache that is
    only read."""
    ready = compiled_ahead(torch, room) if may_be_given else None
    if ready:
        return ready
    tool = compiler()
    name = entry_name(torch, room)
    why: list[str] = []
    folder = own_folder(name, why.append)
    try:
        given = given_library(name) if why and may_be_given else None
        if given is not None:
            return given
        for line in why:
            tell(line)
        return in_folder(folder, torch, tool, room)
    finally:
        folder.close()


def compiled_ahead(torch: Torch, room: Room) -> Optional[Library]:
    """The library that the wheel has for this torch. None: it has none, or another user could have written it."""
    try:
        folder = trusted.folder(os.path.join(places.plugin_folder(room.name), "ready", entry_name(torch, room)))
    except OSError:
        return None
    try:
        return any_library(folder)
    finally:
        folder.close()


def in_folder(folder: Folder, torch: Torch, tool: Optional[Compiler], room: Room) -> Library:
    if tool is None:
        found = any_library(folder)
        if found:
            return found
        wanted = os.environ.get("CXX")
        cure = f"CXX={wanted} does not run" if wanted else "install g++, or name one in CXX"
        raise NotMade(f"there is no C++ compiler: {cure}")
    name = digest(tool.says.encode()) + ".so"
    came = time.time()
    library = opened_library(folder, name) or made_alone(folder, name, torch, tool, came, room)
    if library is None:
        raise NotMade(f"the compiled adapter is missing in {folder.path}, or other users may write to it: empty that folder, and start again")
    return library


def made_alone(folder: Folder, name: str, torch: Torch, tool: Compiler, came: float, room: Room) -> Optional[Library]:
    """Compiles it while no other process does. A process that waited for another takes that one's library, or its failure."""
    failure = name + ".failed"
    with locked(folder, SECONDS):
        library = opened_library(folder, name)
        if library is not None:
            return library
        said = failed_since(folder, failure, came)
        if said is not None:
            raise NotMade(said)
        try:
            compile_into(folder, name, torch, tool, room)
        except NotMade as why:
            with outputs.replacing(folder.descriptor, failure, 0o600) as file:
                file.write(str(why).encode())
            raise
        return opened_library(folder, name)


def failed_since(folder: Folder, name: str, came: float) -> Optional[str]:
    try:
        with os.fdopen(trusted.open_file(folder, name), encoding="utf-8", errors="replace") as file:
            return file.read() if os.fstat(file.fileno()).st_mtime >= came else None
    except OSError:
        return None


def loaded(torch: Torch, tell: Callable[[str], None], room: Room = ADAPTER) -> tuple[str, ctypes.CDLL]:
    """The path of the library, and the library. One that does not load, as one that a full disk has cut off, is made once more: in the cache, also if
    it came with the wheel, or in a cache that is only read."""
    library = opened(torch, tell, room)
    try:
        return library.path, load(library)
    except OSError as why:
        os.close(library.descriptor)
        remove(library.path, entry_name(torch, room))
        tell(f"cenote: {library.path} cannot be loaded, and another one is compiled: {why}")
    library = opened(torch, tell, room, may_be_given=False)
    try:
        return library.path, load(library)
    except OSError as why:
        os.close(library.descriptor)
        raise NotMade(f"the compiled adapter cannot be loaded: {why}") from None


def remove(path: str, name: str) -> None:
    """Leaves alone what is not in the cache, and a cache that is only read."""
    with suppress(OSError):
        folder = trusted.own_folder(os.path.join(places.cache_folder(), name))
        try:
            if folder.path == os.path.dirname(path):
                os.unlink(os.path.basename(path), dir_fd=folder.descriptor)
        finally:
            folder.close()


def load(library: Library) -> ctypes.CDLL:
    """Loads it by its descriptor, which stays open: debuggers and tools that print stacks look the library up by this name."""
    return ctypes.CDLL(f"/proc/{os.getpid()}/fd/{library.descriptor}")
