"""In a program under Landlock: what its Python code writes goes to the scratch folder, and what it reads comes from there, if it wrote it.

The functions of `os` and `open` are replaced by ones that look a path up first. `upper` in the folder of the run looks like `/`: a file there stands
for the one of before, a mark (a device of number 0) says that it is removed. So processes agree, and changes.py reads it as it reads an overlay.

    nothing in upper -> read: the file of before;  to be changed: is copied to upper, then that one
    mark             -> is not there
    a file or folder -> that one; a folder shows what is in both, without marks

Not seen: what is written by compiled libraries, but for PyTorch's writer and safetensors. Landlock forbids it.
"""
import builtins
import errno
import functools
import importlib
import io
import json
import os
import shutil
import stat
import sys
from contextlib import suppress
from typing import Any, Callable, Iterator, Optional

HOPS_MAX = 40  # links on the way, as the system has it
UNSEEN = ("/dev/", "/proc/", "/sys/")
real: dict[str, Any] = {name: getattr(os, name) for name in (
    "open", "stat", "lstat", "access", "listdir", "scandir", "mkdir", "rmdir", "unlink", "rename", "link", "symlink", "readlink", "chmod", "utime",
    "truncate", "chdir", "getcwd", "fspath", "mknod", "listxattr", "getxattr", "setxattr")}
real_open = io.open
upper = ""
through: tuple[str, ...] = ()


def lies_at(path: str) -> "os.stat_result | None":
    try:
        found: os.stat_result = real["lstat"](path)
        return found
    except OSError:
        return None


def is_mark(path: str) -> bool:
    status = lies_at(path)
    return status is not None and stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def fails(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)


def meant(path: Any, folder: Optional[int] = None, follow: bool = False) -> Optional[str]:
    """The path as the program means it, without links but perhaps the last one. None: it is left alone (a number, or where writes are allowed)."""
    if isinstance(path, int):
        if not stat.S_ISDIR(os.fstat(path).st_mode):
            return None
        text = real["readlink"](f"/proc/self/fd/{path}")
    else:
        start = real["readlink"](f"/proc/self/fd/{folder}") if isinstance(folder, int) else real["getcwd"]()
        text = os.path.join(start, os.fsdecode(path))
    rest, at, hops = text.split("/")[::-1], "/", 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        at = os.path.join(at, name)
        if at == upper:
            at = "/"
        there = at if at.startswith((*UNSEEN, *through)) or not lies_at(upper + at) else upper + at
        status = lies_at(there)
        if status is not None and stat.S_ISLNK(status.st_mode) and (rest or follow) and not at.startswith(UNSEEN):
            hops += 1
            if hops > HOPS_MAX:
                raise fails(errno.ELOOP, path)
            target = real["readlink"](there)
            rest += target.split("/")[::-1]
            at = "/" if target.startswith("/") else os.path.dirname(at)
    return None if f"{at}/".startswith((*UNSEEN, *through)) else at


def as_it_is(path: Any, folder: Optional[int]) -> Any:
    return path if not isinstance(folder, int) else os.path.join(real["readlink"](f"/proc/self/fd/{folder}"), os.fsdecode(path))


def is_hidden(path: str) -> bool:
    """Whether it, or a folder that it is in, is removed."""
    while path != "/":
        if lies_at(upper + path):
            return is_mark(upper + path)
        path = os.path.dirname(path)
    return False


def is_there(name: str) -> bool:
    return not is_hidden(name) and bool(lies_at(upper + name) or lies_at(name))


def to_read(path: Any, folder: Optional[int] = None, follow: bool = True) -> Any:
    name = meant(path, folder, follow)
    if name is None:
        return as_it_is(path, folder)
    if is_hidden(name):
        raise fails(errno.ENOENT, path)
    return upper + name if lies_at(upper + name) else name


def have_folder(name: str, path: Any) -> None:
    """In upper, if there is such a folder."""
    if lies_at(upper + name) and not is_mark(upper + name):
        return
    if not is_there(name):
        raise fails(errno.ENOENT, path)
    have_folder(os.path.dirname(name), path)
    with suppress(FileExistsError):  # another thread or rank has made it by now
        real["mkdir"](upper + name, stat.S_IMODE(real["stat"](name).st_mode) | stat.S_IRWXU)


def to_make(path: Any, folder: Optional[int] = None) -> Any:
    """Where something new comes to lie: its folder is in upper, and nothing is in the way."""
    name = meant(path, folder)
    if name is None:
        return as_it_is(path, folder)
    have_folder(os.path.dirname(name), path)
    if is_there(name):
        raise fails(errno.EEXIST, path)
    if is_mark(upper + name):
        real["unlink"](upper + name)
    return upper + name


def to_change(path: Any, folder: Optional[int] = None, follow: bool = True, copies: bool = True) -> Any:
    """`copies`: what the file has is needed."""
    name = meant(path, folder, follow)
    if name is None:
        return as_it_is(path, folder)
    if not is_there(name):
        return to_make(name)
    have_folder(os.path.dirname(name), path)
    if not lies_at(upper + name):
        take(name, copies)
    return upper + name


def take(name: str, copies: bool = True) -> None:
    """What was there before, to upper."""
    status = real["lstat"](name)
    if stat.S_ISDIR(status.st_mode):
        have_folder(name, name)
        return
    if stat.S_ISLNK(status.st_mode):
        real["symlink"](real["readlink"](name), upper + name)
        return
    with real_open(upper + name, "wb") as to, real_open(name if copies else os.devnull, "rb") as file:
        shutil.copyfileobj(file, to, 1 << 20)
    real["chmod"](upper + name, stat.S_IMODE(status.st_mode) | stat.S_IRUSR)
    real["utime"](upper + name, ns=(status.st_atime_ns, status.st_mtime_ns))


def take_all(name: str) -> None:
    """A folder is about to be renamed."""
    if not lies_at(upper + name):
        take(name)
    if stat.S_ISDIR(real["lstat"](upper + name).st_mode):
        for entry in entries(name):
            take_all(os.path.join(name, entry.name))


def mark(name: str) -> None:
    """It is removed, if it was there before."""
    if lies_at(name):
        real["mknod"](upper + name, stat.S_IFCHR, 0)


def hide_old(name: str) -> None:
    """A folder is new, and one of before has its name."""
    with suppress(OSError):
        for one in real["listdir"](name):
            if not lies_at(upper + os.path.join(name, one)):
                mark(os.path.join(name, one))


def entries(name: str) -> list[Any]:
    """What the program sees in the folder."""
    found = {}
    for folder in (name, upper + name):
        status = lies_at(folder)
        if status is not None and stat.S_ISDIR(status.st_mode):
            with real["scandir"](folder) as listed:
                found.update({entry.name: entry for entry in listed})
    return [entry for entry in found.values() if not is_mark(os.path.join(upper + name, entry.name))]


# --- what stands for the functions of os

def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Optional[int] = None) -> int:
    follow = not flags & os.O_NOFOLLOW
    if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        return int(real["open"](to_read(path, dir_fd, follow), flags, mode))
    if flags & os.O_EXCL:
        return int(real["open"](to_make(path, dir_fd), flags, mode))
    name = meant(path, dir_fd, follow)
    if name is not None and not is_there(name) and not flags & os.O_CREAT:
        raise fails(errno.ENOENT, path)
    status = lies_at(to_read(path, dir_fd)) if name is None or is_there(name) else None
    if status is not None and not stat.S_ISREG(status.st_mode):
        return int(real["open"](to_read(path, dir_fd), flags, mode))
    return int(real["open"](to_change(path, dir_fd, follow, not flags & os.O_TRUNC), flags, mode))


def opener(path: Any, flags: int) -> int:
    return os_open(path, flags, 0o666)


def open_file(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None, closefd: bool = True,
              opener: Any = opener) -> Any:
    return real_open(file, mode, buffering, encoding, errors, newline, closefd, None if isinstance(file, int) else opener or globals()["opener"])


def passed_on(name: str, where: Callable[..., Any]) -> Callable[..., Any]:
    """A function of os that needs no more than another path."""
    inside, follows = real[name], name not in ("lstat", "readlink")

    @functools.wraps(inside)
    def call(path: Any = ".", *args: Any, dir_fd: Optional[int] = None, **more: Any) -> Any:
        if not isinstance(path, int):
            path = where("." if path is None else path, dir_fd, follows and more.get("follow_symlinks", True))
        return inside(path, *args, **more)
    return call


READ, CHANGED = ("stat", "lstat", "readlink", "chdir", "listxattr", "getxattr"), ("chmod", "utime", "truncate", "setxattr")
os_lstat = passed_on("lstat", to_read)


def os_access(path: Any, mode: int, *, dir_fd: Optional[int] = None, effective_ids: bool = False, follow_symlinks: bool = True) -> bool:
    """Landlock refuses what this function of the system would allow; here a write is possible."""
    try:
        return bool(real["access"](to_read(path, dir_fd, follow_symlinks), mode, effective_ids=effective_ids))
    except OSError:
        return False


def os_listdir(path: Any = ".") -> list[Any]:
    return [entry.name for entry in os_scandir(path)]


class Entry:
    """What os.DirEntry is, with the path that the program means."""

    def __init__(self, folder: Any, entry: Any) -> None:
        is_bytes = isinstance(folder, bytes)
        self.name = os.fsencode(entry.name) if is_bytes else os.fsdecode(entry.name)
        self.path = os.path.join(folder, self.name) if not isinstance(folder, int) else self.name
        self.is_dir, self.is_file, self.is_symlink, self.stat, self.inode = entry.is_dir, entry.is_file, entry.is_symlink, entry.stat, entry.inode

    def __fspath__(self) -> Any:
        return self.path


class Listing:
    """What os.scandir returns."""

    def __init__(self, found: list[Entry]) -> None:
        self.found = iter(found)

    def __iter__(self) -> Iterator[Entry]:
        return self.found

    def __next__(self) -> Entry:
        return next(self.found)

    def __enter__(self) -> "Listing":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self.found = iter(())


def os_scandir(path: Any = ".") -> Listing:
    folder = path if isinstance(path, int) else real["fspath"](path)
    name = meant(folder, None, True)
    if name is None:
        with real["scandir"](folder) as listed:
            return Listing([Entry(folder, entry) for entry in listed])
    status = lies_at(to_read(folder))
    if status is None or not stat.S_ISDIR(status.st_mode):
        raise fails(errno.ENOENT if status is None else errno.ENOTDIR, path)
    return Listing([Entry(folder, entry) for entry in entries(name)])


def os_mkdir(path: Any, mode: int = 0o777, *, dir_fd: Optional[int] = None) -> None:
    real["mkdir"](to_make(path, dir_fd), mode)
    name = meant(path, dir_fd)
    if name is not None:
        hide_old(name)


def os_rmdir(path: Any, *, dir_fd: Optional[int] = None) -> None:
    name = meant(path, dir_fd)
    if name is None:
        real["rmdir"](as_it_is(path, dir_fd))
        return
    if not stat.S_ISDIR(os_lstat(name).st_mode):
        raise fails(errno.ENOTDIR, path)
    if entries(name):
        raise fails(errno.ENOTEMPTY, path)
    have_folder(name, path)
    clear(upper + name)
    mark(name)


def clear(folder: str) -> None:
    """It has nothing but marks."""
    for one in real["listdir"](folder):
        real["unlink"](os.path.join(folder, one))
    real["rmdir"](folder)


def os_unlink(path: Any, *, dir_fd: Optional[int] = None) -> None:
    name = meant(path, dir_fd)
    if name is None:
        real["unlink"](as_it_is(path, dir_fd))
        return
    if stat.S_ISDIR(os_lstat(name).st_mode):
        raise fails(errno.EISDIR, path)
    have_folder(os.path.dirname(name), path)
    if lies_at(upper + name):
        real["unlink"](upper + name)
    mark(name)


def os_rename(src: Any, dst: Any, *, src_dir_fd: Optional[int] = None, dst_dir_fd: Optional[int] = None) -> None:
    old, new = meant(src, src_dir_fd), meant(dst, dst_dir_fd)
    if old is None or new is None:
        real["rename"](to_change(src, src_dir_fd, False), to_change(dst, dst_dir_fd, False, False))
        return
    is_folder = stat.S_ISDIR(os_lstat(old).st_mode)
    have_folder(os.path.dirname(new), dst)
    if old == new:
        return
    if is_there(new):
        if stat.S_ISDIR(os_lstat(new).st_mode) != is_folder:
            raise fails(errno.ENOTDIR if is_folder else errno.EISDIR, dst)
        (os_rmdir if is_folder else os_unlink)(new)
    have_folder(os.path.dirname(old), src)
    take_all(old)
    if is_mark(upper + new):
        real["unlink"](upper + new)
    real["rename"](upper + old, upper + new)
    mark(old)
    if is_folder:
        hide_old(new)


def os_link(src: Any, dst: Any, *, src_dir_fd: Optional[int] = None, dst_dir_fd: Optional[int] = None, follow_symlinks: bool = True) -> None:
    real["link"](to_change(src, src_dir_fd, follow_symlinks), to_make(dst, dst_dir_fd))


def os_symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: Optional[int] = None) -> None:
    real["symlink"](src, to_make(dst, dir_fd))


def os_getcwd() -> str:
    here = str(real["getcwd"]())
    return here[len(upper):] or "/" if here.startswith(upper) else here


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: passed_on(name, to_read) for name in READ}, **{name: passed_on(name, to_change) for name in CHANGED},
    "open": os_open, "access": os_access, "listdir": os_listdir, "scandir": os_scandir, "mkdir": os_mkdir, "rmdir": os_rmdir, "unlink": os_unlink,
    "remove": os_unlink, "rename": os_rename, "replace": os_rename, "link": os_link, "symlink": os_symlink, "getcwd": os_getcwd}


def begin(text: str) -> None:
    """When Python starts; and again in a run that begins at a copy, with another scratch folder."""
    global upper, through
    is_first = not upper
    upper, folders = json.loads(text)
    through = (os.path.join(os.path.dirname(os.path.dirname(upper)), ""), *(os.path.join(folder, "") for folder in folders))
    if is_first:
        for name, function in FUNCTIONS.items():
            for functions in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if getattr(os, name) in functions:
                    functions.add(function)
            setattr(os, name, function)
        builtins.open = io.open = open_file


def has_written(folder: str) -> bool:
    """`upper`, or a folder in it."""
    with real["scandir"](folder) as listed:
        return any(not entry.is_dir(follow_symlinks=False) or has_written(entry.path) for entry in listed)


# --- writers in compiled libraries

def writing(inside: Any) -> Any:
    def writer(file: Any, *args: Any, **kwargs: Any) -> Any:
        return inside(to_change(file, copies=False) if isinstance(file, str) else file, *args, **kwargs)
    return writer


def begin_with() -> None:
    """Once torch is imported. safetensors is imported here if it is installed: what a program has imported by name cannot be replaced later."""
    from cenote.torch import patches  # not as Python starts
    patches.replace("files", "torch._C.PyTorchFileWriter", writing)
    with suppress(Exception):
        importlib.import_module("safetensors.torch")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "safetensors" and not name.endswith("_rust"):
            for function, argument, where in (("serialize_file", 1, written), ("safe_open", 0, to_read)):
                if function in vars(module):
                    patches.replace("files", (module, function), functools.partial(at_another_place, argument, where))


def written(path: Any) -> Any:
    return to_change(path, copies=False)


def at_another_place(argument: int, where: Callable[[Any], Any], inside: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if "filename" in kwargs:
            kwargs["filename"] = where(kwargs["filename"])
        elif len(args) > argument:
            args = (*args[:argument], where(args[argument]), *args[argument + 1:])
        return inside(*args, **kwargs)
    return call
