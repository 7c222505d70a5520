"""The adapter: cenote as a subclass of PyTorch's allocator, compiled for the torch that is installed.

PyTorch's interface changes with its versions, so the sources come with the package and are compiled where they are used, with the machine's own
compiler: some seconds, once. The result is kept in the user's cache folder, in a folder for everything it was made from but the compiler, under the
compiler's name and version. A machine without a compiler takes what another compiler left there.
"""
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager
from types import ModuleType
from typing import Iterator, NamedTuple, Optional, Sequence

from cenote import places

SECONDS = 300  # a compiler that takes longer is taken for stuck
FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
PACKAGES = "nvidia-cuda-runtime and nvidia-cuda-crt"


class NotMade(RuntimeError):
    """There is no adapter for this torch; the text says what is missing, in one paragraph."""


class Torch(NamedTuple):
    """What of the installed torch the adapter depends on."""

    version: str
    commit: str
    cuda: str
    has_new_abi: bool
    folder: str


class Compiler(NamedTuple):
    command: tuple[str, ...]
    says: str  # its name and version


def describe(torch: ModuleType) -> Torch:
    if not torch.version.cuda:
        raise NotMade(f"torch {torch.__version__} is built without CUDA")
    folder = os.path.dirname(os.path.abspath(str(torch.__file__)))
    return Torch(torch.__version__, torch.version.git_version, torch.version.cuda, bool(torch._C._GLIBCXX_USE_CXX11_ABI), folder)


def compiler() -> Optional[Compiler]:
    """$CXX, or g++; None where there is none."""
    command = tuple(shlex.split(os.environ.get("CXX") or "g++"))
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return Compiler(command, said.partition("\n")[0])


def sources() -> list[str]:
    """Every file that is compiled in, headers included."""
    ours = places.torch_folder()
    public = os.path.join(places.include_folder(), "cenote")
    return sorted(os.path.join(folder, name) for folder in (ours, public) for name in os.listdir(folder) if name.endswith((".cpp", ".h", ".def")))


# --- the headers of CUDA's runtime

def cuda_places(site_folders: Sequence[str]) -> Iterator[str]:
    """Folders that may hold cuda_runtime_api.h: what the user names, what came with torch, the toolkit, the system's."""
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
    """crt/ is a package of its own among NVIDIA's: the one without the other cannot be compiled."""
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


def entry_name(torch: Torch) -> str:
    """The folder in the cache for everything but the compiler."""
    files = [part for path in [*sources(), __file__] for part in (os.path.basename(path).encode(), read(path))]
    facts = [repr(torch._replace(folder="")).encode(), places.version().encode(), " ".join(FLAGS).encode()]
    return f"torch-{re.sub('[^A-Za-z0-9.+]', '_', torch.version)}-{digest(*facts, *files)}"


def cache_folder() -> str:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "cenote")


def own_folder(name: str) -> str:
    """A folder that nobody else can write: libraries are loaded from it. Where the cache cannot be, one that lives as long as the process."""
    folder = os.path.join(cache_folder(), name)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    import atexit
    folder = tempfile.mkdtemp(prefix="cenote-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def any_library(folder: str) -> Optional[str]:
    return next((os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".so")), None)


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """One process at a time. Where files cannot be locked several compile the same thing, and the last one's is kept."""
    with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


# --- making it

def run(command: Sequence[str], folder: str) -> None:
    """NotMade with the compiler's first errors when it fails."""
    try:
        done = subprocess.run(list(command), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise NotMade(f"{command[0]} did not end within {SECONDS} s") from None
    if done.returncode:
        lines = done.stdout.decode(errors="replace").splitlines()
        errors = [line for line in lines if "error" in line] or lines[-3:] or [f"exit status {done.returncode}"]
        raise NotMade(f"{command[0]} failed: " + "; ".join(line.strip() for line in errors[:3]))


def compile_into(target: str, torch: Torch, tool: Compiler) -> None:
    """Whole or not at all. All sources at once: PyTorch's headers take far longer to read than they do."""
    ours, library = places.torch_folder(), places.library()
    torch_include, torch_lib = os.path.join(torch.folder, "include"), os.path.join(torch.folder, "lib")
    includes = [f"-I{ours}", f"-I{places.include_folder()}", *(f"-isystem{folder}" for folder in (torch_include, cuda_include(torch)))]
    # In messages and in the library a file has the name that it has in the repository, not one of this machine's.
    names = {ours: "plugins/torch", torch_include: "torch/include"}
    flags = [*FLAGS, *(f"-ffile-prefix-map={folder}={name}" for folder, name in names.items()), f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.has_new_abi)}"]
    part = tempfile.mkdtemp(prefix="part-", dir=os.path.dirname(target))
    try:
        with open(os.path.join(part, "all.cpp"), "w", encoding="utf-8") as file:
            file.writelines(f'#include "{name}"\n' for name in sorted(os.listdir(ours)) if name.endswith(".cpp"))
        # libcenote and PyTorch are in the process when this is loaded, and found by their sonames: no path to them is kept.
        libraries = [library, f"-L{torch_lib}", "-lc10_cuda", "-lc10", "-ltorch_cpu"]
        run([*tool.command, *flags, *includes, "-shared", "all.cpp", *libraries, "-o", "adapter.so"], part)
        os.replace(os.path.join(part, "adapter.so"), target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def make(torch: Torch) -> str:
    """The path of the adapter for this torch, made now unless it was before. Raises NotMade."""
    tool = compiler()
    folder = own_folder(entry_name(torch))
    if tool is None:
        found = any_library(folder)
        if found:
            return found
        wanted = os.environ.get("CXX")
        cure = f"CXX={wanted} does not run" if wanted else "install g++, or name one in CXX"
        raise NotMade(f"there is no C++ compiler: {cure}")
    target = os.path.join(folder, digest(tool.says.encode()) + ".so")
    if os.path.exists(target):
        return target
    came = time.time()
    with locked(folder):
        if os.path.exists(target):
            return target
        failure = target + ".failed"
        if os.path.exists(failure) and os.stat(failure).st_mtime >= came:  # while we waited for another rank, which failed
            raise NotMade(read(failure).decode(errors="replace"))
        try:
            compile_into(target, torch, tool)
        except NotMade as why:
            with open(failure, "w", encoding="utf-8") as file:
                file.write(str(why))
            raise
    return target
