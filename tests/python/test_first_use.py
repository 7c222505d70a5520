"""The first use of a card: what it cannot do is found out before PyTorch's first tensor, remembered, and gets a fallback (inside/first_use.py)."""
import fcntl
import json
import os
import pathlib
import stat
import threading
import time

import pytest

from cenote.inside import first_use

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
    for fine in ("wsl-rdma", "fabric-invalid", "attribute-lies", "mapping-ceiling", "vmm-lies"):
        assert look(fine) == ("", "")  # libcenote finds these out by itself, each time
    assert len(verdicts()) == 6


@pytest.mark.parametrize("shape", ["capacity:3MiB,context_bytes:1MiB", "capacity:6MiB,context_bytes:1MiB"])
def test_a_card_that_is_full_has_no_verdict(run, tmp_path, verdicts, shape):
    """The next start has room, and is not told what came of the want of it."""
    (tmp_path / "look.py").write_text(LOOK)

    def started(shape):
        return run("run", "--quiet", tmp_path / "look.py", XDG_CACHE_HOME=str(tmp_path / "cache"), CENOTE_SIM=f"{shape},quirks:stale-aliases")
    done = started(shape)
    assert done.stdout == "\n" and "no verdict: " in done.stderr and "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr, done.stderr
    assert verdicts() == []
    assert started("capacity:8GiB").stdout == "aliases:off\n"


def test_a_stopped_process_holds_up_no_start(look, tmp_path, verdicts):
    """A verdict that is there is read without the lock."""
    look("stale-aliases")
    with open(tmp_path / "cache/cenote/cards/lock", "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert look("stale-aliases") == ("aliases:off", ALIASES)


def test_processes_share_a_try_that_fails(tmp_path, monkeypatch):
    """Eight ranks on a card that hangs wait for one try, not for eight."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tries = []

    def tried():
        tries.append(1)
        other.start()
        while other_came == []:
            time.sleep(0.01)
        raise ValueError("it hangs")

    def come_later():
        other_came.append(1)
        with pytest.raises(ValueError, match="it hangs"):
            first_use.remembered_or_tried("card.json")
        ended.append(1)
    other_came, ended, other = [], [], threading.Thread(target=come_later)
    monkeypatch.setattr(first_use, "tried", tried)
    with pytest.raises(ValueError, match="it hangs"):
        first_use.remembered_or_tried("card.json")
    other.join()
    assert (tries, ended) == ([1], [1])


def test_no_error_of_a_look_ends_the_program(monkeypatch):
    said = []
    monkeypatch.setattr(first_use, "key", lambda: {}["anything"])
    first_use.look(said.append)
    assert len(said) == 1 and "taken to work" in said[0]


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
