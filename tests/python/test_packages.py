"""Which part of the package may import which: there is no circle, and a part imports only parts below it."""
import ast
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python/cenote"
# From the bottom up: each part imports only parts before it. The modules at the top of the package, which start things, come after all of them.
ORDER = ["base", "torch", "native", "simulated", "launch", "guard", "phantoms", "labels", "holders", "live", "view", "remedies", "inside", "fit",
         "replay", "integrations"]
BELOW = {"cenote.places", "cenote.built"}  # at the top of the package, but first in this order: `import cenote` loads only places


def name_of(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imports(path, of_types=True):
    """The modules that a file imports, also within functions."""
    tree = ast.parse(path.read_text())
    types = set()
    if not of_types:
        types = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
                 for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in types and node.module.partition(".")[0] == "cenote":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES or name in BELOW else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == "cenote")


def level(name):
    part = name.split(".")[1] if "." in name else ""
    return -1 if name in BELOW else ORDER.index(part) if part in ORDER else len(ORDER)


def test_every_folder_has_its_place():
    assert sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")) == sorted(ORDER)
    for name in ORDER:  # to import these packages loads no other module
        assert not [node for node in ast.parse((PACKAGE / name / "__init__.py").read_text()).body if not isinstance(node, ast.Expr)]


def test_a_part_imports_only_what_stands_before_it():
    above = [f"{name} imports {other}" for name, path in MODULES.items() for other in imports(path)
             if name not in BELOW and level(other) > level(name)]
    assert not above


def test_no_files_import_each_other_in_a_circle():
    reached = {name: set(imports(path, of_types=False)) - {name} for name, path in MODULES.items()}
    rest = dict(reached)
    while free := [name for name, others in rest.items() if not others & set(rest)]:
        for name in free:
            del rest[name]
    assert not rest
