"""Functions of a program that throw or do not return (careless.cpp), by ctypes."""

import ctypes
import pathlib

NOTHING, THROWS, STAYS, THROWS_A_NUMBER = range(4)
FINDS = "import ctypes, os, signal, sys, time, torch\nNOTHING, THROWS, STAYS, THROWS_A_NUMBER = range(4)\ncareless = ctypes.CDLL({path!r})\n"


def path(name: str = "careless.cpp") -> str:
    import compiled

    return compiled.library(pathlib.Path(__file__).with_name(name))


def begin() -> str:
    """The first lines of a program that uses the library as `careless`."""
    return FINDS.format(path=path())
