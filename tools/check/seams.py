"""Checks that python/cenote/torch is the one door to PyTorch: no other module of the package writes a private name of PyTorch as code, or replaces an
attribute of PyTorch's. Private names are strings, which the table (seams.def) has, and the register (patches.py) replaces what is replaced."""
import ast
import re

from tree import Report, Tree

PACKAGE, DOOR = "python/cenote/", "python/cenote/torch/"
TABLE = DOOR + "seams.def"
ROOTS = {"torch", "dist", "c10d"}  # names of modules of PyTorch's, and of attributes that hold one
OWN = {"self", "os", "Arguments"}  # may be set by name: an object's own attributes, those of Python that a dry run replaces, a class of ours
FREE = {"torch._dynamo"}  # imported early to save time; nothing needs it
OTHERS = {"_replace", "_asdict", "_getframe", "_current_frames", "_exit", "_actions", "_bootstrap", "_fields_", "_setupstate", "_attempt_allocation",
          "_total", "_mem_pools"}  # private names of Python's, and of libraries other than PyTorch
PRIVATE = re.compile(r"_[^_]\w*$|_$")
NAME = re.compile(r"torch(\.\w+)+$")
CALLS = {"begin": 0, "is_whole": 0, "why_not": 0, "replace": 0, "around": 0}  # functions of the door whose first argument is a feature
MODULES = {"features", "patches"}


def is_private(part: str) -> bool:
    return bool(PRIVATE.match(part))


def read_table(text: str) -> tuple[dict[str, list[tuple[str, str]]], dict[str, str]]:
    """By feature its names, each with its probe; and the test of each feature."""
    rows: dict[str, list[tuple[str, str]]] = {}
    tests: dict[str, str] = {}
    feature = ""
    for line in text.splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if words[0] == "feature":
            feature = words[1]
            rows[feature] = []
        elif words[0] == "test":
            tests[feature] = words[1]
        elif words[0] != "lost":
            rows[feature].append((words[0], words[1]))
    return rows, tests


def chain(node: ast.expr) -> tuple[str, list[str]]:
    """The name at which `a.b.c` begins, and its parts. An attribute `torch`, as in self.torch.cuda, is a beginning, too."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        if node.attr in ROOTS:
            return node.attr, parts[::-1]
        parts.append(node.attr)
        node = node.value
    return (node.id if isinstance(node, ast.Name) else ""), parts[::-1]


class File:
    """One module of the package: `problems`, and the words in it."""

    def __init__(self, path: str, text: str, known: set[str], features: set[str]) -> None:
        self.path, self.known, self.features = path, known, features
        self.problems: list[str] = []
        self.words: set[str] = set()
        self.own: set[str] = set()  # what is defined here
        self.asked: dict[str, int] = {}  # private attributes of objects, and the line of the last
        self.roots = set(ROOTS)
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                self.learn(node)
        for node in ast.walk(tree):
            self.look(node)

    def learn(self, node: ast.Assign) -> None:
        """`scaler = torch.amp.GradScaler`: another name for what is PyTorch's."""
        root, parts = chain(node.value)
        for target in node.targets:
            if root in ROOTS and parts and isinstance(target, ast.Name):
                self.roots.add(target.id)

    def say(self, node: ast.AST, text: str) -> None:
        self.problems.append(f"{self.path}:{getattr(node, 'lineno', 0)}: {text}")

    def look(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            self.words.add(node.attr)
            self.look_at_attribute(node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self.own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.own.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(name.split(".")[0] == "torch" and any(map(is_private, name.split("."))) for name in names):
                self.say(node, f"imports {names[0]}: a private name is looked up by cenote.torch.seams")
        elif isinstance(node, ast.Call):
            self.look_at_call(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.words.add(node.value)
            if NAME.match(node.value):
                self.words.update(node.value.split("."))
                if any(map(is_private, node.value.split("."))) and not self.is_known(node.value):
                    self.say(node, f"{node.value} is not in {TABLE}")

    def is_known(self, name: str) -> bool:
        """A row, the owner of one, or a public part of one."""
        return any(row == name or row.startswith(name + ".") or name.startswith(row + ".") for row in self.known | FREE)

    def look_at_attribute(self, node: ast.Attribute) -> None:
        root, parts = chain(node)
        if isinstance(node.ctx, ast.Store) and root == "self":
            self.own.add(node.attr)
        is_torchs = root in self.roots
        if isinstance(node.ctx, (ast.Store, ast.Del)) and is_torchs and parts:
            self.say(node, f"replaces {'.'.join(parts)} of PyTorch's: cenote.torch.patches does that")
        elif node.attr == "_C" or node.attr.startswith("_cuda_") or (is_torchs and is_private(node.attr) and node.attr != "_replace"):
            self.say(node, f"writes {node.attr}, a private name of PyTorch's: cenote.torch.seams looks it up")
        elif is_private(node.attr):
            self.asked[node.attr] = node.lineno

    def look_at_call(self, node: ast.Call) -> None:
        function, first = node.func, node.args[0] if node.args else None
        if isinstance(function, ast.Name) and function.id in ("setattr", "delattr") and not (isinstance(first, ast.Name) and first.id in OWN):
            self.say(node, f"{function.id} of what may be PyTorch's: cenote.torch.patches does that")
        if isinstance(function, ast.Attribute) and function.attr in CALLS and isinstance(function.value, ast.Name) and function.value.id in MODULES:
            if isinstance(first, ast.Constant) and first.value not in self.features:
                self.say(node, f"{first.value} is no feature of {TABLE}")


def check(tree: Tree) -> Report:
    rows, tests = read_table(tree.text(TABLE))
    known = {name for names in rows.values() for name, _ in names}
    files = [path for path in tree.ending(".py") if path.startswith(PACKAGE) and not path.startswith(DOOR)]
    read = [File(path, tree.text(path), known, set(rows)) for path in files]
    words = set().union(*(file.words for file in read))
    report = Report(f"{len(files)} modules, {sum(map(len, rows.values()))} private names of PyTorch in {len(rows)} features")
    report.problems += [problem for file in read for problem in file.problems]
    allowed = set().union(*(file.own for file in read), OTHERS, {part for name in known for part in name.split(".")})
    report.problems += [f"{file.path}:{line}: {name} is in no row of {TABLE}, if it is PyTorch's" for file in read
                        for name, line in file.asked.items() if name not in allowed]
    for feature, names in rows.items():
        if tests.get(feature) not in tree.files:
            report.problems.append(f"{TABLE}: {feature} has no test: {tests.get(feature)}")
        if feature not in words and any(not probe.startswith("header:") for _, probe in names):
            report.problems.append(f"{TABLE}: no module begins {feature}")
        report.problems += [f"{TABLE}: no module uses {name}" for name, probe in names
                            if not probe.startswith("header:") and not words & {name, name.rpartition('.')[2]}]
    return report
