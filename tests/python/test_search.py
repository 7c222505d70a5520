"""`cenote dry-run --search`: which number it changes, and what it says if that changes nothing."""
import json
import subprocess
import sys
import textwrap

import pytest

from cenote.base.mistake import Mistake
from cenote.fit import number

SCRIPT = '''"""Its text."""
from __future__ import annotations
import sys
BATCH = 128
ROWS: int = 3
FLAG = True
SIZE = BATCH * 2

def train(width=7, *, depth=9):
    return dict(batch_size=16), {"lines": 4}

if __name__ == "__main__":
    print(BATCH, ROWS, train(), train.__defaults__, sys.argv[1:], __spec__, sys.modules["__main__"].__file__ == __file__)
    raise ValueError(sys.path[0])
'''


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def chosen(text, *program):
    found = number.chosen(number.read(text), program or ["train.py"])
    return found.kind, found.what


@pytest.mark.parametrize("text, program, kind, what", [
    ("BATCH=8..9", (), number.CONSTANT, "`BATCH` in train.py:4, which is 128"),
    ("ROWS=8..9", (), number.CONSTANT, "`ROWS` in train.py:5, which is 3"),
    ("batch_size=8..9", (), number.CONSTANT, "`batch_size` in train.py:10, which is 16"),
    ("lines=8..9", (), number.CONSTANT, "`lines` in train.py:10, which is 4"),
    ("width=8..9", (), number.CONSTANT, "`width` in train.py:9, which is 7"),
    ("depth=8..9", (), number.CONSTANT, "`depth` in train.py:9, which is 9"),
    ("batch_size=8..9", ("train.py", "--batch-size", "4"), number.ARGUMENT, "the argument batch_size"),
    ("SIZE=8..9", (), number.VARIABLE, "the environment variable SIZE"),
    ("FLAG=8..9", (), number.VARIABLE, "the environment variable FLAG"),
    ("other=8..9", (), number.ARGUMENT, "the argument other"),
    ("BATCH=8..9", ("-m", "train"), number.VARIABLE, "the environment variable BATCH"),
    ("2=8..9", ("train.py", "x", "64"), number.PLACE, "argument 2 of the command line, which is 64"),
    ("8..9", ("train.py", "x", "64"), number.PLACE, "argument 2 of the command line, which is 64"),
    ("8,9", ("train.py", "x"), number.BATCH, ""),
])
def test_which_number(script, text, program, kind, what):
    assert chosen(text, *program) == (kind, what)


def test_an_option_of_the_script_is_an_argument(script):
    script.write_text("parser.add_argument('--batch-size', type=int)\nrun(batch_size=8)\n")
    assert chosen("batch_size=8..9")[0] == number.ARGUMENT


@pytest.mark.parametrize("text, program, words", [("8..9", ("t.py", "1", "2"), "say which: 1=LOW..HIGH for 1, 2=LOW..HIGH for 2"),
                                                  ("2=8..9", ("t.py", "1"), "argument 2 of the program is not there"),
                                                  ("1=8..9", ("t.py", "x"), "argument 1 of the program is 'x', no number")])
def test_no_such_number(text, program, words):
    with pytest.raises(Mistake, match=words):
        chosen(text, *program)


def test_a_number_by_its_place_is_replaced():
    search = number.chosen(number.read("2=8..9"), ["-m", "train", "x", "64", "y"])
    assert number.applied(search, ["-m", "train", "x", "64", "y"], 9) == (["-m", "train", "x", "9", "y"], {})


def test_a_batch_that_a_run_has_seen():
    search = number.chosen(number.read("8..64"), ["train.py"])
    batch = {"why_not": "", "value": 16, "line": "TrainingArguments(per_device_train_batch_size=8)"}
    found = number.looked(search, {"batch": batch})
    assert found.name == "per_device_train_batch_size" and number.applied(found, ["train.py"], 40)[1] == {"CENOTE_DRY_REMEDIES": "batch=16:40"}
    assert found.what == "the batches of the DataLoader, which are 16: TrainingArguments(per_device_train_batch_size=8)"
    argument = {"why_not": "", "argument": "batch-size", "value": 4}
    assert number.looked(search, {"batch": batch, "batch-argument": argument})[::2] == ("batch-size", number.ARGUMENT, 0)
    with pytest.raises(Mistake, match="no DataLoader gave one; name one"):
        number.looked(search, {"batch": {"why_not": "no DataLoader gave one"}})


def test_a_number_in_the_script_is_another_one_in_its_run(script, clean):
    """In memory: the file, its lines and what a script knows of itself stay as they are."""
    def run(setting):
        return subprocess.run([sys.executable, "train.py", "8"], env={**clean, "CENOTE": "off", **setting}, cwd=script.parent, capture_output=True,
                              text=True)
    before, after = run({}), run({"CENOTE_DRY_CONSTANT": f"BATCH=5={script}"})
    assert before.stdout == "128 3 ({'batch_size': 16}, {'lines': 4}) (7,) ['8'] None True\n", before.stderr
    assert after.stdout == before.stdout.replace("128", "5"), after.stderr
    assert 'train.py", line 14, in <module>\n    raise ValueError' in after.stderr and after.stderr.endswith(before.stderr.splitlines()[-1] + "\n")
    assert run({"CENOTE_DRY_CONSTANT": f"batch_size=5={script}"}).stdout == before.stdout.replace("16", "5")
    assert script.read_text() == SCRIPT


# --- whole searches

MODEL = """
    import sys, torch
    BATCH = 4
    def train(batches):
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for x in batches:
            model(x.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    def zeros(rows):
        for step in range(6):
            yield torch.zeros(rows * 1024, 1024, device="cuda")
"""


@pytest.fixture
def searched(run, nursed_run, tmp_path):
    def call(code, asked, *arguments, fresh=False):
        (tmp_path / "train.py").write_text(textwrap.dedent(MODEL + code))
        done = (run if fresh else nursed_run)("dry-run", "--gpu", "1GiB", "--search", asked, "--json", "out.json", "train.py", *arguments)
        return done, json.loads((tmp_path / "out.json").read_text()) if (tmp_path / "out.json").exists() else {}
    return call


@pytest.mark.torch
@pytest.mark.simulation
def test_search_of_a_number_by_its_place(searched):
    done, found = searched("    train(zeros(int(sys.argv[1])))", "8..128", "4")
    best = found["largest"]
    assert done.returncode == 0 and 8 < best < 128 and found["tried"][str(best + 1)]["verdict"] == "fits not", done.stdout + done.stderr
    assert "  what was changed: argument 1 of the command line, which is 4\n" in done.stdout and found["search"] == "1"


@pytest.mark.torch
@pytest.mark.simulation
def test_search_of_what_changes_nothing_is_no_answer(searched):
    done, found = searched("    train(zeros(2))", "1=8..128", "4")
    assert done.returncode == 2 and done.stdout.splitlines()[2].startswith("no answer: 1 changed nothing: peak "), done.stdout
    assert done.stdout.splitlines()[2].endswith(" with 8, 32, 128") and "largest that fits" not in done.stdout


@pytest.mark.torch
@pytest.mark.simulation
def test_search_of_the_batch_of_a_loader(searched):
    done, found = searched("    train(torch.utils.data.DataLoader(torch.zeros(1, 1024, 1024).expand(700, -1, -1), batch_size=4))", "8,16,200")
    assert (done.returncode, found["largest"]) == (0, 16), done.stdout + done.stderr
    assert "largest that fits: batch_size=16, " in done.stdout
    assert "the batches of the DataLoader, which are 4: DataLoader(..., batch_size=" in done.stdout


@pytest.mark.deep
@pytest.mark.torch
@pytest.mark.simulation
def test_search_of_a_number_in_the_script(searched):
    done, found = searched("    train(zeros(BATCH))", "BATCH=8,999", fresh=True)
    assert (done.returncode, found["largest"]) == (0, 8) and "what was changed: `BATCH` in train.py:3, which is 4" in done.stdout, done.stdout


@pytest.mark.torch
@pytest.mark.simulation
def test_search_without_a_number_to_change(searched):
    done, _ = searched("    train(zeros(2))", "8..128")
    assert done.returncode == 2 and "no number to change was found" in done.stderr and done.stdout == ""


@pytest.mark.torch
@pytest.mark.simulation
def test_search_on_several_cards(nursed_run, tmp_path):
    """Each card has what a search on it alone finds, and what needs more than a card has is not tried there."""
    (tmp_path / "train.py").write_text(textwrap.dedent(MODEL + "    train(zeros(int(sys.argv[1])))"))

    def search(gpu):
        done = nursed_run("dry-run", "--gpu", gpu, "--search", "1=8..128", "--json", "out.json", "train.py", "4", SHORT=1)
        return done, json.loads((tmp_path / "out.json").read_text())
    done, found = search("1GiB,600MiB,800MiB")
    largest = [one["largest"] for one in found["searches"]]
    assert done.returncode == 1, done.stdout + done.stderr
    assert largest == [search("1GiB")[1]["largest"], None, search("800MiB")[1]["largest"]] and largest[2] < largest[0]
    assert str(largest[0] + 1) not in found["searches"][1]["tried"]
    rows = [line.split() for line in done.stdout.splitlines()[3:6]]
    assert [row[:4] for row in rows] == [["1GiB", "1.00", "GiB", str(largest[0])], ["600MiB", "600.0", "MiB", "none"],
                                         ["800MiB", "800.0", "MiB", str(largest[2])]], done.stdout
