"""Files are written whole or not at all, also if another user has put a link under every name that can be guessed."""
import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading

import pytest
from conftest import ROOT

from cenote.base import outputs
from cenote.fit import dry_run
from cenote.inside import run_summary
from cenote.replay import report
from cenote.view import memory_viz, viewer

OTHER = 65534
SECRET = b"what the other user wants to have overwritten"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links to another user")


@pytest.fixture
def place(tmp_path):
    """A folder with a link to `secret` under every name that can be guessed."""
    (tmp_path / "secret").write_bytes(SECRET)
    for name in ("x.json", "x.html", "x.pickle"):
        for guess in (f"{name}.{os.getpid()}.part", f"{name}.new", f"{name}.{os.getpid()}", f"{name}.{os.getpid()}-0.part", f"{name}.part"):
            (tmp_path / guess).symlink_to("secret")
    return tmp_path


def parts(folder):
    return [path for path in folder.iterdir() if path.name.endswith(".part") and not path.is_symlink()]


WRITERS = {
    "view": ("x.html", lambda path: viewer.outputs.write(path, b"[]")),
    "figures": ("x.json", lambda path: run_summary.Summary.write_figures(None, path, [])),
    "dry run": ("x.json", lambda path: dry_run.write_json(path, [])),
    "replay": ("x.json", lambda path: report.outputs.write(path, b"[]")),
    "picture": ("x.pickle", lambda path: memory_viz.outputs.write(path, b"[]")),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_links_under_names_that_can_be_guessed_are_not_followed(place, writer):
    name, write = WRITERS[writer]
    write(str(place / name))
    assert (place / name).read_text().strip() == "[]" and not (place / name).is_symlink()
    assert (place / "secret").read_bytes() == SECRET and parts(place) == []


PACKAGE = ROOT / "python/cenote"
MAKES = {"replace", "rename", "renames", "symlink", "link", "truncate", "mkfifo", "mknod", "write_text", "write_bytes", "copy2", "copyfile",
         "copytree", "NamedTemporaryFile", "mkstemp"}
OPENS = {"open", "fdopen", "File", "GzipFile", "TextIOWrapper"}

# Calls outside of base/outputs.py that make or write a file, and why no link of another user can be in their way.
APART = {
    "fit/dry_run.py": {"os.replace(os.path.join(folder, name), os.path.join(self.keeper.folder, name))"},  # from one folder of the command to another
    "native/adapter.py": {  # in a folder that trusted.py has checked, by its descriptor
        "os.open('lock', os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 384, dir_fd=folder.descriptor)",
        "os.fdopen(outputs.create(part.descriptor, 'all.cpp', 384), 'w', encoding='utf-8')",
        "os.rename('adapter.so', name, src_dir_fd=part.descriptor, dst_dir_fd=folder.descriptor)",
    },
    "command.py": {"os.open(os.devnull, os.O_WRONLY)"},
    "places.py": {  # the same
        "os.symlink(folder, new, dir_fd=place.descriptor)",
        "os.replace(new, name, src_dir_fd=place.descriptor, dst_dir_fd=place.descriptor)",
    },
    "replay/trace_file.py": {"open(path, 'wb')"},  # save(): in the TemporaryDirectory of a replay
    "inside/waiting.py": {"os.open(os.devnull, os.O_RDWR)"},
    "guard/landlock.py": {"os.symlink('/', os.path.join(folder, '1', 'lower'))"},  # in the scratch folder, which is this user's alone
    "guard/overlay.py": {"open(f'/proc/self/{name}', 'w', encoding='ascii')", "os.symlink(path, os.path.join(own, 'lower'))"},  # there, too
    "guard/changes.py": {  # --keep-files: the folder that the user names
        "shutil.copytree(one.written, target, symlinks=True, dirs_exist_ok=True, ignore=marks)",
        "shutil.copy2(one.written, target, follow_symlinks=False)",
    },
    "inside/fit_report.py": {  # in the TemporaryDirectory of a dry run
        "open(os.path.join(self.folder, f'{os.getpid()}{environment.DRY_STACKS}'), 'w', encoding='utf-8')",
    },
}


def may_write(call):
    """Says whether a call makes a file or opens one for writing, by its name and arguments."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in OPENS:
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        modes = [value.value for value in given if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes) or re.search("O_(WRONLY|RDWR|CREAT)", ast.unparse(call))
    of_a_module = isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in ("os", "shutil", "tempfile")
    return name in MAKES and (of_a_module or name.startswith("write_"))


def test_no_file_of_the_package_is_written_otherwise():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and may_write(node)]
        if calls and path != PACKAGE / "base/outputs.py":
            found[str(path.relative_to(PACKAGE))] = {ast.unparse(call) for call in calls}
    assert found == APART


def test_what_was_there_stays_when_writing_fails(place):
    (place / "x.json").write_text("before")
    with pytest.raises(ZeroDivisionError):
        with outputs.whole(str(place / "x.json")) as file:
            file.write(b"half")
            assert len(parts(place)) == 1
            raise ZeroDivisionError
    assert (place / "x.json").read_text() == "before" and parts(place) == []
    outputs.write(str(place / "x.json"), b"after")
    assert (place / "x.json").read_text() == "after"


def test_the_mode_is_that_of_any_new_file(place):
    old = os.umask(0o027)
    try:
        outputs.write(str(place / "x.json"), b"")
        assert stat.S_IMODE((place / "x.json").stat().st_mode) == 0o640
    finally:
        os.umask(old)


def test_a_name_that_was_taken_meanwhile_is_not_followed(place, monkeypatch):
    """The other user puts a link under the random name right after it was chosen: earlier no other user can know it."""
    inside = os.urandom

    def known(count):
        chosen = inside(count)
        (place / f"x.json.{chosen.hex()}.part").symlink_to("secret")
        return chosen
    monkeypatch.setattr(os, "urandom", known)
    with pytest.raises(FileExistsError):
        outputs.write(str(place / "x.json"), b"[]")
    assert (place / "secret").read_bytes() == SECRET


def test_a_link_that_comes_after_the_look_replaces_nothing(place, monkeypatch):
    """The path was a pipe when cenote looked at it, and is a link of the other user when cenote opens it: the pipe is written."""
    os.mkfifo(place / "x.json")
    reader = os.open(place / "x.json", os.O_RDWR)
    inside = outputs.target_of

    def looked(*seen):
        found = inside(*seen)
        (place / "x.json").unlink()
        (place / "x.json").symlink_to("secret")
        return found
    monkeypatch.setattr(outputs, "target_of", looked)
    outputs.write(str(place / "x.json"), b"[]")
    assert os.read(reader, 9) == b"[]"
    os.close(reader)
    assert (place / "secret").read_bytes() == SECRET


@as_root
def test_a_link_of_another_user_is_refused(place):
    (place / "x.json").symlink_to("secret")
    os.lchown(place / "x.json", OTHER, OTHER)
    for call in (lambda: outputs.write(str(place / "x.json"), b""), lambda: outputs.check(str(place / "x.json"))):
        with pytest.raises(OSError, match="symbolic link of another user") as caught:
            call()
        assert caught.value.filename == str(place / "x.json")
    assert (place / "secret").read_bytes() == SECRET


def given(path, owner=OTHER):
    os.lchown(path, owner, owner)


def refused(path, why):
    for call in (lambda path: outputs.write(path, b""), outputs.check):
        with pytest.raises(OSError, match=why) as caught:
            call(str(path))
        assert caught.value.filename == str(path)


@as_root
def test_what_another_user_has_put_in_the_place_is_refused(place):
    """A pipe that no process reads would hold the command for ever, a link behind a link lead to where the other user wants."""
    os.mkfifo(place / "x.json")
    given(place / "x.json")
    refused(place / "x.json", "pipe or device belongs to another user")
    (place / "x.pickle").symlink_to("x.json")
    refused(place / "x.pickle", "pipe or device belongs to another user")
    (place / "theirs").symlink_to("secret")
    given(place / "theirs")
    (place / "x.html").symlink_to("theirs")
    refused(place / "x.html", "symbolic link of another user")
    assert (place / "secret").read_bytes() == SECRET and parts(place) == []


@as_root
def test_a_file_that_cannot_be_replaced_is_refused_before_the_run(place):
    """In /tmp the kernel lets no user replace another's file. In a folder that users share without that rule, it does."""
    (place / "x.json").write_text("theirs")
    given(place / "x.json")
    given(place, OTHER - 1)
    place.chmod(0o1777)
    refused(place / "x.json", "belongs to another user")
    assert (place / "x.json").read_text() == "theirs" and parts(place) == []
    place.chmod(0o777)
    outputs.write(str(place / "x.json"), b"1")
    assert (place / "x.json").read_bytes() == b"1"


def test_links_in_a_circle(place):
    (place / "x.json").symlink_to("x.html")
    (place / "x.html").symlink_to("x.json")
    refused(place / "x.json", "Too many levels")


def test_a_folder_that_is_only_read(tmp_path, monkeypatch):
    tmp_path.chmod(0o555)
    monkeypatch.chdir(tmp_path)
    is_root = os.geteuid() == 0
    if is_root:  # who may write to it
        os.seteuid(OTHER)
    try:
        refused("x.json", "Permission denied")
    finally:
        if is_root:
            os.seteuid(0)
        tmp_path.chmod(0o755)
    assert parts(tmp_path) == []


def test_a_folder_that_moves_or_goes_meanwhile_keeps_no_part(place):
    (place / "one").mkdir()
    with outputs.whole(str(place / "one/x.json")) as file:
        file.write(b"1")
        (place / "one").rename(place / "two")
    assert [path.read_bytes() for path in (place / "two").iterdir()] == [b"1"]
    with pytest.raises(IsADirectoryError):
        with outputs.whole(str(place / "two/x.json")):
            (place / "two/x.json").unlink()
            (place / "two/x.json").mkdir()
    assert parts(place / "two") == []
    with pytest.raises(FileNotFoundError) as caught:
        with outputs.whole(str(place / "two/y.json")):
            shutil.rmtree(place / "two")
    assert caught.value.filename == str(place / "two/y.json")


@pytest.mark.parametrize("target", ["near", "{}/near", "second"])
def test_links_of_our_own_are_followed(place, target):
    (place / "second").symlink_to("near")
    (place / "x.json").symlink_to(target.format(place))
    outputs.write(str(place / "x.json"), b"1")
    assert (place / "near").read_bytes() == b"1" and (place / "x.json").is_symlink()


def test_pipes_and_devices(place):
    os.mkfifo(place / "x.json")
    outputs.check(str(place / "x.json"))  # check() does not wait for a reader
    read = []
    reader = threading.Thread(target=lambda: read.append((place / "x.json").read_bytes()))
    reader.start()
    outputs.write(str(place / "x.json"), b"1")
    reader.join()
    assert read == [b"1"] and stat.S_ISFIFO((place / "x.json").stat().st_mode)
    outputs.write("/dev/null", b"2")
    with pytest.raises(OSError, match="No space"):
        outputs.write("/dev/full", b"3")


def test_standard_output(tmp_path):
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r}); from cenote.base import outputs; outputs.write(sys.argv[1], b'[1]')"
    for name in ("/dev/stdout", "/proc/self/fd/1"):
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, check=True)
        assert json.loads(done.stdout) == [1]
    assert os.path.islink("/dev/stdout")


@pytest.mark.parametrize("name, why", [("none/x", "No such file"), ("", "Is a directory"), ("secret/x", "Not a directory"),
                                       ("folder", "Is a directory")])
def test_places_where_nothing_can_be_written(place, name, why):
    (place / "folder").mkdir()
    for call in (lambda path: outputs.write(path, b""), outputs.check):
        with pytest.raises(OSError, match=why) as caught:
            call(f"{place}/{name}")
        assert caught.value.filename == f"{place}/{name}"
    assert parts(place) == []


def test_a_check_loses_nothing(place):
    (place / "x.json").write_text("before")
    outputs.check(str(place / "x.json"))
    outputs.check(str(place / "new.json"))
    assert (place / "x.json").read_text() == "before" and not (place / "new.json").exists() and parts(place) == []
