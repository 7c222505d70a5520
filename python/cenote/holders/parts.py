"""Lists the parts of an object, with their names: items, attributes, variables of frames, the frames in an exception's traceback.

Objects are read through Python's own descriptors: no property, `__getattr__`, `__iter__`, `__len__` or `__repr__` of the program runs, and a class
that replaces `__dict__` is skipped. No object is kept. The table READERS says how each type is read.
"""
import collections
import gc
import sys
import types
from typing import Any, Callable, Iterator, Optional, TypeVar

from cenote.base import source
from cenote.base.source import BASES, DICT, FLAGS, MODULE, NAME, NAMESPACE
from cenote.base.variables import variables

Found = TypeVar("Found")
Part = tuple[str, str, Any]  # how the part is reached, its name, the part

ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, types.CodeType, types.BuiltinFunctionType, range, slice, type(Ellipsis),
         types.GetSetDescriptorType, types.MemberDescriptorType, types.MappingProxyType, property)
ATOM_IDS = frozenset(id(kind) for kind in ATOMS)  # ids, because a metaclass may define ==
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by Python code
NESTED = ("_modules", "_parameters", "_buffers")  # dictionaries of torch.nn.Module whose items users see as attributes


_known: list[dict[int, Any]] = []


def by_type(function: Callable[[Any], Found]) -> Callable[[Any], Found]:
    """Caches results by the id of a type, so that the type is neither hashed nor kept. Results are valid while the type lives: see forget_types."""
    known: dict[int, Found] = {}
    _known.append(known)

    def asked(kind: Any) -> Found:
        if id(kind) not in known:
            known[id(kind)] = function(kind)
        return known[id(kind)]
    return asked


def forget_types() -> None:
    """To be called before the objects are released whose types were asked for."""
    for known in _known:
        known.clear()


def own_dict(obj: Any) -> dict[str, Any]:
    """`obj.__dict__`; empty if the program replaced that attribute."""
    getter = dict_getter(type(obj))
    found = getter(obj) if getter else None
    return found if type(found) is dict else {}


@by_type
def dict_getter(kind: type) -> Optional[Callable[[Any], Any]]:
    for base in BASES(kind):
        found = DICT(base).get("__dict__")
        if found is not None:
            return found.__get__ if type(found) is types.GetSetDescriptorType else None
    return None


@by_type
def slots(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple((name, found) for base in BASES(kind) for name, found in DICT(base).items() if type(found) is types.MemberDescriptorType)


def attributes(obj: Any) -> Iterator[Part]:
    for name, value in list(own_dict(obj).items()):
        yield "attribute", name if type(name) is str else key_name(name), value
    for name, slot in slots(type(obj)):
        try:
            yield "attribute", name, slot.__get__(obj)
        except AttributeError:
            continue


def key_name(key: Any) -> str:
    if type(key) is str:
        return repr(key if len(key) <= 40 else key[:37] + "...")
    return str(key) if type(key) in (int, bool, float) else f"<{NAME(type(key))}>"


def of_dict(obj: Any) -> Iterator[Part]:
    for key, value in list(dict.items(obj)):
        yield "key", key_name(key), value
        if id(type(key)) not in ATOM_IDS:
            yield "key", "<a key>", key


def of_sequence(obj: Any) -> Iterator[Part]:
    items = list.copy(obj) if issubclass(type(obj), list) else list(tuple.__iter__(obj))
    for number, value in enumerate(items):
        yield "index", str(number), value


def of_deque(obj: Any) -> Iterator[Part]:
    for number, value in enumerate(list(collections.deque.__iter__(obj))):
        yield "index", str(number), value


def of_set(obj: Any) -> Iterator[Part]:
    for value in list((set if issubclass(type(obj), set) else frozenset).__iter__(obj)):
        yield "element", "", value


def of_function(obj: types.FunctionType) -> Iterator[Part]:
    for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or ()):
        yield "closure", name, cell
    for value in obj.__defaults__ or ():
        yield "inside", "a default argument of", value
    for name, value in {**(obj.__kwdefaults__ or {}), **obj.__dict__}.items():
        yield "attribute", name if type(name) is str else key_name(name), value


def of_cell(obj: Any) -> Iterator[Part]:
    try:
        yield "same", "", obj.cell_contents
    except ValueError:
        return


def of_method(obj: types.MethodType) -> Iterator[Part]:
    yield "attribute", "__self__", obj.__self__
    yield "same", "", obj.__func__


def of_exception(obj: BaseException) -> Iterator[Part]:
    base = vars(BaseException)
    trace = base["__traceback__"].__get__(obj)
    while trace is not None:
        yield "exception", "", trace.tb_frame
        trace = trace.tb_next
    for name in ("__cause__", "__context__", "args"):
        yield "attribute", name, base[name].__get__(obj)
    yield from attributes(obj)


def of_traceback(obj: types.TracebackType) -> Iterator[Part]:
    trace: Optional[types.TracebackType] = obj
    while trace is not None:
        yield "exception", "", trace.tb_frame
        trace = trace.tb_next


def of_frame(obj: types.FrameType) -> Iterator[Part]:
    if not source.is_ours(obj.f_code.co_filename):
        for name, value in variables(obj).items():
            yield "variable", name, value


def of_generator(obj: Any) -> Iterator[Part]:
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        descriptor = DICT(type(obj)).get(name)
        frame = descriptor.__get__(obj) if descriptor else None
        if frame is not None:
            yield "inside", "suspended", frame


def of_module(obj: types.ModuleType) -> Iterator[Part]:
    if source.is_programs(obj):
        for name, value in list(NAMESPACE(obj).items()):
            yield "variable", name if type(name) is str else key_name(name), value


def of_class(obj: type) -> Iterator[Part]:
    module = sys.modules.get(str(MODULE(obj)))
    if type(module) is types.ModuleType and source.is_programs(module):
        for name, value in list(DICT(obj).items()):
            yield "attribute", str(name), value


def of_object(obj: Any) -> Iterator[Part]:
    yield from attributes(obj)
    if not FLAGS(type(obj)) & HEAP_TYPE:  # a type in C may refer to objects that no attribute names
        for value in gc.get_referents(obj):
            yield "inside", "", value


def of_torch_module(obj: Any) -> Iterator[Part]:
    own = own_dict(obj)
    for name, value in list(own.items()):
        if name in NESTED and issubclass(type(value), dict):
            for inner, part in list(dict.items(value)):
                yield "attribute", inner if type(inner) is str else key_name(inner), part
        else:
            yield "attribute", name if type(name) is str else key_name(name), value


def of_nothing(_: Any) -> Iterator[Part]:
    return iter(())


READERS: list[tuple[type, Callable[[Any], Iterator[Part]]]] = [
    (dict, of_dict), (list, of_sequence), (tuple, of_sequence), (collections.deque, of_deque), (set, of_set), (frozenset, of_set),
    (types.FunctionType, of_function), (types.CellType, of_cell), (types.MethodType, of_method), (BaseException, of_exception),
    (types.TracebackType, of_traceback), (types.FrameType, of_frame), (types.GeneratorType, of_generator), (types.CoroutineType, of_generator),
    (types.AsyncGeneratorType, of_generator), (types.ModuleType, of_module), (type, of_class)]


@by_type
def readers(kind: type) -> tuple[Callable[[Any], Iterator[Part]], ...]:
    """How the parts of objects of a type are read."""
    if id(kind) in ATOM_IDS or str(MODULE(kind)).startswith(("cenote.", "weakref", "_weakref", "numpy")):
        return ()
    torch = sys.modules["torch"]
    if issubclass(kind, torch.nn.Module):
        return (of_torch_module,)
    for base, reader in READERS:
        if issubclass(kind, base):
            is_plain = kind is base or not FLAGS(kind) & HEAP_TYPE or base in (type, BaseException, types.ModuleType)
            return (reader,) if is_plain else (reader, attributes)
    return (attributes,) if issubclass(kind, torch.Tensor) else (of_object,)
