"""Whether what `cenote dry-run --json` wrote is as docs/dry-run.schema.json says. conftest.py asks that of each file that a test has written."""
import functools
import json
import pathlib

import jsonschema

SCHEMA = json.loads((pathlib.Path(__file__).resolve().parents[2] / "docs/dry-run.schema.json").read_text())


@functools.cache
def validator(kind):
    """Of one kind: a list of all that none of three kinds has would say little."""
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]})


def kind_of(content):
    return "searches" if "searches" in content else "search" if "search" in content else "cards" if "cards" in content else "answer"


def check(content):
    kind = kind_of(content)
    said = [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in validator(kind).iter_errors(content)]
    assert not said, f"no {kind} of docs/dry-run.schema.json:\n" + "\n".join(said[:8])


def check_file(path):
    if path.is_file():
        text = path.read_text()
        if text:
            check(json.loads(text))
