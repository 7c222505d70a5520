"""tools/test: what `make test` says at its end of lanes that passed, failed, skipped tests, or had none. `make` is a stand-in here."""
import importlib.machinery
import importlib.util
import re

import pytest
from conftest import ROOT

MAKE = """#!/bin/sh
case $2 in
lane-good) cat >"$CENOTE_TEST_REPORTS/good.xml" <<END
<testsuites><testsuite><testcase classname="a" name="quick" time="0.5"/><testcase classname="a" name="slow" time="9"/>
<testcase classname="a" name="left" time="0"><skipped message="no hwloc here"/></testcase>
<testcase classname="a" name="left, too" time="0"><skipped message="no hwloc here&#10;more"/></testcase></testsuite></testsuites>
END
;;
lane-bad) echo a complaint; cat >"$CENOTE_TEST_REPORTS/bad.xml" <<END
<testsuite><testcase classname="b" name="b" time="1"><failure>x</failure></testcase></testsuite>
END
exit 1 ;;
lane-plain-bad) exit 1 ;;
lane-busy) sh -c 'i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done' ;;
esac
"""


@pytest.fixture
def tested(tmp_path, monkeypatch, capsys):
    """tested(LANE...): the exit status, and the lines that were printed."""
    loader = importlib.machinery.SourceFileLoader("tools_test", str(ROOT / "tools/test"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "lanes")  # not the one of the `make test` that runs this
    monkeypatch.setattr(module, "factor", lambda jobs: 3)
    for name in ("CENOTE_TEST_PATIENCE", "CENOTE_TEST_HANGS"):
        monkeypatch.setenv(name, "1")  # tools/test sets them for its lanes
    (tmp_path / "make").write_text(MAKE)
    (tmp_path / "make").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return lambda *lanes: (module.main(2, list(lanes)), capsys.readouterr().out.splitlines())


def test_what_passed_is_counted_and_what_was_skipped_is_said(tested):
    status, lines = tested("good", "plain")
    assert status == 0 and lines[-1] == "3 passed, 0 failed"  # a lane without tests counts as one
    assert lines[lines.index("The slowest tests, in seconds:") + 1] == "     9.0  good: a::slow"
    assert lines[-3:-1] == ["Skipped tests, which are not counted, by reason:", "       2  no hwloc here"]


def test_what_failed_is_shown(tested):
    status, lines = tested("bad", "plain-bad", "plain")
    assert status == 1 and lines[-1] == "1 passed, 2 failed"
    assert "a complaint" in lines and "    bad: b" in lines and "    plain-bad: as a whole" in lines
    assert not [line for line in lines if line.startswith("Skipped")]


def test_the_processor_time_of_a_lane_is_that_of_its_programs(tested):
    _, lines = tested("busy", "plain")
    spent = {name: float(seconds) for line in lines for name, seconds in re.findall(r"passed  (\w+): .*; ([\d.]+) s of processor time", line)}
    assert spent["busy"] > 2 * spent["plain"], spent


# --- tools/unchanged

@pytest.fixture
def unchanged(tmp_path, monkeypatch):
    loader = importlib.machinery.SourceFileLoader("tools_unchanged", str(ROOT / "tools/unchanged"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize("word", ["version", "version_info"])  # of venv, of uv
def test_another_python_has_another_pytorch(unchanged, tmp_path, word):
    """python/requirements/torch.txt chooses by the version. The last figure chooses nothing."""
    (tmp_path / ".venv").mkdir()

    def state(version):
        (tmp_path / ".venv/pyvenv.cfg").write_text(f"home = /somewhere/3.9/bin\n{word} = {version}\n")
        return unchanged.state()
    assert state("3.10.13") != state("3.11.7") == state("3.11.9")


def test_another_machine_has_another_state(unchanged, monkeypatch):
    here = unchanged.state()
    monkeypatch.setattr(unchanged.platform, "machine", lambda: "other")
    assert unchanged.state() != here
