"""The table of deliberate bugs, mutants.txt: reads it, and finds what in it is not true of a tree.

    mutant NAME
    file   the file it is put into
    kind   the group it counts in
    bug    what is broken, in words
    -      the line as it is; several such lines hang together. The text must occur once in the file: a part of a line will do
    +      what is there instead; none: the text is left out
    test   what notices: FOLDER/NAME [WORD] is a ctest and the cases of it that have WORD in their names; pytest FILE[::NAME] is a test under
           tests/ with cenote as PyTorch's allocator on the simulated GPU
    hangs  what in that test never ends, if it ends by no limit of its own; most tests do, and their rows have no such line
"""
import dataclasses
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
FIELDS = ("file", "kind", "bug", "test")


@dataclasses.dataclass
class Mutant:
    name: str
    line: int
    file: str = ""
    kind: str = ""
    bug: str = ""
    test: str = ""
    hangs: str = ""
    old: list[str] = dataclasses.field(default_factory=list)
    new: list[str] = dataclasses.field(default_factory=list)

    def put_into(self, text: str) -> str:
        return text.replace("\n".join(self.old), "\n".join(self.new))

    def is_of_torch(self) -> bool:
        """It is compiled by the Python package, not by the build."""
        return self.file.startswith(("plugins/torch/", "plugins/values/", "plugins/names/"))


class Wrong(Exception):
    """The table cannot be read."""


def read(path: pathlib.Path = HERE / "mutants.txt") -> list[Mutant]:
    mutants: list[Mutant] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        word, _, rest = line.partition(" ")
        if not line or line.startswith("#"):
            continue
        if word == "mutant" and re.fullmatch(r"[a-z0-9_]+", rest.strip()):
            mutants.append(Mutant(rest.strip(), number))
        elif mutants and word in (*FIELDS, "hangs") and rest.strip() and not getattr(mutants[-1], word):
            setattr(mutants[-1], word, rest.strip())
        elif mutants and line[0] in "-+":
            (mutants[-1].old if line[0] == "-" else mutants[-1].new).append(line[1:])
        else:
            raise Wrong(f"{path.name}:{number}: not understood: {line}")
    return mutants


def test_file(test: str) -> tuple[str, str]:
    """The source of a test, and a word that has to be in it."""
    words = test.split()
    if words[0] == "pytest":
        path, _, case = words[1].partition("::")
        return "tests/" + path, case.rpartition("::")[2].partition("[")[0]
    folder, _, name = words[0].partition("/")
    path = f"fuzz/fuzz_{name}.c" if folder == "fuzz" else f"tests/{folder}/test_{name}.c{'pp' if folder == 'cpp' else ''}" # tests/cpp is in C++
    return path, words[-1] if len(words) > 1 else ""


def problem_of(mutant: Mutant, root: pathlib.Path) -> str:
    """What is not true of it in this tree; empty when all is."""
    missing = [field for field in (*FIELDS, "old") if not getattr(mutant, field)]
    if missing:
        return f"it lacks {', '.join(missing)}"
    path = root / mutant.file
    count = path.read_text().count("\n".join(mutant.old)) if path.is_file() else 0
    if count != 1:
        return f"{mutant.file} has its text {count} times, not once"
    if mutant.old == mutant.new:
        return "it changes nothing"
    source, word = test_file(mutant.test)
    if not (root / source).is_file():
        return f"its test is not there: {source}"
    if word and not any(word in text.read_text(errors="replace") for text in (root / source).parent.glob("*.[cdhp]*") if text.is_file()):
        return f"its test is not there: {word} in {source}"
    return ""


def problems(mutants: list[Mutant], root: pathlib.Path) -> list[str]:
    found = [f"{m.name} (line {m.line}): {said}" for m in mutants if (said := problem_of(m, root))]
    names = [m.name for m in mutants]
    return found + [f"{name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
