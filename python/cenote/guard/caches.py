"""Which folders a program may change in a dry run all the same: caches that are meant to grow, each by its own folder.

Not whole homes of libraries (HF_HOME, ~/.cache): beside a cache they hold what is not in one. Reads the environment; makes folders that are missing,
so that what the first run downloads is there for the second. They stay: another dry run may use them by now.
"""
import getpass
import os
import tempfile
from contextlib import suppress
from typing import Mapping, NamedTuple

from cenote import places


class Cache(NamedTuple):
    variable: str  # that names the folder
    home: str  # the variable that names a folder for several caches, or ""
    default: str  # that folder where the variable is not set
    name: str  # of the folder in it


HUB, USERS = "~/.cache/huggingface", "~/.cache"
CACHES = (
    Cache("HF_HUB_CACHE", "HF_HOME", HUB, "hub"),
    Cache("HF_DATASETS_CACHE", "HF_HOME", HUB, "datasets"),
    Cache("HF_XET_CACHE", "HF_HOME", HUB, "xet"),
    Cache("HF_MODULES_CACHE", "HF_HOME", HUB, "modules"),
    Cache("TORCH_HOME", "XDG_CACHE_HOME", USERS, "torch"),
    Cache("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", USERS, "torch_extensions"),
    Cache("TORCHINDUCTOR_CACHE_DIR", "", "{temporary}", "torchinductor_{user}"),
    Cache("TRITON_CACHE_DIR", "TRITON_HOME", "~", ".triton/cache"),
    Cache("CUDA_CACHE_PATH", "", "~", ".nv/ComputeCache"),
)


def folders(variables: Mapping[str, str]) -> list[str]:
    with suppress(Exception):  # no name: getpass asks the environment and the list of users
        words = {"temporary": tempfile.gettempdir(), "user": getpass.getuser()}
        found = [variables.get(one.variable) or os.path.join(variables.get(one.home) or one.default.format(**words), one.name.format(**words))
                 for one in CACHES]
        return [places.cache_folder(), *(os.path.abspath(os.path.expanduser(path)) for path in found)]
    return [places.cache_folder()]


def make(paths: list[str]) -> None:
    for path in paths:
        with suppress(OSError):  # a home that this user may not write to
            os.makedirs(path, exist_ok=True)
