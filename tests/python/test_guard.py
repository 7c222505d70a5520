"""No file of before changes in a dry run, whatever writes it: by an overlay, as root and in a user namespace, and by Landlock where the system does
not let cenote mount (dockerlike.py). Programs without torch; test_dry_run_files.py has those with it."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest
from conftest import CENOTE, clean_environment
from file_scenes import HEAD, MINE, SCENES, make, now
from patience import patience

pytestmark = pytest.mark.simulation
HERE = pathlib.Path(__file__).resolve().parent
USER = 54321  # not 65534, which stands for all users that a user namespace does not know
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
PYTHON = "/usr/bin/python3"  # one that any user may start
NO_MOUNTS = [sys.executable, str(HERE / "dockerlike.py")]


def can_unshare(*how):
    return subprocess.run([*how, "-m", "true"], capture_output=True).returncode == 0


@pytest.fixture(params=["overlay", "overlay of a user", "landlock"])
def way(request):
    """The start of a command under which cenote protects files in that way."""
    if request.param == "overlay":
        if os.geteuid() or not can_unshare("unshare"):
            pytest.skip("this user may not mount")
        return request.param, []
    if request.param == "landlock":
        from cenote.guard import kernel, landlock
        if kernel.landlock_version() < landlock.LEAST:
            pytest.skip("the system has no Landlock, or an older one")
        return request.param, NO_MOUNTS
    start = [] if os.geteuid() else AS_USER
    if not can_unshare(*start, "unshare", "-U", "-r"):
        pytest.skip("the system does not let users mount in namespaces of their own")
    if start and subprocess.run([*start, PYTHON, "-c", "import cenote.guard.overlay, os; os.listxattr('/')"], env=clean_environment(),
                                capture_output=True).returncode:
        pytest.skip("no Python here that every user may start, or the sources are not theirs to read")
    return request.param, start


def give(folder):
    """To the user, who also has to come there."""
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.geteuid() and above.stat().st_mode & 0o007 == 0:
            above.chmod(above.stat().st_mode | 0o011)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)


@pytest.fixture
def play(clean, tmp_path, way):
    """play(code, OPTION...): a dry run of the program in tmp_path/here; the finished command."""
    (tmp_path / "here").mkdir()

    def call(code, *options, program=(), variables=()):
        (tmp_path / "program.py").write_text(textwrap.dedent(code))
        python = PYTHON if way[1] == AS_USER else sys.executable
        line = program or (python, tmp_path / "program.py")
        if way[1] == AS_USER:
            give(tmp_path)
        ours = ["dry-run", "--gpu", "1GiB", "--json", tmp_path / "out.json", *options]
        return subprocess.run(list(map(str, [*way[1], python, *CENOTE[1:], *ours, "--", *line])),
                              env={**clean, "HOME": str(tmp_path), **dict(variables)}, cwd=tmp_path / "here",
                              capture_output=True, text=True, errors="replace",
                              timeout=patience(20))
    return call


PASSES = {  # scenes in which other programs than Python write, or SQLite: under Landlock an error of the script
    "other programs", "sqlite", "what is no file"}


def test_scenes(play, tmp_path, way):
    """All in one dry run, each in a process and a folder of its own."""
    scenes = {name: one for name, one in SCENES.items() if way[0] != "landlock" or name not in PASSES}
    if way[0] == "overlay of a user":  # redirect_dir is for root: an old folder is moved by a copy, as between two file systems
        scenes = {name: one for name, one in scenes.items() if name != "what is no file" and (
            "os.rename" not in one[1] or "folders" not in name and "links" not in name)}
    before = {}
    for number, (files, _) in enumerate(scenes.values()):
        (tmp_path / f"here/{number}/s").mkdir(parents=True)
        before[number] = make(tmp_path / f"here/{number}/s", files)
    sources = [HEAD + textwrap.dedent(code) for _, code in scenes.values()]
    done = play(f"""
        import os, sys, traceback
        for number, (name, source) in enumerate(zip({list(scenes)!r}, {sources!r})):
            sys.stdout.flush()
            if not os.fork():
                try:
                    os.chdir(str(number) + "/s")
                    exec(compile(source, name, "exec"), {{"__name__": "scene"}})
                    print("passed:", name)
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(0)
            os.wait()
    """)
    assert [line[8:] for line in done.stdout.splitlines() if line.startswith("passed: ")] == list(scenes), done.stdout + done.stderr
    for number, one in before.items():
        assert now(tmp_path / f"here/{number}/s") == one, list(scenes)[number]


ATTACK = """
    import fcntl, mmap, os, shutil, sqlite3, subprocess, sys
    from pathlib import Path
    def each(*functions):
        for function in functions:
            try: function()
            except Exception as error: print("refused", function.__code__.co_firstlineno, error)
    def sqlite(mode):
        db = sqlite3.connect(mode + ".db"); db.execute("pragma journal_mode=" + mode); db.execute("delete from a"); db.commit()
        db.execute("insert into a values (7)")  # not committed: the process ends with a journal
    def in_place():
        file = os.open("map", os.O_RDWR); mmap.mmap(file, 4)[0:2] = b"zz"
    def by_number():
        file = os.open("number", os.O_RDONLY); open(f"/proc/self/fd/{file}", "w").write("x")
    def appends_and_maps():
        with open("append", "a+b") as file: mmap.mmap(file.fileno(), 4)[0:1] = b"q"
    def spawned():
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "spawned", os.O_WRONLY | os.O_TRUNC, 0)]), 0)
    def tag():
        os.setxattr("attribute", "user.mark", b"x")
    modes = "delete", "truncate", "persist", "memory", "off", "wal"
    each(*[lambda mode=mode: sqlite(mode) for mode in modes], in_place, by_number, appends_and_maps, spawned, tag,
         lambda: subprocess.run(["/bin/rm", "-rf", "folder", "alone"], env={}),
         lambda: subprocess.run(["/usr/bin/env", "-i", "/bin/sh", "-c",
                                 "echo x > shell; mv moved elsewhere; : > emptied; ln linked second; echo x >> second"]),
         lambda: os.chmod("mode", 0o600), lambda: os.utime("time", (1, 1)), lambda: os.truncate("cut", 1),
         lambda: open("hard1", "r+").write("x"), lambda: os.rename("old", "new"),
         lambda: open("cenote-dry-mine/f", "w").write("x"), lambda: open("torchinductor_x/f", "w").write("x"),
         lambda: open(os.environ["HF_HOME"] + "/token", "w").write("x"),
         lambda: subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "x"], cwd="git"),
         lambda: shutil.rmtree("rest"))
    os._exit(0)
"""
FILES = "map number append spawned attribute folder/a folder/b/c alone shell moved emptied linked mode time cut hard1 old/x rest/y " \
        "cenote-dry-mine/f torchinductor_x/f home/token"


def state(folder):
    return {str(path): (path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns if path.is_file() else 0, path.lstat().st_nlink,
                        path.read_bytes() if path.is_file() else b"", os.listxattr(path)) for path in folder.rglob("*")}


def test_the_attack(play, tmp_path, way):
    """Each way in which the guard that was a preloaded library was passed."""
    import sqlite3
    folder = tmp_path / "here"
    make(folder, FILES)
    os.link(folder / "hard1", folder / "hard2")
    for mode in ("delete", "truncate", "persist", "memory", "off", "wal"):
        db = sqlite3.connect(folder / f"{mode}.db")
        db.execute(f"pragma journal_mode={mode}")
        db.execute("create table a(b)")
        db.executemany("insert into a values (?)", [(n,) for n in range(400)])
        db.commit()
        db.close()
    subprocess.run(["git", "init", "-q", folder / "git"], check=True)
    before = state(folder)
    done = play(ATTACK, variables={"HF_HOME": str(folder / "home")}.items())
    after = state(folder)
    if way[0] == "landlock":  # which does not see these
        for name in ("attribute", "mode", "time"):
            before.pop(str(folder / name)), after.pop(str(folder / name))
    for made in ("hub", "datasets", "xet", "modules"):  # caches may grow
        after.pop(str(folder / "home" / made), None)
    before.pop(str(folder / "home")), after.pop(str(folder / "home"))
    assert after == before, done.stdout + done.stderr
    refused = [line for line in done.stdout.splitlines() if line.startswith("refused")]
    assert way[0] == "landlock" or all("cross-device" in line for line in refused if way[0] == "overlay of a user"), done.stdout
    assert way[0] != "overlay" or not refused, done.stdout


def test_what_a_child_may_not_write_is_an_error_that_names_the_option(play, tmp_path, way):
    make(tmp_path / "here", "a")
    done = play("import subprocess; subprocess.run('rm a', shell=True, check=True); print('removed')")
    assert (tmp_path / "here/a").read_bytes() == MINE
    assert ("removed" in done.stdout) == (way[0] != "landlock")
    if way[0] == "landlock":
        done = play("open('/proc/self/oom_score', 'w')")
        assert "--writes PATH" not in done.stdout


def test_each_command_begins_from_the_same_files(play, tmp_path):
    code = """
        import os
        print("found", os.listdir("."))
        os.makedirs("made/x"); open("made/x/f", "w").write("new")
    """
    for _ in range(2):
        done = play(code)
        assert "found []" in done.stdout, done.stdout + done.stderr
    assert not os.listdir(tmp_path / "here")
    assert "new: made, is gone" in done.stdout.replace("here/", ""), done.stdout
    found = json.loads((tmp_path / "out.json").read_text())["files"]
    assert [(one["how"], one["bytes"]) for one in found if one["path"] == str(tmp_path / "here/made")] == [("new", 3)]


def test_files_that_are_kept_and_files_that_are_written(play, tmp_path):
    make(tmp_path / "here", "old log/a")
    done = play("""
        open("old", "w").write("new"); open("log/b", "w").write("real"); open("more", "w").write("x")
    """, "--keep-files", tmp_path / "kept", "--writes", "log")
    assert (tmp_path / "here/old").read_bytes() == MINE and not (tmp_path / "here/more").exists(), done.stdout + done.stderr
    assert (tmp_path / "here/log/b").read_text() == "real"
    assert (tmp_path / "kept/old").read_text() == "new" and (tmp_path / "kept/more").read_text() == "x" and not (tmp_path / "kept/log").exists()


def test_files_that_cannot_be_kept(play, tmp_path):
    """The verdict stands there all the same, also in the JSON."""
    (tmp_path / "kept").write_text("a file")
    done = play("open('more', 'w').write('x')", "--keep-files", tmp_path / "kept")
    assert done.returncode == 2 and done.stderr.endswith("--keep-files {}: File exists\n".format(tmp_path / "kept")), done.stderr
    assert "no verdict" in done.stdout and "what the script wrote, 1 bytes" in done.stdout and "is copied to" not in done.stdout, done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["files"]


def test_a_full_disk_is_named(clean, tmp_path):
    """PyTorch's writer hides why it failed."""
    if os.geteuid() or not can_unshare("unshare"):
        pytest.skip("this user may not mount")
    (tmp_path / "small").mkdir()
    (tmp_path / "here").mkdir()
    start = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', tmp_path / "small", *NO_MOUNTS]
    code = '''
        import sys
        try:
            with open("large", "wb", buffering=0) as file:
                while file.write(b"x" * 4096): pass
        except OSError:
            sys.exit("unexpected pos 704 vs 598")
    '''
    done = subprocess.run([*map(str, start), *CENOTE, "dry-run", "--gpu", "1GiB", "--", sys.executable, "-c", textwrap.dedent(code)],
                          env={**clean, "TMPDIR": str(tmp_path / "small")}, cwd=tmp_path / "here", capture_output=True, text=True,
                          timeout=patience(20))
    assert "no space was left for what the script writes, in the folder for temporary files: TMPDIR names another" in done.stdout, done.stdout
    assert not os.listdir(tmp_path / "here")


def test_a_path_that_is_to_be_written_and_is_missing(play):
    """It cannot be passed through: the script's writes would be gone without a word."""
    done = play("open('new', 'w').write('x')", "--writes", "new")
    assert done.returncode == 2 and "--writes new: there is no such file or folder" in done.stderr, done.stderr


def test_any_name_of_the_folder_for_temporary_files(play, tmp_path, way):
    """A comma ended the options of the overlay, and the command fell back to Landlock, under which another program may not remove a file."""
    make(tmp_path / "here", "a")
    (tmp_path / "t,m:p \\q'").mkdir()
    done = play("import os; os.system('rm a'); print(os.listdir('.'))", variables={"TMPDIR": str(tmp_path / "t,m:p \\q'")}.items())
    assert ("[]" in done.stdout) == (way[0] != "landlock") and (tmp_path / "here/a").read_bytes() == MINE, done.stdout + done.stderr


@pytest.mark.parametrize("way", ["overlay of a user"], indirect=True)
def test_what_is_not_the_users_to_write(play, way):
    """The overlay over a folder of another user was the user's: the script wrote there, which it cannot without cenote."""
    if os.geteuid():
        pytest.skip("only root can make a folder that is another user's")
    with tempfile.TemporaryDirectory(dir="/tmp") as theirs:
        os.chmod(theirs, 0o755)
        (pathlib.Path(theirs) / "mine").mkdir()
        give(pathlib.Path(theirs) / "mine")
        done = play("""
            import os
            try: open(os.path.expanduser("~/x"), "w"); print("written")
            except PermissionError: print("refused")
            open(os.path.expanduser("~/mine/x"), "w"); print("mine is written")
        """, variables={"HOME": theirs}.items())
        assert "refused\nmine is written\n" in done.stdout and "written\n" not in done.stdout.partition("refused")[0], done.stdout + done.stderr
        assert not os.listdir(os.path.join(theirs, "mine"))


def test_thousands_of_files_and_a_large_one(play, tmp_path):
    folder = tmp_path / "here/many"
    folder.mkdir()
    for number in range(5000):
        (folder / str(number)).write_bytes(b"")
    with open(tmp_path / "here/large", "wb") as file:
        file.truncate(1 << 30)
    done = play("""
        import os, shutil
        shutil.rmtree("many")
        assert not os.path.exists("many")
        with open("large", "r+b") as file: file.write(b"x")
        print("done")
    """)
    assert "done" in done.stdout and len(os.listdir(folder)) == 5000, done.stdout + done.stderr
    assert (tmp_path / "here/large").read_bytes()[:1] == b"\0"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_that_ends_at_any_moment_leaves_nothing(clean, tmp_path, way, number):
    """Ended once the program has written; the program goes, too, and nothing is left of the scratch folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    make(tmp_path / "here", "a")
    code = "import os, time; os.remove('a'); open('b', 'w').write('x'); print('written', flush=True); time.sleep(1000)"
    (tmp_path / "program.py").write_text(code)
    python = PYTHON if way[1] == AS_USER else sys.executable
    if way[1] == AS_USER:
        give(tmp_path)
    child = subprocess.Popen([*way[1], python, *CENOTE[1:], "dry-run", "--gpu", "1GiB", "--", python, tmp_path / "program.py"], cwd=tmp_path / "here",
                             env={**clean, "TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path)}, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    assert child.stdout.readline() == b"written\n"
    os.kill(child.pid, number) if number == signal.SIGKILL else os.killpg(child.pid, number)
    assert not child.stdout.read()  # to the end: no process is left that has it
    child.wait()
    last = time.monotonic() + patience(20)
    while list((tmp_path / "tmp").glob("cenote-*")) and time.monotonic() < last:
        time.sleep(0.1)
    assert not list((tmp_path / "tmp").glob("cenote-*")) and os.listdir(tmp_path / "here") == ["a"]


def test_where_the_system_lets_nothing_be_protected(run, clean, tmp_path):
    make(tmp_path, "a")
    line = [*CENOTE, "dry-run", "--gpu", "1GiB"]
    start = [*NO_MOUNTS[:2], "--no-landlock"]
    done = subprocess.run([*start, *line, "--", "rm", "a"], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=patience(20))
    assert done.returncode == 2 and "--unprotected" in done.stderr and (tmp_path / "a").exists(), done.stderr
    done = subprocess.run([*start, *line, "--unprotected", "--", "rm", "a"], env=clean, cwd=tmp_path, capture_output=True, text=True,
                          timeout=patience(20))
    assert done.returncode == 3 and not (tmp_path / "a").exists(), done.stderr


def test_a_folder_that_two_threads_need_at_the_same_time(tmp_path, monkeypatch):
    from cenote.guard import redirect
    inside, upper = os.mkdir, str(tmp_path / "upper")
    os.makedirs(upper + str(tmp_path))
    (tmp_path / "old").mkdir()
    monkeypatch.setattr(redirect, "upper", upper)
    monkeypatch.setitem(redirect.real, "mkdir", lambda *asked: (inside(*asked), inside(*asked)))  # the other one is first
    redirect.have_folder(str(tmp_path / "old"), "old")
    assert os.path.isdir(upper + str(tmp_path / "old"))


def test_what_is_mounted(tmp_path):
    from cenote.guard import mounts
    (tmp_path / "info").write_text(
        "1 0 8:1 / / rw,relatime - ext4 /dev/sda rw\n"
        "2 1 0:2 / /dev rw - tmpfs tmpfs rw\n3 2 0:3 / /dev/shm rw - tmpfs shm rw\n4 1 0:4 / /proc rw - proc proc rw\n"
        "5 1 8:1 /a /etc/hosts rw - ext4 /dev/sda rw\n6 1 0:5 / /tm\\040p ro - tmpfs t rw\n7 1 0:6 / /scratch rw - tmpfs t rw\n"
        "8 1 0:7 / /sys/fs/cgroup rw - tmpfs t rw\n")
    found = mounts.read("/scratch", str(tmp_path / "info"))
    assert [one.path for one in found] == ["/", "/dev", "/dev/shm", "/etc/hosts", "/proc", "/sys/fs/cgroup", "/tm p"]
    assert [one.path for one in found if one.is_covered] == ["/", "/dev/shm"]
    assert [one.path for one in mounts.directly_below("/", found)] == ["/dev", "/etc/hosts", "/proc", "/sys/fs/cgroup", "/tm p"]


def test_the_keeper_closes_what_is_open_and_no_more(monkeypatch):
    """The limit may be 10^9."""
    from cenote.launch import keeper
    asked = []
    monkeypatch.setattr(os, "close", asked.append)
    monkeypatch.setattr(os, "closerange", lambda *_: pytest.fail("each number up to the limit"))
    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(os, "chdir", lambda *_: None)
    monkeypatch.setattr(keeper.signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "read", lambda *_: b"" if asked and asked[-1] == "end" else asked.append("end") or b"ended")
    keeper.keep(0, "folder")
    assert 0 < len(asked) < 1000 and 0 not in asked
