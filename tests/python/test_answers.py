"""`cenote dry-run --json` for programs: its schema, docs/dry-run.schema.json, and `cenote.dry_run()`."""
import json
import os
import subprocess
import sys
import textwrap

import answers
import jsonschema
import pytest
from conftest import simulation

import cenote

TRAIN = """
    import argparse, torch
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    batch = parser.parse_args().batch_size
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(4))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(10):
        model(torch.randn(1024 * batch, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path, monkeypatch, nursed_python):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", nursed_python)
    monkeypatch.setenv("CENOTE_BUILD", str(simulation().parents[1]))
    return tmp_path / "train.py"


def schemas(node, path="", key=""):
    """All schemas in the schema: of objects, of parts of them, and those that others are made of."""
    if isinstance(node, dict):
        if key not in ("properties", "$defs"):
            yield path, node
        for name, inner in node.items():
            yield from schemas(inner, f"{path}.{name}", name if key not in ("properties", "$defs") else "")
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            yield from schemas(inner, f"{path}[{number}]")


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(answers.SCHEMA)
    used = {node["$ref"].rpartition("/")[2] for _, node in schemas(answers.SCHEMA) if "$ref" in node}
    assert used == set(answers.SCHEMA["$defs"])


def test_every_object_of_the_schema_is_closed():
    """A new key of the answer has to be written into the schema, and what is required has to be one of its keys."""
    for path, node in schemas(answers.SCHEMA):
        if "properties" in node:
            is_open_for_others = path in (".$defs.run_keys", ".$defs.search_keys")  # `run`, `answer` and `search` close them
            assert is_open_for_others or node.get("additionalProperties") is False or node.get("unevaluatedProperties") is False, path
            assert set(node.get("required", ())) <= set(node["properties"]), path
        elif node.get("type") == "object" or node.get("type") == ["object", "null"]:
            assert isinstance(node.get("additionalProperties"), dict), path


def test_a_key_that_is_missing_or_new_is_found(script):
    found = cenote.dry_run(script, "2GiB", "--steps", "1")
    answers.check(found)
    for part in (found, found["processes"][0], found["processes"][0]["devices"]["0"]):
        part["new"] = 1
        with pytest.raises(AssertionError, match="new"):
            answers.check(found)
        del part["new"]
        name = "live_peak" if "live_peak" in part else "steps"
        kept = part.pop(name)
        with pytest.raises(AssertionError, match=name):
            answers.check(found)
        part[name] = kept
    jsonschema.validate(found, answers.SCHEMA)


# --- from Python

pytestmark = [pytest.mark.torch, pytest.mark.simulation]


@pytest.mark.parametrize("gpu, options, kind, verdict", [
    ("2GiB", (), "answer", "fits"),
    ("700MiB", (), "answer", "fits not"),
    ("800MiB", ("--advise=checkpointing,batch-argument", "--limit", "1GiB"), "answer", "fits not"),
    (["800MiB", "rtx4090"], (), "cards", "fits not"),
    (None, (), "cards", "fits"),
    ("2GiB", ("--search", "batch-size=8..64"), "search", None),
    ("2GiB", ("--search", "nothing=8..9"), "answer", None),
    ("2GiB", ("--world", "4", "--rank", "0,3"), "answer", "unknown"),
    ("2GiB", ("--allocators",), "answer", "fits"),
])
def test_each_kind_of_answer(script, gpu, options, kind, verdict):
    if options[-1:] == ("nothing=8..9",):
        script.write_text(script.read_text().replace("parse_args()", "parse_known_args()[0]"))
    if "--world" in options:
        script.write_text("import torch\n1 / torch.zeros(0, device='cuda').numel()")
    found = cenote.dry_run(script, gpu, *options)
    answers.check(found)
    assert answers.kind_of(found) == kind or found["changed_nothing"]
    assert found.get("verdict") == verdict
    if verdict == "unknown":
        assert "ZeroDivisionError" in found["why_unknown"]
    if options[:1] == ("--search",) and kind == "search":
        assert found["largest"] in range(8, 65) and not found["changed_nothing"]


def test_arguments(script):
    few, many = (cenote.dry_run([script, "--batch-size", number], "4GiB", "--steps", "2") for number in ("8", "32"))
    assert few["program"] == [str(script), "--batch-size", "8"] and few["steps"] == 2 and few["needed"] < many["needed"]


@pytest.mark.parametrize("program, gpu, options, why", [
    ("nothing.py", "2GiB", (), "nothing.py"),
    ("train.py", "2 apples", (), "'2 apples' is neither a size such as 80GiB nor a card"),
    ("train.py", "2GiB", ("--steps", "x"), "argument --steps: 'x' is no whole number"),
    ("-", "2GiB", (), "standard input"),
    ([], "2GiB", (), "no "),
])
def test_a_mistake_is_an_error_with_the_sentence_of_the_command(script, program, gpu, options, why):
    with pytest.raises(RuntimeError) as error:
        cenote.dry_run(program, gpu, *options)
    assert why in str(error.value) and "\n" not in str(error.value) and "Traceback" not in str(error.value)


def test_it_says_nothing_and_reads_nothing(script, clean):
    code = "import cenote, sys; print(cenote.dry_run('train.py', '2GiB', '--steps', '1')['verdict']); print(sys.stdin.read())"
    done = subprocess.run([sys.executable, "-c", code], input="given", capture_output=True, text=True, env={**os.environ, **clean}, check=False)
    assert (done.stdout, done.stderr) == ("fits\ngiven\n", ""), done


def test_what_the_file_of_json_has_is_the_answer(script, nursed_run):
    nursed_run("dry-run", "--quiet", "--gpu", "2GiB", "--json", "out.json", "train.py")
    found, called = json.loads((script.parent / "out.json").read_text()), cenote.dry_run("train.py", "2GiB")
    assert found.keys() == called.keys() and found["needed"] == called["needed"]
