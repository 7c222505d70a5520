"""`cenote completion`, and what it completes in real shells."""
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time

import pytest
from patience import patience

from cenote import completion

SECONDS = 20


@pytest.fixture(scope="module")
def quoted(tmp_path_factory):
    """What the command prints for a shell, in a file: its path, as a word of any of the shells. The folder has an apostrophe in its name."""
    folder = tmp_path_factory.mktemp("shell's")

    def file(shell):
        path = folder / f"cenote.{shell}"
        if not path.exists():
            path.write_text(completion.text(shell))
        return shlex.quote(str(path))
    return file


def test_the_command_prints_it(run):
    done = run("completion", "zsh")
    assert (done.returncode, done.stdout) == (0, completion.text("zsh")) and done.stdout.startswith("#compdef cenote\n")
    wrong = run("completion", "tcsh")
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1 and "'bash'" in wrong.stderr


def test_a_tree_without_shtab_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert completion.main(["bash"]) == 1
    assert capsys.readouterr() == ("", "cenote completion: in a tree it takes shtab, which `pip install shtab` installs\n")


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
def test_a_tab_in_bash(tmp_path, quoted, typed, completed):
    (tmp_path / "script.py").touch()
    shell = Terminal("bash", "--norc", "--noprofile", "-i", folder=tmp_path)
    try:
        shell.type(f". {quoted('bash')}; echo rea''dy\n")
        shell.wait_for("ready")
        shell.type(f"{typed}\x01: \x05; echo fin''ished\n")  # Ctrl-A and Ctrl-E: the line becomes one that does nothing
        shell.wait_for("finished")
        assert completed in shell.said
    finally:
        shell.close()


def need(shell):
    if not shutil.which(shell):
        (pytest.fail if os.environ.get("CENOTE_TEST_ALL") else pytest.skip)(f"no {shell} here; `tools/setup test` installs it on Debian")


def test_fish(tmp_path, quoted):
    need("fish")
    asked = f"source {quoted('fish')}; complete -C 'cenote dry-run --unk'; complete -C 'cenote do'"
    done = subprocess.run(["fish", "--no-config", "-c", asked], capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": str(tmp_path)})
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["--unknown", "doctor"], done.stderr


def test_a_tab_in_zsh(tmp_path, quoted):
    need("zsh")
    shell = Terminal("zsh", "-f", "-i", folder=tmp_path)
    try:
        shell.type(f"PS1=; bindkey -e; autoload -Uz compinit; compinit -u -D; eval \"$(cat {quoted('zsh')})\"; echo rea''dy\n")
        shell.wait_for("ready")
        shell.type("cenote dry-run --unk\t\x01: \x05; echo fin''ished\n")
        shell.wait_for("finished")
        assert "--unknown" in shell.said
    finally:
        shell.close()
