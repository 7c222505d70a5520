"""Nothing that `cenote dry-run` has started outlives it, however it ends, and whatever its parent is. Nothing here imports PyTorch."""
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress

import pytest
from conftest import CENOTE
from patience import patience
from spoken import said

from cenote.launch import processes

pytestmark = pytest.mark.simulation

# Starts a process in a session of its own, as torchrun does, another one whose parent has ended, and one below itself.
PROGRAM = """
echo theirs > old
setsid sh -c 'echo $$ >> "$PIDS"; exec sleep 600' &
(sh -c 'echo $$ >> "$PIDS"; exec sleep 600' &)
sh -c 'echo $$ >> "$PIDS"; exec sleep 600' &
echo $$ >> "$PIDS"
wait
"""
EACH = 4  # numbers that one such program writes
PROGRAMS = [((), 1), (("--world", "4", "--rank", "0,3"), 2)]  # options, and how many of it there are


def is_gone(pid):
    seen = processes.seen().get(pid)
    return seen is None or seen.has_ended


def until(call):
    last = time.monotonic() + patience(10)
    while not (found := call()):
        assert time.monotonic() < last, call
        time.sleep(0.02)
    return found


def hears_a_hangup():
    """Under nohup a process ignores that signal, and so does what it starts."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def started(clean, tmp_path):
    """started(OPTION..., ranks=1): the dry run of the program above, once all is there, and the numbers of all that it has started."""
    children = []

    def call(*options, ranks=1):
        (tmp_path / "program.sh").write_text(PROGRAM)
        (tmp_path / "old").write_text("mine")
        numbers = tmp_path / "numbers"
        numbers.touch()  # and is written through the guard of files
        child = subprocess.Popen([*CENOTE, "dry-run", "--gpu", "1GiB", "--writes", "numbers", *options, "--", "sh", "program.sh"], cwd=tmp_path,
                                 stdin=subprocess.DEVNULL,
                                 env={**clean, "PIDS": str(numbers), "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 start_new_session=True, preexec_fn=hears_a_hangup)
        children.append(child)
        found = until(lambda: numbers.exists() and len(numbers.read_text().split()) == ranks * EACH and numbers.read_text().split())
        return child, [int(number) for number in found]
    yield call
    for number in (tmp_path / "numbers").read_text().split() if children else ():
        with suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGKILL)
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("options, ranks", PROGRAMS, ids=["one", "ranks"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_killed_takes_all_with_it(started, tmp_path, number, options, ranks):
    child, numbers = started(*options, ranks=ranks)
    child.send_signal(number)
    assert child.wait(20) == -number
    until(lambda: all(map(is_gone, numbers)))
    until(lambda: not [path for path in tmp_path.iterdir() if "cenote-dry-" in path.name])
    assert (tmp_path / "old").read_text() == "mine"


def test_a_group_that_is_killed_takes_with_it_what_has_a_session_of_its_own(started):
    child, numbers = started("--world", "4", "--rank", "1,2", ranks=2)
    os.killpg(child.pid, signal.SIGKILL)
    until(lambda: all(map(is_gone, numbers)))


@pytest.mark.parametrize("options, ranks", PROGRAMS, ids=["one", "ranks"])
def test_an_interrupt_ends_what_does_not_hear_it(started, options, ranks):
    child, numbers = started(*options, ranks=ranks)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(30) == 130 and all(map(is_gone, numbers))


def test_so_does_a_timeout(started):
    child, numbers = started("--timeout", "1")
    assert child.wait(30) == 3 and all(map(is_gone, numbers))


def test_a_starter_of_ranks_that_is_killed_leaves_none(started):
    child, numbers = started("--world", "4", "--rank", "0,3", ranks=2)
    starter, = [pid for pid, seen in processes.seen().items() if seen.parent == child.pid and is_starter(pid)]
    os.kill(starter, signal.SIGKILL)
    assert child.wait(30) == 3 and all(map(is_gone, numbers))


def is_starter(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"cenote.launch.ranks" in file.read().split(b"\0")


AGAIN = """
if [ "$CENOTE_PHANTOMS" = 0,1 ]; then
    if [ "$RANK" = 1 ]; then    # a shell that has started the rank, which does not end with it
        setsid sh -c 'echo "$$ $CENOTE_PHANTOMS_STORE" > first.part; mv first.part first; exec sleep 60 > /dev/null' &
        wait
    fi
    while [ ! -e first ]; do sleep 0.02; done
    : > "$CENOTE_DRY_RUN/2.needed"
    exit 1
fi
[ -e second ] && exit 0
read pid store < first
grep -q '^State:.[^ZX]' /proc/$pid/status && is=there || is=gone
echo "$is $store $CENOTE_PHANTOMS_STORE" > second
"""


def test_ranks_of_the_time_before_are_gone_when_they_begin_again(run, tmp_path):
    """One that was left wrote into the store of the new ones and read it at its old place: both hung for ever."""
    (tmp_path / "again.sh").write_text(AGAIN)
    done = run("dry-run", "--gpu", "1GiB", "--writes", ".", "--world", "4", "--rank", "0,1", "--", "sh", "again.sh")
    assert "a rank needs what only rank 2 can say; again with rank 2 real, too" in done.stderr, done.stdout + done.stderr
    state, before, now = (tmp_path / "second").read_text().split()
    assert state == "gone" and before != now


ORPHAN = '''
(env -i setsid sh -c 'echo $$ >> "$1"; exec sleep 600' - "$PIDS" &)
sh -c 'echo $$ >> "$PIDS"; exec sleep 600' &
while [ $(wc -l < "$PIDS") -lt 2 ]; do sleep 0.02; done
'''


@pytest.mark.parametrize("end", ["exit", "wait"])
def test_a_process_without_parent_and_environment_ends_with_the_run(clean, tmp_path, end):
    """And one that was there before, as where a shell has become the command, does not."""
    (tmp_path / "program.sh").write_text(ORPHAN + end)
    numbers = tmp_path / "numbers"
    numbers.touch()
    line = [*CENOTE, "dry-run", "--gpu", "1GiB", "--writes", str(numbers), "--", "sh", "program.sh"]
    child = subprocess.Popen(["sh", "-c", 'sleep 600 & echo $! > "$0"; exec "$@"', str(tmp_path / "before"), *line], cwd=tmp_path,
                             env={**clean, "PIDS": str(numbers)}, stderr=subprocess.DEVNULL)
    found = until(lambda: len(numbers.read_text().split()) == 2 and [int(number) for number in numbers.read_text().split()])
    if end == "wait":
        child.send_signal(signal.SIGINT)
    assert child.wait(30) == (3 if end == "exit" else 130)
    before = int((tmp_path / "before").read_text())
    assert all(map(is_gone, found)) and not is_gone(before)
    os.kill(before, signal.SIGKILL)


def test_a_run_that_is_killed_as_it_begins_leaves_nothing(tmp_path, clean):
    """The command is killed while its run is forked, and has yet to become a program, which loses its environment at once."""
    code = '''
        import os, signal, sys
        from cenote.fit import dry_run
        from cenote.guard import choice
        enter = choice.Guard.begin
        def begin(self, variables):
            enter(self, variables)
            inside, command = self.entrance, os.getpid()
            def entrance():
                os.kill(command, signal.SIGKILL)
                inside()
            self.entrance = entrance
        choice.Guard.begin = begin
        sys.exit(dry_run.main(sys.argv[1:]))
    '''
    line = [sys.executable, "-c", textwrap.dedent(code), "--gpu", "1GiB", "--writes", "numbers", "--", "env", "-i", "sh", "-c",
            "echo $$ >> numbers; exec sleep 600"]
    (tmp_path / "numbers").touch()
    child = subprocess.Popen(line, cwd=tmp_path, env={**clean, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    child.communicate(timeout=patience(20))  # to the end of the output: no process is left that has it
    assert child.returncode == -signal.SIGKILL
    until(lambda: not [path for path in tmp_path.iterdir() if "cenote-dry-" in path.name])
    assert all(is_gone(int(number)) for number in (tmp_path / "numbers").read_text().split())


def test_a_process_that_ends_with_its_parent(clean):
    code = '''
        import os, time
        from cenote.guard import kernel
        read, write = os.pipe()
        parent = os.getpid()
        if not os.fork():
            kernel.end_with(parent)
            os.write(write, b"x")
            time.sleep(600)
        os.read(read, 1)
    '''
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=clean, stdout=subprocess.PIPE, timeout=patience(10), check=True)


def test_a_run_in_a_folder_that_was_removed(clean, tmp_path):
    (tmp_path / "gone").mkdir()
    done = subprocess.run(["sh", "-c", 'cd gone; rmdir ../gone; exec "$@"', "-", *CENOTE, "dry-run", "--gpu", "1GiB", "--", "true"], cwd=tmp_path,
                          env=clean, capture_output=True, text=True, timeout=patience(20))
    assert done.returncode == 2 and done.stderr == "cenote dry-run: the current folder has been removed: change to one that is there\n", done.stderr


def test_other_runs_are_left_alone(tmp_path):
    def start(folder):
        return subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(100000)"], stdout=subprocess.PIPE,
                                env={**os.environ, "CENOTE_DRY_RUN": str(folder)})
    with start(tmp_path / "one") as one, start(tmp_path / "one more") as other:
        try:
            assert one.stdout.readline() == other.stdout.readline() == b"up\n"
            assert processes.left(str(tmp_path / "one")) == [one.pid]
            processes.end(str(tmp_path / "one"))
            assert one.wait(10) == -signal.SIGKILL and other.poll() is None
        finally:
            one.kill()
            other.kill()


def test_an_interrupt_ends_both(clean, tmp_path):
    (tmp_path / "train.py").write_text("import time; print('up', flush=True); time.sleep(1000)")
    with subprocess.Popen([*CENOTE, "dry-run", "--gpu", "2GiB", "train.py"], env=clean, cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == "up\n"
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=patience(30))
        finally:
            process.kill()  # else a command that hangs would never let go of this test
        assert process.returncode == 130 and "dry_run.py" not in said(errors)


def test_an_interrupt_behind_a_lock(monkeypatch):
    """It comes where Popen has its lock and has not come to its `try` yet."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        lock = child._waitpid_lock

        class Interrupted:
            release = lock.release

            def acquire(self, *arguments):
                got = lock.acquire(*arguments)
                signal.raise_signal(signal.SIGINT)
                return got

        monkeypatch.setattr(child, "_waitpid_lock", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            processes.wait(child, 1000)
        monkeypatch.undo()
        child.kill()
        assert not lock.locked() and processes.wait(child, patience(30)) == -signal.SIGKILL
