"""`cenote completion`, and what its files complete in real shells."""
import importlib.machinery
import importlib.util
import os
import pty
import shlex
import shutil
import subprocess
import time

import pytest
from conftest import ROOT
from patience import patience

from cenote import completion

SHELLS = ROOT / "python/cenote/shells"
SECONDS = 20


def quoted(name):
    """The file, as a word of any of the shells: the folder may have an apostrophe in its name."""
    return shlex.quote(str(SHELLS / name))


def test_the_files_are_those_of_the_parsers():
    loader = importlib.machinery.SourceFileLoader("write_completion", str(ROOT / "tools/completion/write"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    for shell, text in module.texts().items():
        assert (SHELLS / f"cenote.{shell}").read_text() == text.rstrip() + "\n", "tools/completion/write"
    assert {path.name for path in SHELLS.iterdir()} == {f"cenote.{shell}" for shell in completion.SHELLS}


def test_the_command_prints_them(run):
    done = run("completion", "zsh")
    assert (done.returncode, done.stdout) == (0, (SHELLS / "cenote.zsh").read_text())
    wrong = run("completion", "tcsh")
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1 and "'bash'" in wrong.stderr


class Terminal:
    """A shell that reads from a terminal, as TAB needs it."""

    def __init__(self, *command, folder):
        ours, theirs = pty.openpty()
        self.end, self.said = ours, ""
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb", "PS1": "", "HISTFILE": ""}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True)
        os.close(theirs)

    def type(self, text):
        os.write(self.end, text.encode())

    def wait_for(self, words):
        until = time.monotonic() + patience(SECONDS)
        os.set_blocking(self.end, False)
        while words not in self.said and time.monotonic() < until:
            try:
                self.said += os.read(self.end, 1 << 16).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.01)
        assert words in self.said, self.said

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.end)


@pytest.mark.parametrize("typed, completed", [
    ("cenote dry-run --unk\t", "cenote dry-run --unknown"), ("cenote dr\t", "cenote dry-run"),
    ("cenote run --allocator exp\t", "--allocator expandable"),
    ("cenote dry-run --gpu 8GiB scr\t", "--gpu 8GiB script.py"), ("cenote qualify --first\t", "qualify --first-use"),
])
def test_a_tab_in_bash(tmp_path, typed, completed):
    (tmp_path / "script.py").touch()
    shell = Terminal("bash", "--norc", "--noprofile", "-i", folder=tmp_path)
    try:
        shell.type(f". {quoted('cenote.bash')}; echo rea''dy\n")
        shell.wait_for("ready")
        shell.type(f"{typed}\x01: \x05; echo fin''ished\n")  # Ctrl-A and Ctrl-E: the line becomes one that does nothing
        shell.wait_for("finished")
        assert completed in shell.said
    finally:
        shell.close()


def need(shell):
    if not shutil.which(shell):
        (pytest.fail if os.environ.get("CENOTE_TEST_ALL") else pytest.skip)(f"no {shell} here; `tools/setup test` installs it on Debian")


def test_fish(tmp_path):
    need("fish")
    asked = f"source {quoted('cenote.fish')}; complete -C 'cenote dry-run --unk'; complete -C 'cenote do'"
    done = subprocess.run(["fish", "--no-config", "-c", asked], capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": str(tmp_path)})
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["--unknown", "doctor"], done.stderr


def test_a_tab_in_zsh(tmp_path):
    need("zsh")
    shell = Terminal("zsh", "-f", "-i", folder=tmp_path)
    try:
        shell.type(f"PS1=; bindkey -e; autoload -Uz compinit; compinit -u -D; eval \"$(cat {quoted('cenote.zsh')})\"; echo rea''dy\n")
        shell.wait_for("ready")
        shell.type("cenote dry-run --unk\t\x01: \x05; echo fin''ished\n")
        shell.wait_for("finished")
        assert "--unknown" in shell.said
    finally:
        shell.close()
