#!/bin/bash
# The table of deliberate bugs is true of the sources (tests/mutants/run --check), and one that is not is told from it. The bugs themselves
# are put in by `make mutants`.
set -u
cd "$(dirname "$0")/../.."
tests/mutants/run --check || exit 1

wrong=$(mktemp)
trap 'rm -f "$wrong"' EXIT
fails() { # TEXT-OF-A-TABLE WORDS
    printf '%b' "$1" > "$wrong"
    said=$(tests/mutants/run --check "$wrong" 2>&1) && { echo "passes: $1"; exit 1; }
    grep -qF -- "$2" <<< "$said" || { echo "instead of \"$2\": $said"; exit 1; }
}
row='file pool/clock/fence.c\nkind k\nbug b\n'
fails "mutant a\n${row}-no such text anywhere\n+\ntest clock/fence\n" 'has its text 0 times, not once'
fails "mutant a\n${row}-struct fences\n+\ntest clock/fence\n" 'times, not once'
fails "mutant a\n${row}-    return ++f->now;\n+    return ++f->now;\ntest clock/fence\n" 'it changes nothing'
fails "mutant a\n${row}-    return ++f->now;\n+    return f->now;\ntest pool/nothing\n" 'its test is not there: tests/pool/test_nothing.c'
fails "mutant a\n${row}-    return ++f->now;\n+    return f->now;\ntest clock/fence no_such_case\n" 'its test is not there: no_such_case'
fails "mutant a\n${row}test clock/fence\n" 'it lacks old'
fails "mutant a\nfiles pool/clock/fence.c\n" 'not understood'
fails '' '0 mutants'

# A test that does not end counts as caught only in a row that says so.
PYTHONDONTWRITEBYTECODE=1 python3 - "$wrong" <<'END' || exit 1
import importlib.machinery, importlib.util, pathlib, sys, tempfile
loader = importlib.machinery.SourceFileLoader("run", "tests/mutants/run")
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
loader.exec_module(run)

class Copy:
    tree, adapters = pathlib.Path("/"), pathlib.Path("/")
    def target(self, test): return []
    def make(self, targets): return True
    def outcome(self, test): return self.says

def judged(says, hangs):
    copy = Copy()
    copy.says = says
    pathlib.Path(sys.argv[1]).write_text("a")
    return run.judge(copy, run.table.Mutant("m", 1, file=sys.argv[1][1:], test="a/b", hangs=hangs, old=["a"], new=["b"]))

cases = [("passes", ""), ("fails", ""), ("hangs", ""), ("hangs", "a thread"), ("fails", "a thread")]
said = [judged(*case) for case in cases]
if said != ["SURVIVED", "caught", "TIMED OUT", "caught", "caught"]:
    sys.exit(f"how mutants are judged: {said}")

# A run that was cut off goes on where it was, as long as neither the sources nor the row have changed.
with tempfile.TemporaryDirectory() as folder:
    one, two = (run.table.Mutant(name, 1, file="f", test="a/b", old=[name], new=[]) for name in ("one", "two"))
    run.Kept(pathlib.Path(folder), "x").add(one, "caught", 1)
    with open(f"{folder}/kept.jsonl", "a") as file:
        file.write('\n{"key": "')
    kept, other = run.Kept(pathlib.Path(folder), "x"), run.Kept(pathlib.Path(folder), "y")
    left = [mutant.name for which in (kept, other) for mutant in (one, two) if which.key(mutant) not in which.said]
    if left != ["two", "one", "two"] or run.total([one], kept) != "1 mutants, 1 caught, 0 survived":
        sys.exit(f"what is left of a run that was cut off: {left}")
END
