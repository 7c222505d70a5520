"""Checks that each sentence of the public headers has a row in promises.txt: tests that hold it, why none can, or a dash if it promises nothing."""
import hashlib
import re

from tree import Report, Tree

TABLE = "tools/check/promises.txt"
HEADERS = ("cenote.h", "report.h", "share.h", "sleep.h", "host.h")
COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
EXAMPLE = re.compile(r"^ \*(?: {5}| {9})\S.*$", re.MULTILINE)   # code in a comment
LABEL = re.compile(r"^ \*   [A-Z][a-z]+ {2,}", re.MULTILINE)     # of a convention
END = re.compile(r'(?<=[.?!])\s+(?=["A-Z0-9`-])')
ROW = re.compile(r'([0-9a-f]{4}) "([^"]+)" +(\S.*)')
PLACES = ("tests/{}/test_{}.c", "tests/{}/test_{}.cpp", "tests/{}/test_{}.sh", "tests/{}/{}.c", "tests/{}/{}.def", "tests/{}/{}.py")
NO_TEST = "untried: "


def sentences(text: str) -> list[str]:
    """Of all comments. A ruler, a line of code and a comment of one word are none."""
    found = []
    for comment in COMMENT.findall(text):
        comment = LABEL.sub(" *\n", EXAMPLE.sub(" *", " *" + comment))
        lines = [re.sub(r"^ *\* ?", "", line).strip() for line in comment.split("\n")]
        for paragraph in "\n".join(lines).split("\n\n"):
            plain = re.sub(r"-{5,}", "", " ".join(paragraph.split())).strip()
            found += [sentence for sentence in END.split(plain) if " " in sentence]
    return found


def mark(sentence: str) -> str:
    return hashlib.sha1(sentence.encode()).hexdigest()[:4]


def start(sentence: str) -> str:
    """As many words as fit into 64 characters."""
    words = sentence.replace('"', "'")
    return words if len(words) <= 64 else words[:64].rpartition(" ")[0]


def missing(tree: Tree, test: str) -> bool:
    """Is there no such test? `folder/name case`: the case is a word of the test's file."""
    program, _, case = test.partition(" ")
    folder, _, name = program.partition("/")
    files = [place.format(folder, name) for place in PLACES if place.format(folder, name) in tree.files]
    return not any(re.search(rf"\b{re.escape(case)}\b", tree.text(path)) for path in files)


def check(tree: Tree) -> Report:
    report, held = Report(""), 0
    wanted: dict[str, list[str]] = {header: sentences(tree.text("include/cenote/" + header)) for header in HEADERS}
    rows: dict[str, list[tuple[str, str, str]]] = {header: [] for header in HEADERS}
    header = ""
    for number, line in enumerate(tree.text(TABLE).splitlines(), 1):
        if line in HEADERS:
            header = line
        elif match := ROW.fullmatch(line):
            rows[header].append(match.groups())
            for test in match[3].split(", ") if match[3] != "-" and not match[3].startswith(NO_TEST) else []:
                held += 1
                if missing(tree, test):
                    report.problems.append(f"{TABLE}:{number}: there is no test {test}")
        elif line and not line.startswith("#"):
            report.problems.append(f"{TABLE}:{number}: not a row")
    for header in HEADERS:
        there = [row[:2] for row in rows[header]]
        need = [(mark(sentence), start(sentence)) for sentence in wanted[header]]
        report.problems += [f'{TABLE}: {header} has a sentence without a row: {a} "{b}"' for a, b in need if (a, b) not in there]
        report.problems += [f'{TABLE}: {header} has no such sentence: {a} "{b}"' for a, b in there if (a, b) not in need]
    report.looked_at = f"{sum(map(len, wanted.values()))} sentences of {len(HEADERS)} headers, {held} tests that hold them"
    return report
