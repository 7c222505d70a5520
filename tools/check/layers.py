"""Checks the order of includes: a file includes its own layer, and those that the layer's row of layers.txt names."""
import dataclasses
import fnmatch
import re

from tree import Report, Tree

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


@dataclasses.dataclass
class Layer:
    name: str
    patterns: list[str]
    sees: set[str]

    def holds(self, path: str) -> bool:
        return any(fnmatch.fnmatch(path, pattern) for pattern in self.patterns)

    def may_see(self, other: str) -> bool:
        return other == self.name or other in self.sees or "*" in self.sees


def read_layers(text: str) -> list[Layer]:
    """An indented line continues the row before it."""
    lines = re.sub(r"\n +", " ", text).splitlines()
    rows = [line.split("|") for line in lines if line.strip() and not line.startswith("#")]
    return [Layer(name.strip(), patterns.split(), set(sees.split())) for name, patterns, sees in rows]


def layer_of(path: str, layers: list[Layer]) -> Layer | None:
    return next((layer for layer in layers if layer.holds(path)), None)


def included(tree: Tree, path: str, bracket: str, name: str) -> str | None:
    """The path in the repository that an include means; "" for a header from outside; None if there is no such file. Examples are copied to other
    places: a header of theirs lies beside them."""
    beside = [path.rpartition("/")[0] + "/" + name] if path.startswith("examples/") else []
    for path in (name, "include/" + name, *beside):
        if path in tree.files:
            return path
    return "" if bracket == "<" and not name.startswith("cenote/") else None


def check_file(tree: Tree, path: str, layers: list[Layer]) -> list[str]:
    own = layer_of(path, layers)
    if not own:
        return [f"{path}: in no layer of tools/check/layers.txt"]
    problems = []
    for number, line in enumerate(tree.lines(path), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = included(tree, path, *match.groups())
        if target is None:
            problems.append(f"{path}:{number}: {match[2]} is no file of the repository (paths start at its root)")
            continue
        other = layer_of(target, layers) if target else None
        seen = other.name if other else "cuda" if match[2] == "cuda.h" else None
        if seen and not own.may_see(seen):
            problems.append(f"{path}:{number}: layer {own.name} includes {match[2]} of layer {seen}")
    return problems


def check(tree: Tree) -> Report:
    layers = read_layers(tree.text("tools/check/layers.txt"))
    files = [path for path in tree.ending(".c", ".h", ".hpp", ".def") if "/" in path]
    report = Report(f"includes of {len(files)} files, {len(layers)} layers")
    names = {layer.name for layer in layers} | {"cuda", "*"}
    for layer in layers:
        report.problems += [f"layers.txt: {layer.name} names {name}, which is no layer" for name in sorted(layer.sees - names)]
    for path in files:
        report.problems += check_file(tree, path, layers)
    return report
