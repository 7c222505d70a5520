"""Checks that everything that documents name in `backticks` exists: paths, files, identifiers, and verbs of make."""
import fnmatch
import functools
import re

from tree import Report, Tree

SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.*-]*(/[\w.*-]+)+/?|[\w-]+/")
FILE = re.compile(r"[\w.*-]+\.(c|h|cpp|hpp|py|def|md|txt|map|csv|cmake|sh|json)")
IDENTIFIER = re.compile(r"([A-Za-z]\w*_\w+)(\(\))?")
CUDA = re.compile(r"(cu[A-Z]\w+|CUDA_\w+|CU_\w+)(\(\))?")
VERB = re.compile(r"make ([a-z]+)")
MADE = re.compile(r"\.?/?(build[\w-]*|\.venv)(/.*)?")       # made by a build, so not in the tree
ELSEWHERE = re.compile(r"/(usr|proc|sys|dev|etc)/.*|cuda\.h")
SOURCES = (".c", ".h", ".def", ".cpp", ".hpp", ".py", ".cmake", ".txt", ".sh", "Makefile", "tools/setup", "tools/gpu", "tools/deep")


@functools.lru_cache(maxsize=None)
def words(tree: Tree) -> set[str]:
    texts = (tree.text(path) for path in tree.ending(*SOURCES))
    found = {word for text in texts for word in re.findall(r"\w+", text)}
    return found | {"CENOTE_" + word for word in found}     # errors.def writes OUT_OF_MEMORY for CENOTE_OUT_OF_MEMORY


@functools.lru_cache(maxsize=None)
def cuda_words(tree: Tree) -> set[str]:
    """Every word of cuda.h; empty if the build does not say where cuda.h is."""
    include = tree.build_setting("CENOTE_CUDA_INCLUDE")
    return set(re.findall(r"\w+", open(include + "/cuda.h").read())) if include else set()


def path_exists(tree: Tree, span: str, document: str) -> bool:
    folder = document.rpartition("/")[0]
    for name in (span.rstrip("/"), f"{folder}/{span}".rstrip("/"), "include/" + span):
        if any(fnmatch.fnmatch(path, name) or path.startswith(name + "/") for path in tree.files):
            return True
    return False


def is_missing(tree: Tree, span: str, document: str) -> bool:
    if MADE.fullmatch(span) or ELSEWHERE.fullmatch(span):
        return False
    if verb := VERB.match(span):
        return not re.search(rf"^{verb[1]}:", tree.text("Makefile"), re.MULTILINE)
    if FILE.fullmatch(span):
        return not any(fnmatch.fnmatch(path.rpartition("/")[2], span) for path in tree.files)
    if PATH.fullmatch(span):
        return not path_exists(tree, span, document)
    if match := CUDA.fullmatch(span):
        return bool(cuda_words(tree)) and match[1] not in cuda_words(tree) | words(tree)
    if match := IDENTIFIER.fullmatch(span):
        return match[1] not in words(tree)
    return False


def check(tree: Tree) -> Report:
    documents = [path for path in tree.ending(".md") if not path.startswith("traces/")]
    report, spans = Report(""), 0
    for path in documents:
        fenced = False
        for number, line in enumerate(tree.lines(path), 1):
            fenced ^= line.lstrip().startswith("```")
            for span in [] if fenced else SPAN.findall(line):
                spans += 1
                if is_missing(tree, span, path):
                    report.problems.append(f"{path}:{number}: `{span}` does not exist")
    report.looked_at = f"{spans} names in {len(documents)} documents"
    return report
