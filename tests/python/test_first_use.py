"""The first use of a card: what it cannot do is found out before PyTorch's first tensor, remembered, and gets a fallback (inside/first_use.py)."""
import json
import os
import pathlib
import stat
import sys

import pytest

LOOK = """
import os, sys
from cenote.inside import first_use
first_use.look(lambda text: print(text, file=sys.stderr))
print(os.environ.get("CENOTE_CONF", ""))
"""
SAID = "cenote: Simulated GPU 8192 MiB works only without {}, so CENOTE_CONF says {} from here on. `cenote qualify` says more\n"
ALIASES = SAID.format("aliases", "aliases:off")


@pytest.fixture
def look(run, tmp_path):
    """look(QUIRK, NAME=VALUE...): what a first use prints to stdout, the value of CENOTE_CONF after it, and to stderr."""
    (tmp_path / "look.py").write_text(LOOK)

    def call(quirk, **variables):
        quirks = ["--quirk", quirk] if quirk else []
        done = run("run", "--sim", "8GiB", *quirks, "--quiet", tmp_path / "look.py", **{"XDG_CACHE_HOME": str(tmp_path / "cache"), **variables})
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr
    return call


@pytest.fixture
def verdicts(tmp_path):
    def call() -> list[pathlib.Path]:
        return sorted((tmp_path / "cache" / "cenote" / "cards").glob("*.json"))
    return call


def test_each_quirk_has_its_fallback(look, verdicts):
    assert look("stale-aliases") == ("aliases:off", ALIASES)
    conf, said = look("vmm-lies")
    assert conf == "provider:plain" and said == SAID.format("pages, aliases, pages that move", conf)
    for fine in ("wsl-rdma", "fabric-invalid", "attribute-lies", "mapping-ceiling"):
        assert look(fine) == ("", "")  # libcenote finds these out by itself, each time
    assert len(verdicts()) == 6


def test_a_verdict_is_remembered_and_believed(look, verdicts):
    look("stale-aliases")
    (file,) = verdicts()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(json.dumps({"conf": "provider:plain", "text": "this card"}))
    assert look("stale-aliases") == ("provider:plain", "cenote: this card, so CENOTE_CONF says provider:plain from here on. "
                                     "`cenote qualify` says more\n")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"conf": 1, "text": "x"}', '{"conf": "limit:1", "text": "x"}', '{"conf": ""}', '{"more": 1}'])
def test_a_damaged_verdict_is_tried_again(look, verdicts, text):
    look("stale-aliases")
    (file,) = verdicts()
    file.write_text(text)
    assert look("stale-aliases") == ("aliases:off", ALIASES)
    assert json.loads(file.read_text())["conf"] == "aliases:off"


def test_a_cache_that_others_can_write_to_is_not_believed(look, verdicts, tmp_path):
    look("stale-aliases")
    (file,) = verdicts()
    file.write_text(json.dumps({"conf": "provider:plain", "text": "planted"}))
    os.chmod(tmp_path / "cache" / "cenote", 0o777)
    assert look("stale-aliases") == ("aliases:off", ALIASES)


def test_what_the_user_decided_stays(look, verdicts):
    for conf in ("aliases:on", "limit:1GiB, provider : vmm", "provider:guard"):
        assert look("stale-aliases", CENOTE_CONF=conf) == (conf, "")
    assert look("") == ("", "")  # a simulated GPU without quirks is no unknown card
    assert verdicts() == []
    assert look("stale-aliases", CENOTE_CONF="limit:1GiB")[0] == "limit:1GiB,aliases:off"


def test_a_look_that_fails_is_told_and_not_remembered(look, verdicts, tmp_path):
    """The driver's calls fail, as on a card that another process uses exclusively."""
    conf, said = look("stale-aliases", CENOTE_DRIVER=str(tmp_path / "no driver"))
    assert conf == "" and len(said.splitlines()) == 1 and "taken to work: cenote qualify: nothing can be tried" in said, said
    assert verdicts() == []


def test_without_a_device_there_is_nothing_to_tell(look, verdicts):
    assert look("stale-aliases", CUDA_VISIBLE_DEVICES="") == ("", "")
    assert verdicts() == []


def test_processes_that_start_at_once_try_the_card_once(look, run, tmp_path, verdicts):
    script = tmp_path / "many.py"
    command = f"[sys.executable, {str(tmp_path / 'look.py')!r}]"
    script.write_text("import subprocess, sys\n"
                      f"all = [subprocess.Popen({command}, stdout=-1, stderr=-1, text=True) for _ in range(4)]\n"
                      "print(*{each.communicate()[0].strip() for each in all})\n")
    done = run("run", "--sim", "8GiB", "--quirk", "stale-aliases", "--quiet", script, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.stdout == "aliases:off\n", done.stderr
    assert len(verdicts()) == 1
