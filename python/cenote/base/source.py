"""Places in a program's source: which files are the program's own, and which of its lines store something in a variable.

Reads code objects and files only, and runs no code of the program. The program's own files are all but those of Python, installed packages and
cenote.
"""
import dis
import functools
import linecache
import os
import sys
import sysconfig
import tempfile
import types
from typing import Any, Iterable, Iterator, NamedTuple, Optional

MUTATORS = ("append", "appendleft", "add", "extend", "insert", "put", "setdefault", "update", "push", "copy_")
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Parts of paths. The last ones are of files that torch.compile has written: a folder of the program's may have such a name.
COMPILED = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}", os.path.join(tempfile.gettempdir(), "torchinductor_"),
             *([os.path.join(os.path.abspath(COMPILED), "")] if COMPILED else []))
GENERATED = ("<frozen", "<__array_function__", "<eval_with_key>")  # by Python, NumPy, torch.fx
PYTHON = tuple({os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})


# Attributes of a type, read by type's own descriptors: code of a metaclass does not run.
BASES, DICT, FLAGS, NAME, MODULE = (vars(type)[name].__get__ for name in ("__mro__", "__dict__", "__flags__", "__name__", "__module__"))
NAMESPACE = vars(types.ModuleType)["__dict__"].__get__


class Place(NamedTuple):
    """A line in a function, or a function or module as a whole: line 0."""

    file: str
    line: int
    function: str  # empty: the module's own code

    def __str__(self) -> str:
        at = f"{shown(self.file)}:{self.line}" if self.line else shown(self.file)
        return f"{self.function}() at {at}" if self.function else at


class Line(NamedTuple):
    """A line that stores something in a variable or attribute."""

    file: str
    number: int
    is_from_itself: bool  # the new value is computed from the old one, or added to it

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.number).strip()
        return f"{shown(self.file)}:{self.number}" + (f": `{text if len(text) <= 100 else text[:97] + '...'}`" if text else "")


KEPT = "cenote-dry-"  # begins the name of the temporary folder of a dry run, launch/keeper.py


def shown(file: str) -> str:
    """The path relative to the current folder if it is below that, else as it is. Of a program that `cenote dry-run --model` has written the name."""
    if os.path.basename(os.path.dirname(file)).startswith(KEPT):
        return os.path.basename(file)
    here = os.getcwd() + os.sep
    return file[len(here):] if file.startswith(here) else file


@functools.lru_cache(maxsize=4096)
def is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(OURS)


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Python itself, an installed package, what torch.compile has written, or cenote."""
    if file.startswith("<") and file.endswith(">") and file not in ("<stdin>", "<string>", "<console>") and not file.startswith("<ipython"):
        return file.startswith(GENERATED)
    path = os.path.abspath(file)
    return any(part in path for part in INSTALLED) or path.startswith(PYTHON) or is_ours(file)


def is_programs(module: types.ModuleType) -> bool:
    names = NAMESPACE(module)
    if names.get("__name__") == "__main__":
        return True
    file = names.get("__file__")
    return type(file) is str and not is_library(file)


def is_ours_object(obj: Any) -> bool:
    return str(MODULE(type(obj))).startswith("cenote.")


def of_frame(frame: types.FrameType) -> Place:
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    is_module = code.co_name == "<module>"
    return Place(code.co_filename, 0 if is_module else frame.f_lineno or code.co_firstlineno, "" if is_module else name.replace("<locals>.", ""))


def of_module(module: types.ModuleType) -> Place:
    names = NAMESPACE(module)
    return Place(str(names.get("__file__") or f"module {names.get('__name__')}"), 0, "")


# --- code objects of classes and modules

def codes_of_class(kind: type) -> tuple[types.CodeType, ...]:
    """Code of the methods of a class, its own and inherited ones, without those from libraries."""
    found: list[types.CodeType] = []
    for base in BASES(kind):
        found.extend(code for code in codes_in(DICT(base).values()) if not is_library(code.co_filename))
    return tuple(found)


def codes_of_module(module: types.ModuleType) -> tuple[types.CodeType, ...]:
    """Code of the functions and classes of a module, and of the module itself while it runs."""
    names = NAMESPACE(module)
    file = names.get("__file__")
    values = [value for value in list(names.values()) if getattr_plain(value, "__module__") == names.get("__name__")]
    found = list(codes_in(values))
    for value in values:
        if type(value) is type:
            found.extend(codes_of_class(value))
    walker: Optional[types.FrameType] = sys._getframe()
    while walker is not None:
        if walker.f_globals is names and (walker.f_code.co_name == "<module>" or walker.f_code.co_filename == file):
            found.append(walker.f_code)
        walker = walker.f_back
    return tuple(dict.fromkeys(found))


def getattr_plain(value: Any, name: str) -> Any:
    """getattr for functions and plain classes; None for other objects, whose code could run."""
    return getattr(value, name, None) if type(value) in (types.FunctionType, type) else None


def codes_in(values: Iterable[Any]) -> Iterator[types.CodeType]:
    for value in list(values):
        if type(value) is staticmethod or type(value) is classmethod:
            value = value.__func__
        if type(value) is property:
            yield from codes_in((value.fget, value.fset))
        if type(value) is types.FunctionType:
            yield value.__code__


# --- lines that store something

def instructions(code: types.CodeType) -> Iterator[tuple[int, str, Any]]:
    """Line, operation and argument of each instruction, of a code object and of those nested in it."""
    line = code.co_firstlineno
    for one in dis.get_instructions(code):
        positions = getattr(one, "positions", None)
        if positions is not None and positions.lineno:
            line = positions.lineno
        elif type(one.starts_line) is int:
            line = one.starts_line
        yield line, one.opname, one.argval
    for constant in code.co_consts:
        if type(constant) is types.CodeType:
            yield from instructions(constant)


@functools.lru_cache(maxsize=1024)
def keeping(codes: tuple[types.CodeType, ...], name: str, is_attribute: bool) -> tuple[Line, ...]:
    """Lines that store something in the variable or attribute, or in the container that it names. If some of them compute the new value from the old
    one, only those."""
    found: dict[tuple[str, int], bool] = {}
    for code in codes:
        loaded: set[int] = set()
        before = ""
        for line, operation, argument in instructions(code):
            names = argument if type(argument) is tuple else (argument,)
            is_it = name in names and operation.endswith("_ATTR") == is_attribute
            if is_it and operation.startswith("LOAD_") or (is_attribute and operation == "LOAD_METHOD" and name in names):
                loaded.add(line)
            elif is_it and operation.startswith("STORE_") and before != "LOAD_CONST":  # a constant, such as None or 0, is an initial value
                found[code.co_filename, line] = found.get((code.co_filename, line), False) or line in loaded
            elif line in loaded and (operation == "STORE_SUBSCR" or (operation in ("LOAD_METHOD", "LOAD_ATTR") and argument in MUTATORS)):
                found[code.co_filename, line] = True
            before = operation
    lines = [Line(file, number, is_from_itself) for (file, number), is_from_itself in found.items()]
    return tuple([line for line in lines if line.is_from_itself] or lines)
