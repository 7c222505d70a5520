"""Paths of the files that are not Python: libraries, headers, the adapter's sources.

In an installed package they are beside this file. In a source tree they are in build/, or in the folder that CENOTE_BUILD names.
"""
from __future__ import annotations

import os
import site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

    from cenote.base.trusted import Folder

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
build = os.path.join(TREE, "build")  # build*/bin/cenote sets it to the folder that it is in


class NotBuilt(FileNotFoundError):
    """A file of cenote's is missing; the text says how to make it."""


def is_installed() -> bool:
    return os.path.exists(os.path.join(HERE, "built.py"))


def build_folder() -> str:
    return os.path.abspath(os.environ.get("CENOTE_BUILD") or build)


def find(installed: str, in_tree: str, needs: str = "") -> str:
    path = os.path.join(HERE, installed) if is_installed() else in_tree
    if not os.path.exists(path):
        before = f"install {needs}; then " if needs else ""
        advice = "install the package again" if is_installed() else "`make build` makes it; CENOTE_BUILD names another build folder"
        raise NotBuilt(f"{path} is not there: {before}{advice}")
    return path


def simulation_folder() -> str:
    """The folder of the simulated GPU: libcenote_sim.so, and the simulated libraries under their real names. It has no character that LD_PRELOAD
    splits at."""
    return plain(find("sim", os.path.join(build_folder(), "sim")))


SPLITS = " :\t\n"  # where the dynamic linker splits LD_PRELOAD; it knows no quotes


def plain(folder: str) -> str:
    """A path to this folder without characters that LD_PRELOAD splits at: its own, or that of a link. If no link can be made, its own in any case."""
    if not any(character in folder for character in SPLITS):
        return folder
    import hashlib
    import tempfile

    from cenote.base import trusted
    link = "folder-" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    for path in (cache_folder(), *(os.path.join(above, f"cenote-{os.geteuid()}") for above in (tempfile.gettempdir(), "/tmp"))):
        if any(character in path for character in SPLITS):
            continue
        try:
            place = trusted.own_folder(path)
        except OSError:
            continue
        try:
            have_link(place, link, folder)
        finally:
            place.close()
        return os.path.join(path, link)
    return folder


def have_link(place: Folder, name: str, folder: str) -> None:
    try:
        if os.readlink(name, dir_fd=place.descriptor) == folder:
            return
    except OSError:
        pass
    new = name + "-" + os.urandom(8).hex()  # if several processes do this at once, the last link stays
    os.symlink(folder, new, dir_fd=place.descriptor)
    os.replace(new, name, src_dir_fd=place.descriptor, dst_dir_fd=place.descriptor)


def cache_folder() -> str:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "cenote")


def library() -> str:
    """The path of libcenote.so, for ctypes.CDLL."""
    return find("lib/libcenote.so.0", os.path.join(build_folder(), "libcenote.so"))


def host_library() -> str:
    """The path of libcenote_host.so: pinned memory. A build without hwloc has none."""
    return find("lib/libcenote_host.so.0", os.path.join(build_folder(), "libcenote_host.so"), "hwloc's headers (Debian: libhwloc-dev)")


def include_folder() -> str:
    """The folder to name with -I for `#include <cenote/cenote.h>`."""
    return find("include", os.path.join(TREE, "include"))


def plugin_folder(name: str) -> str:
    """The sources of a library that is compiled against PyTorch: torch (the adapter), values or names."""
    return find(f"plugins/{name}", os.path.join(TREE, "plugins", name))


def pluggable_library() -> str:
    """The library that is used where no adapter can be compiled."""
    return find("lib/libcenote_pluggable.so", os.path.join(build_folder(), "libcenote_pluggable.so"))


def replay_program() -> str:
    """The program that has the models of PyTorch's allocators."""
    return find("bin/cenote-replay", os.path.join(build_folder(), "bin", "cenote-replay"))


def qualify_program() -> str:
    """The program behind `cenote qualify`."""
    return find("bin/cenote-qualify", os.path.join(build_folder(), "bin", "cenote-qualify"))


def trace(name: str) -> str:
    """A recorded program of traces/torch/. A wheel has those that `cenote qualify` plays."""
    return find(os.path.join("traces", name), os.path.join(TREE, "traces", "torch", name))


def records_library() -> str:
    """The reader of traces."""
    return find("lib/libcenote_records.so", os.path.join(build_folder(), "libcenote_records.so"))


def switch_is_installed(folders: Iterable[str]) -> bool:
    """Whether a Python with these site folders reads CENOTE when it starts. In a folder that only PYTHONPATH names, as the one of the sources, Python
    reads no .pth file."""
    named = {os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one} - set(site.getsitepackages())
    for folder in folders:
        if os.path.abspath(folder) in named:
            continue
        for name in ("cenote.pth", "cenote-tree.pth"):
            try:
                with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                    if "cenote.hook" in file.read():
                        return True
            except OSError:
                continue
    return False


def version() -> str:
    if is_installed():
        from cenote import built
        return built.VERSION
    with open(os.path.join(TREE, "CMakeLists.txt"), encoding="utf-8") as file:
        return file.read().partition("project(cenote VERSION ")[2].split(" ", 1)[0]
