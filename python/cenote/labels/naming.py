"""Gives modules their names: `transformer.h.3.mlp.c_fc`, as state_dict() has them, without the names that wrappers add.

A name is asked for once for each module and the module around it (plugins/names/modules.cpp). The outermost module, the *root*, is named after
the variable that leads to it, or after its class. If a program has one model, names go without that of the root, unless they would begin with a
number. No module is kept alive.
"""
import collections
import sys
import weakref
from types import FrameType, ModuleType
from typing import Any, Collection, Iterator, NamedTuple, Optional

from cenote.base import source
from cenote.base.variables import variables

MODULES_MAX = 100_000  # that one search looks at
FRAMES_MAX = 100
LISTED_MIN, LISTS_MAX = 8, 64  # modules of a list that is kept; such lists
PATHS_MAX = 1 << 20
OTHERS_MAX = 63
# Names of attributes under which wrappers have the module that they wrap, and the packages whose wrappers do so; "": any.
WRAPPED = {"_orig_mod": ("",), "_fsdp_wrapped_module": ("",), "_checkpoint_wrapped_module": ("",),
           "module": ("torch.", "deepspeed.", "fairscale.", "apex.", "lightning", "pytorch_lightning.", "accelerate.",
                      "megatron.")}
LISTS = ("ModuleList", "ModuleDict")
PLAIN_VARIABLES = ("self", "cls", "module", "mod", "fn", "func", "function", "m", "layer", "obj")  # that say nothing about what they lead to


class Path(NamedTuple):
    root: int
    name: str  # empty: the root itself
    module: "weakref.ref[Any]"


class Root(NamedTuple):
    variable: str  # empty: none was found
    kind: str  # the name of its class
    module: "weakref.ref[Any]"

    @property
    def label(self) -> str:
        return self.variable or self.kind


def own_modules(module: Any) -> dict[str, Any]:
    found = getattr(module, "__dict__", {}).get("_modules")
    if found is None or isinstance(found, dict):
        return found or {}
    try:
        return dict(found.items())  # of a ScriptModule
    except Exception:
        return {}


def is_wrapping(module: Any, name: str) -> bool:
    packages = WRAPPED.get(name)
    return packages is not None and str(type(module).__module__).startswith(packages)


def kind_of(module: Any) -> str:
    """The class of the module, or of the one that a wrapper wraps."""
    for _ in WRAPPED:
        parts = own_modules(module)
        module = next((parts[name] for name in WRAPPED if parts.get(name) is not None and is_wrapping(module, name)), module)
    return type(module).__name__


def join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


Keys = tuple[Any, ...]  # in which `_modules` a module is, and under which keys those: (((), "layers"), "3")


def inside_by_keys(module: Any) -> Iterator[tuple[str, Keys, Any]]:
    """The module and all modules inside it, with their names, the nearest first."""
    start: Keys = ()
    queue = collections.deque([("", start, module)])
    seen = {id(module)}
    while queue and len(seen) < MODULES_MAX:
        name, keys, here = queue.popleft()
        yield name, keys, here
        for inner, part in list(own_modules(here).items()):
            if part is not None and id(part) not in seen:
                seen.add(id(part))
                queue.append((name if is_wrapping(here, inner) else join(name, inner), (keys, inner), part))


def inside(module: Any) -> Iterator[tuple[str, Any]]:
    for name, _, part in inside_by_keys(module):
        yield name, part


def at_keys(module: Any, keys: Keys) -> Any:
    """What is there now; None: nothing."""
    path = []
    while keys:
        keys, last = keys
        path.append(last)
    for key in reversed(path):
        module = own_modules(module).get(key)
    return module


def name_inside(around: Any, module: Any) -> Optional[str]:
    return next((name for name, part in inside(around) if part is module), None)


def in_container(value: Any, module: Any) -> Optional[str]:
    """`[3]` or `['decoder']` if the module is an item of the list or dictionary."""
    if type(value) in (list, tuple) and len(value) < 1000:
        return next((f"[{at}]" for at, item in enumerate(value) if item is module), None)
    if type(value) is dict and len(value) < 1000:
        return next((f"[{key!r}]" for key, item in list(value.items()) if item is module and type(key) in (str, int)), None)
    return None


class Naming:
    """The names of modules, by number. Number 0 is the name of no module."""

    def __init__(self, torch: ModuleType) -> None:
        self.module_type = torch.nn.Module
        self.roots: list[Root] = []
        self.paths: list[Path] = [Path(-1, "", lambda: None)]  # type: ignore[arg-type]
        self.numbers: dict[tuple[int, str], int] = {}
        self.latest: dict[int, int] = {}  # the path of a module, by its id
        self.others: dict[int, list["weakref.ref[Any]"]] = {}  # further modules of one name: copies that DataParallel makes
        self.lists: dict[int, tuple["weakref.ref[Any]", dict[int, tuple[str, Keys]]]] = {}  # what is inside a module, by its id: name_inside
        self.models: set[str] = set()  # labels of the roots that have parts with names

    def give(self, module: Any, around: int) -> int:
        """The number of the module's name when it is called inside the module with the name `around`."""
        try:
            return self.find(module, around)
        except Exception:  # code of the program ran (a module's __getattr__): the module goes by the name of the one around it
            return around

    def find(self, module: Any, around: int) -> int:
        outer = self.paths[around]
        for parent in [reference() for reference in (outer.module, *self.others.get(around, ()))]:
            name = self.name_inside(parent, module) if parent is not None else None
            if name is None:
                attributes = getattr(parent, "__dict__", {})
                found = ((key, in_container(value, module)) for key, value in list(attributes.items()))
                name = next((f"{key}{item}" for key, item in found if item), None)
            if name is not None:
                return self.make(outer.root, join(outer.name, name), module)
        known = self.known(module)
        if known:
            return known
        if around:
            return self.make(outer.root, join(outer.name, type(module).__name__), module)
        return self.root(module)

    def name_inside(self, around: Any, module: Any) -> Optional[str]:
        """As the function. A container of thousands of modules is listed once, and again if it has got new ones."""
        reference, listed = self.lists.get(id(around), (None, {}))
        if reference is not None and reference() is around:
            name, keys = listed.get(id(module), ("", None))
            if keys is not None and at_keys(around, keys) is module:
                return name
            if name_inside(around, module) is None:
                return None
        listed = {id(part): (name, keys) for name, keys, part in inside_by_keys(around)}
        if len(self.lists) >= LISTS_MAX:
            self.lists.clear()
        if len(listed) >= LISTED_MIN:
            self.lists[id(around)] = weakref.ref(around), listed
        return listed.get(id(module), (None,))[0]

    def known(self, module: Any) -> int:
        number = self.latest.get(id(module), 0)
        if self.paths[number].module() is module:
            return number
        for at, root in enumerate(self.roots):  # a part that is called by itself: one that is computed again, or `model.encode`
            owner = root.module()
            name = self.name_inside(owner, module) if owner is not None and owner is not module else None
            if name is not None:
                return self.make(at, name, module)
        if getattr(module, "_is_replica", False) is True:
            return self.replica(module)
        return 0

    def replica(self, module: Any) -> int:
        """DataParallel copies its module in each forward."""
        for number, root in enumerate(self.roots):
            original = own_modules(root.module()).get("module") if root.module() is not None else None
            if type(original) is type(module):
                return self.make(number, "", module)
        return 0

    def root(self, module: Any) -> int:
        variable, owner, name = variable_of(module, self.module_type)
        if variable:
            variable, owner, name = self.told_apart(variable, owner, name, module)
        kind = kind_of(owner)
        number = next((at for at, root in enumerate(self.roots) if root.module() is owner or (root.module() is None and root.variable == variable
                                                                                             and root.kind == kind)), len(self.roots))
        before = self.roots[number].variable if number < len(self.roots) else ""
        self.roots[number:number + 1] = [Root(variable or before, kind, weakref.ref(owner))]
        return self.make(number, name, module)

    def told_apart(self, variable: str, owner: Any, name: str, module: Any) -> tuple[str, Any, str]:
        """Two models go through one function, and `model` leads to both in turn: each goes by another variable if there is one."""
        for at, root in enumerate(self.roots):
            other = root.module()
            if root.variable != variable or other is None or other is owner:
                continue
            taken = {each.variable for each in self.roots}
            found = variable_of(module, self.module_type, taken)
            variable, owner, name = found if found[0] else (variable, owner, name)
            others, other_owner, _ = variable_of(other, self.module_type, taken | {variable})
            if others and other_owner is other:
                self.roots[at] = root._replace(variable=others)
        return variable, owner, name

    def make(self, root: int, name: str, module: Any) -> int:
        reference = weakref.ref(module)
        if name:
            self.has_parts(root)
        number = self.numbers.setdefault((root, name), len(self.paths))
        if number == len(self.paths):
            if number >= PATHS_MAX:
                return 0
            self.paths.append(Path(root, name, reference))
        elif self.paths[number].module() is None:
            self.paths[number] = Path(root, name, reference)
        elif self.paths[number].module() is not module:
            living = [other for other in self.others.get(number, ()) if other() is not None and other() is not module]
            self.others[number] = [*living[-OTHERS_MAX:], reference]
        if len(self.latest) > 4 * len(self.paths) + 1000:  # most of these modules are gone
            self.latest.clear()
        self.latest[id(module)] = number
        return number

    def has_parts(self, root: int) -> None:
        if 0 <= root < len(self.roots):
            self.models.add(self.roots[root].label)

    # --- as text

    def shown(self, root: int, name: str) -> str:
        """A name of the root's. That of the root stands before it if there are several models, and before a number: a layer of nn.Sequential."""
        if not 0 <= root < len(self.roots):
            return name
        label = self.roots[root].label
        if not name:
            return label
        return join(label, name) if len(self.models) > 1 or name[0].isdigit() else name

    def text(self, number: int) -> str:
        """Empty: no module."""
        if not 0 < number < len(self.paths):
            return ""
        return self.shown(self.paths[number].root, self.paths[number].name)


def variable_of(module: Any, module_type: type, taken: Collection[str] = ()) -> tuple[str, Any, str]:
    """The variable that leads to the module: its name, the module that it names, and the name of `module` inside that. The program's own frames come
    before those of libraries. `taken`: names of variables that lead to others, too."""
    frames: list[FrameType] = []
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and len(frames) < FRAMES_MAX:
        if not source.is_ours(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    own = [frame for frame in frames if not source.is_library(frame.f_code.co_filename)]
    for some in (own, [frame for frame in frames if frame not in own]):
        for each in some:
            for names in (variables(each), each.f_globals if each in own else {}):
                found = look({name: names[name] for name in list(names) if name not in taken}, module, module_type, some is own)
                if found is not None:
                    return found
    return "", module, ""


def look(names: dict[str, Any], module: Any, module_type: type, is_own: bool) -> Optional[tuple[str, Any, str]]:
    values = [(name, value) for name, value in list(names.items()) if type(name) is str and not name.startswith("__")]
    for name, value in values:
        if issubclass(type(value), module_type) and type(value).__name__ in LISTS:  # its items are called by a loop
            part_name = next((part for part, item in own_modules(value).items() if item is module), None)
            if part_name is not None:
                return name, value, part_name
    for name, value in values:
        if value is module and name not in PLAIN_VARIABLES:
            return name, module, ""
        item = in_container(value, module) if is_own else None  # of a library: a table of its own
        if item:
            return f"{name}{item}", module, ""
    for name, value in values:
        if name in ("self", "cls") and value is not module and not issubclass(type(value), module_type):
            for attribute, part in list(getattr(value, "__dict__", {}).items()):
                if part is module:
                    return str(attribute), module, ""
                item = in_container(part, module)
                if item:
                    return f"{attribute}{item}", module, ""
                part_name = name_inside(part, module) if issubclass(type(part), module_type) else None
                if part_name is not None:
                    return str(attribute), part, part_name
    for name, value in values:
        if issubclass(type(value), module_type) and value is not module:
            part_name = name_inside(value, module)
            if part_name is not None:
                return ("" if name in PLAIN_VARIABLES else name), value, part_name
    return None
