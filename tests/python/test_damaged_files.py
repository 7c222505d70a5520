"""Damaged snapshots and traces: cut off, with changed bytes, values of another kind, numbers out of all bounds, parts that are missing, double, or
inside themselves. A command that reads one must print one line and end with a status; a traceback is a failure.

The damage is random: DAMAGES_SEED=N in the environment sets the seed, DAMAGES=N the number of tries.
"""
import contextlib
import gzip
import io
import json
import math
import os
import pickle
import random

import pytest

from cenote.replay import torch_trace
from cenote.replay.trace_file import BrokenTrace
from cenote.view import memory_viz, viewer
from test_memory_viz import files  # noqa: F401  (a fixture: a pool's own snapshot and trace)
from test_view_command import small_records, torch_snapshot, trace_of

SEED = int(os.environ.get("DAMAGES_SEED", "1"))
TRIES = int(os.environ.get("DAMAGES", "250"))
VALUES = (None, True, False, -1, 0, 1, 7, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200, -(1 << 63), 0.5, 1e308, math.inf,
          -math.inf, math.nan, "", "x", "-5", "9" * 400, "\ud800", "\x00\x1b[2J", "</script>", [], {}, [[]], [None], {"": {}},
          [1, [2, [3]]], b"bytes", ())

FIELDS = ("", "-1", "nan", "inf", "1e9", str(1 << 63), "9" * 5000, "%", "%GG", "x", "\x00", "0x10", " 1", "१")


def places(value, found):
    """Every container in `whole`, with each of its keys."""
    if isinstance(value, dict):
        found.extend((value, key) for key in value)
        for child in list(value.values()):
            places(child, found)
    elif isinstance(value, list):
        found.extend((value, at) for at in range(len(value)))
        for child in value:
            places(child, found)
    return found


def damage(whole, choose, cycles):
    """Makes one to three random changes; a later change may hit an earlier one."""
    for _ in range(choose.randint(1, 3)):
        table, key = choose.choice(places(whole, []) or [({}, None)])
        how = choose.randrange(7)
        if how < 3:
            table[key] = choose.choice([v for v in VALUES if cycles or not isinstance(v, (bytes, tuple))])
        elif how == 3 and isinstance(table[key], int):
            table[key] = table[key] * choose.choice((-1, 2, 1 << 40)) + choose.choice((-1, 0, 1))
        elif how == 4:
            del table[key]
        elif how == 5 and isinstance(table, list):
            table.insert(choose.randrange(len(table) + 1), table[key])
        elif how == 6 and cycles:
            table[key] = choose.choice((table, whole))
            return whole  # the value now contains itself, so that `places` would not end
    return whole


def cut_or_changed(data, choose):
    """Cuts off the end, or changes, removes or doubles bytes."""
    data = bytearray(data)
    if choose.random() < 0.3:
        return bytes(data[:choose.randrange(len(data))])
    for _ in range(choose.choice((1, 1, 2, 8))):
        at = choose.randrange(len(data))
        how = choose.randrange(4)
        if how == 0:
            data[at:at + choose.randrange(1, 9)] = b""
        elif how == 1:
            data[at:at] = data[at:at + choose.randrange(1, 40)]
        else:
            data[at] = choose.choice([0, 0x2D, 0x7F, 0x80, 0xFF, 0x39, choose.randrange(256)])
        if not data:
            break
    return bytes(data)


def damaged(data, choose):
    """The bytes of a damaged file: its values are changed if its format is known, its bytes otherwise."""
    if choose.random() < 0.4:
        return cut_or_changed(data, choose)
    if data[:1] == b"{":
        return json.dumps(damage(json.loads(data), choose, False)).encode("utf-8", "surrogatepass")
    if data[:1] == b"\x80":
        return pickle.dumps(damage(pickle.loads(data), choose, True))
    lines = data.decode("utf-8").split("\n")
    fields = lines[at := choose.randrange(len(lines))].split(",")
    fields[choose.randrange(len(fields))] = choose.choice(FIELDS)
    lines[at] = ",".join(fields)
    return "\n".join(lines).encode("utf-8")


def ended(call):
    """Runs a command in this process. Returns its status and its standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            status = call()
        except SystemExit as end:
            status = end.code
    return status, said.getvalue()


def judge(call, path, what):
    try:
        status, said = ended(call)
    except BaseException as problem:
        raise AssertionError(f"{what}: {type(problem).__name__}: {problem}; kept as {path}") from problem
    assert status in (0, 2), f"{what}: {path}"
    assert said.count("\n") == (status == 2) and "Traceback" not in said, f"{what}: {said}"
    return status


def sample(kind, files=None):  # noqa: F811
    if kind == "pickle":
        return pickle.dumps(torch_snapshot())
    if kind == "trace":
        return trace_of(small_records()).encode()
    with open(files[0 if kind == "snapshot" else 2], "rb") as file:
        return file.read()


def view_all(kind, data, tmp_path):
    statuses = {0: 0, 2: 0}
    choose = random.Random(f"{SEED} {kind}")
    for attempt in range(TRIES):
        content = damaged(data, choose)
        path = tmp_path / f"{kind}-{attempt}"
        path.write_bytes(gzip.compress(content, 1) if attempt % 10 == 0 else content)
        page = tmp_path / "page.html"
        statuses[judge(lambda: viewer.main([str(path), "-o", str(page)]), path, f"seed {SEED}, {kind} {attempt}")] += 1
        path.unlink()
    assert statuses[2] > TRIES // 10  # most damage is found; some only changes a number, which the page then shows
    return statuses


@pytest.mark.parametrize("kind", ["pickle", "trace"])
def test_view_of_damaged_files(kind, tmp_path):
    view_all(kind, sample(kind), tmp_path)


@pytest.mark.simulation
@pytest.mark.parametrize("kind", ["snapshot", "recorded"])
def test_view_of_what_cenote_wrote_and_was_damaged(kind, files, tmp_path):  # noqa: F811
    view_all(kind, sample(kind, files), tmp_path)


@pytest.mark.simulation
def test_damaged_snapshots_for_pytorchs_viewer(files, tmp_path):  # noqa: F811
    choose = random.Random(f"{SEED} memory_viz")
    for attempt in range(TRIES):
        snapshot, trace = tmp_path / "damaged.json", tmp_path / "damaged.csv"
        snapshot.write_bytes(damaged(sample("snapshot", files), choose) if attempt % 3 else sample("snapshot", files))
        trace.write_bytes(damaged(sample("recorded", files), choose))
        arguments = [str(snapshot), str(tmp_path / "picture.pickle"), *([str(trace)] if attempt % 2 else [])]
        try:
            status, said = ended(lambda: memory_viz.main(arguments))
        except BaseException as problem:
            raise AssertionError(f"seed {SEED}, memory_viz {attempt}: {type(problem).__name__}: {problem}") from problem
        assert not status and not said or status and said.count("\n") == 1 or isinstance(status, str) and "\n" not in status, (attempt, status, said)


def test_damaged_snapshots_for_a_replay(tmp_path):
    """`cenote replay` reads the files before it starts a process."""
    choose = random.Random(f"{SEED} replay")
    path = tmp_path / "damaged.pickle"
    refused = 0
    for attempt in range(TRIES):
        path.write_bytes(damaged(sample("pickle"), choose))
        try:
            with open(path, "rb") as file:
                for _ in torch_trace.records(str(path), file):
                    pass
        except BrokenTrace as problem:
            assert str(problem) and "\n" not in str(problem)
            refused += 1
        except BaseException as problem:
            raise AssertionError(f"seed {SEED}, replay {attempt}: {type(problem).__name__}: {problem}") from problem
    assert refused > TRIES // 10
