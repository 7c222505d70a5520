"""A process loads only files that other users cannot change: cenote checks each folder and link on the path, and loads the file that it checked. In
tests of a race the other user acts between the check and the use, by a hook, not by luck."""
import ast
import ctypes
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest
from conftest import ROOT
from test_plugin import COMPILER, TORCH, pretended  # noqa: F401  (a fixture)

from cenote import places
from cenote.base import trusted
from cenote.native import adapter
from cenote.simulated import demands

OTHER = 65534  # a user who is not this one
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def open_descriptors():
    return sorted(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_stays_open():
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def walked(path, **more):
    found = trusted.folder(str(path), **more)
    found.close()
    return found.path


# --- folders

def test_what_the_system_refuses_is_named_with_its_whole_path(tmp_path):
    with pytest.raises(OSError, match="too long") as refused:
        walked(tmp_path / "a" / ("b" * 300) / "c", may_make=True)
    assert refused.value.filename == str(tmp_path / "a" / ("b" * 300))


def test_a_folder_of_our_own(tmp_path):
    assert walked(tmp_path / "." / "") == str(tmp_path)
    assert walked(tmp_path / "new/newer", may_make=True) == str(tmp_path / "new/newer")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    with pytest.raises(FileNotFoundError):
        walked(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        walked(tmp_path / "file")


def test_a_relative_path(tmp_path, monkeypatch):
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    assert walked("b") == str(tmp_path / "a/b") and walked("../a") == str(tmp_path / "a") and walked("../" * 40 + "tmp") == "/tmp"


@pytest.mark.parametrize("at", ["above", "above/own", "above/own/leaf"])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
def test_others_write_somewhere_on_the_way(tmp_path, at, mode):
    (tmp_path / "above/own/leaf").mkdir(parents=True)
    (tmp_path / at).chmod(mode)
    with pytest.raises(trusted.Untrusted, match=f"may write to {tmp_path / at} .mode {mode:o}"):
        walked(tmp_path / "above/own/leaf")
    (tmp_path / at).chmod(mode | stat.S_ISVTX)  # like /tmp: others may add names, and cannot remove this user's
    assert walked(tmp_path / "above/own/leaf") == str(tmp_path / "above/own/leaf")


def test_a_folder_to_write_to_is_ours_alone(tmp_path):
    (tmp_path / "leaf").mkdir()
    (tmp_path / "leaf").chmod(0o1777)
    with pytest.raises(trusted.Untrusted, match="this user alone"):
        trusted.own_folder(str(tmp_path / "leaf"))


@as_root
@pytest.mark.parametrize("at", ["above", "above/own", "above/own/leaf"])
def test_another_user_owns_a_folder_on_the_way(tmp_path, at):
    (tmp_path / "above/own/leaf").mkdir(parents=True)
    os.chown(tmp_path / at, OTHER, OTHER)
    with pytest.raises(trusted.Untrusted, match=f"{tmp_path / at} belongs to another user"):
        walked(tmp_path / "above/own/leaf")


# --- links

@pytest.mark.parametrize("target", ["data/home", "{}/data/home", "../{0.name}/data/./x/../home", "second"])
def test_links_of_our_own_are_followed(tmp_path, target):
    """Like /home, if that is a link to /data/home."""
    (tmp_path / "data/home/me").mkdir(parents=True)
    (tmp_path / "data/x").mkdir()
    (tmp_path / "second").symlink_to(tmp_path / "data/home")
    (tmp_path / "home").symlink_to(target.format(tmp_path))
    assert walked(tmp_path / "home/me") == str(tmp_path / "data/home/me")
    assert walked(tmp_path / "home/../x") == str(tmp_path / "data/x")  # above the target of the link


def test_a_link_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(trusted.Untrusted, match="more than 40 links"):
        walked(tmp_path / "a/x")


@as_root
def test_a_link_of_another_user_is_not_followed(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "home").symlink_to("data")
    os.lchown(tmp_path / "home", OTHER, OTHER)
    with pytest.raises(trusted.Untrusted, match="home belongs to another user"):
        walked(tmp_path / "home")


def test_a_link_where_others_may_write_is_not_followed(tmp_path):
    """A sticky folder is no exception: another user can put a second link to a link of root there."""
    (tmp_path / "data").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "tmp/home").symlink_to("../data")
    with pytest.raises(trusted.Untrusted, match="link in a folder that other users may write to"):
        walked(tmp_path / "tmp/home")


def test_a_link_that_leads_where_others_may_write(tmp_path):
    (tmp_path / "data/leaf").mkdir(parents=True)
    (tmp_path / "data").chmod(0o777)
    (tmp_path / "home").symlink_to("data/leaf")
    with pytest.raises(trusted.Untrusted, match=f"may write to {tmp_path}/data"):
        walked(tmp_path / "home")


# --- files

def test_files(tmp_path):
    place = trusted.folder(str(tmp_path))
    try:
        for name, make in {"shared": lambda path: (path.touch(), path.chmod(0o664)), "link": lambda path: path.symlink_to("/bin/sh"),
                           "pipe": os.mkfifo, "folder": os.mkdir, "none": lambda path: None}.items():
            make(tmp_path / name)
            with pytest.raises(OSError):
                trusted.open_file(place, name)
        (tmp_path / "ours").touch()
        os.close(trusted.open_file(place, "ours"))
        if os.geteuid() == 0:
            os.chown(tmp_path / "ours", OTHER, OTHER)
            with pytest.raises(trusted.Untrusted, match="another user"):
                trusted.open_file(place, "ours")
    finally:
        place.close()


# --- the adapter

def content(library):
    with os.fdopen(library.descriptor) as file:
        return file.read()


def read_only(path):
    raise OSError("as in an image")


def planted(leaf, name):
    """Replaces `leaf`, as another user does that may move it."""
    leaf.rename(leaf.with_name("aside"))
    leaf.mkdir()
    (leaf / name).write_text("planted\n")


@pytest.mark.simulation
class TestTheAdapter:
    @pytest.mark.parametrize("call", ["access", "fstat", "stat", "open"])
    def test_a_folder_that_is_replaced_after_it_was_looked_at(self, pretended, monkeypatch, call):  # noqa: F811
        """At any point: the library comes from the folder that was checked, not from the one that has its name by then."""
        made = pathlib.Path(adapter.make(TORCH))
        leaf, inside = made.parent, getattr(os, call)
        kept, done = os.stat(leaf), []

        def look(*arguments, **more):
            found = inside(*arguments, **more)
            try:
                status = found if isinstance(found, os.stat_result) else os.fstat(found) if call == "open" else os.stat(leaf)
            except OSError:
                return found
            if not done and os.path.samestat(status, kept):
                done.append(1)
                planted(leaf, made.name)
            return found
        monkeypatch.setattr(os, call, look)
        library = adapter.opened(TORCH)
        monkeypatch.undo()
        assert content(library) == "library\n" and (done or call == "stat")

    @pytest.mark.parametrize("at", ["cache", "cache/cenote"])
    def test_a_folder_above_that_others_can_write_to(self, pretended, at):  # noqa: F811
        kept = pathlib.Path(adapter.make(TORCH))
        (pretended / at).chmod(0o777)
        planted(kept.parent, kept.name)
        said = []
        library = adapter.opened(TORCH, said.append)
        assert content(library) == "library\n" and not library.path.startswith(str(pretended / "cache"))
        assert len(said) == 1 and f"other users may write to {pretended / at}" in said[0]
        shutil.rmtree(os.path.dirname(library.path))

    def test_a_library_that_others_could_write_is_made_anew(self, pretended):  # noqa: F811
        made = pathlib.Path(adapter.make(TORCH))
        made.write_text("planted\n")
        made.chmod(0o666)
        assert content(adapter.opened(TORCH)) == "library\n"
        made.unlink()
        made.symlink_to(pretended / "planted")
        (pretended / "planted").write_text("planted\n")
        assert content(adapter.opened(TORCH)) == "library\n" and (pretended / "planted").read_text() == "planted\n"

    def test_a_library_that_does_not_load_is_made_once_more(self, pretended, monkeypatch):  # noqa: F811
        """As one that a full disk has cut off, or that a machine of another architecture has left under an old name."""
        def load(library):
            if os.pread(library.descriptor, 99, 0) != b"library\n" or never:
                raise OSError("invalid ELF header")
            os.close(library.descriptor)
            return library.path
        never = []
        monkeypatch.setattr(adapter, "load", load)
        made = pathlib.Path(adapter.make(TORCH))
        made.write_text("cut off")
        path, library = adapter.loaded(TORCH, print)
        assert path == library == str(made) and made.read_text() == "library\n"
        assert len((pretended / "log").read_text().splitlines()) == 2
        never.append(1)
        with pytest.raises(adapter.NotMade, match="invalid ELF header"):
            adapter.loaded(TORCH, print)
        assert len((pretended / "log").read_text().splitlines()) == 3  # not for ever

    def test_nor_does_one_of_the_wheel_or_of_an_image(self, pretended, monkeypatch):  # noqa: F811
        """There is a compiler: it makes another in the cache."""
        def load(library):
            if os.pread(library.descriptor, 99, 0) != b"library\n":
                raise OSError("invalid ELF header")
            os.close(library.descriptor)
            return library.path
        monkeypatch.setattr(adapter, "load", load)
        sources = pretended / "sources"
        shutil.copytree(os.path.dirname(places.plugin_folder("torch")), sources)
        monkeypatch.setattr(places, "plugin_folder", lambda name: str(sources / name))
        brought = sources / "torch/ready" / adapter.entry_name(TORCH) / "adapter.so"
        brought.parent.mkdir(parents=True)
        brought.write_text("of a newer libstdc++\n")
        told = []
        path, library = adapter.loaded(TORCH, told.append)
        assert path == library and path.startswith(str(pretended / "cache"))
        assert told == [f"cenote: {brought} cannot be loaded, and another one is compiled: invalid ELF header"]
        shutil.rmtree(brought.parent)
        pathlib.Path(path).write_text("cut off\n")
        monkeypatch.setattr(adapter.trusted, "own_folder", read_only)
        path, library = adapter.loaded(TORCH, lambda text: None)
        assert path == library and not path.startswith(str(pretended / "cache"))

    def test_two_architectures_share_a_cache(self, pretended, monkeypatch):  # noqa: F811
        first = adapter.make(TORCH)
        monkeypatch.setattr(adapter, "MACHINE", "another")
        assert os.path.dirname(adapter.make(TORCH)) != os.path.dirname(first)

    def test_nor_does_it_serve_where_there_is_no_compiler(self, pretended, monkeypatch):  # noqa: F811
        pathlib.Path(adapter.make(TORCH)).chmod(0o666)
        monkeypatch.setenv("CXX", "/nonexistent/c++")
        with pytest.raises(adapter.NotMade, match="no C.. compiler"):
            adapter.make(TORCH)

    def test_umask_does_not_matter(self, pretended):  # noqa: F811
        old = os.umask(0)
        try:
            made = adapter.make(TORCH)
            assert adapter.make(TORCH) == made and len((pretended / "log").read_text().splitlines()) == 1
            assert not [path for path in (pretended / "cache").rglob("*") if path.stat().st_mode & 0o022]
        finally:
            os.umask(old)

    def test_the_compiler_has_a_folder_of_its_own_for_what_it_leaves(self, pretended):  # noqa: F811
        (pretended / "g++").write_text(COMPILER.replace('echo library', 'pwd >"$LOG.folder"; stat -c %a "$TMPDIR/." >>"$LOG.folder"; echo library'))
        made = pathlib.Path(adapter.make(TORCH))
        folder, mode = (pretended / "log.folder").read_text().splitlines()
        assert os.path.dirname(folder) == str(made.parent) and mode == "700" and not os.path.exists(folder)

    def test_a_cache_in_the_middle_of_which_is_a_link(self, pretended, monkeypatch):  # noqa: F811
        (pretended / "data").mkdir()
        (pretended / "home").symlink_to("data")
        monkeypatch.setenv("XDG_CACHE_HOME", str(pretended / "home/cache"))
        said = []
        library = adapter.opened(TORCH, said.append)
        assert content(library) == "library\n" and library.path.startswith(str(pretended / "data/cache/cenote")) and said == []


def compiled(path, number):
    source = path.with_suffix(".c")
    source.write_text(f"int number(void) {{ return {number}; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, source], check=True)


def test_what_is_loaded_is_the_file_that_was_looked_at(tmp_path):
    """Another file has the name by then. Another process loads the library, because this one would keep its descriptor."""
    compiled(tmp_path / "good.so", 1)
    compiled(tmp_path / "planted.so", 2)
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "python")!r})
from cenote.base import trusted
from cenote.native import adapter
folder = trusted.folder({str(tmp_path)!r})
library = adapter.opened_library(folder, "good.so")
os.replace({str(tmp_path / "planted.so")!r}, {str(tmp_path / "good.so")!r})
print(adapter.load(library).number(), os.path.exists(f"/proc/{{os.getpid()}}/fd/{{library.descriptor}}"))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1 True\n"
    assert ctypes.CDLL(str(tmp_path / "good.so")).number() == 2


# --- other files that a command of cenote starts or reads

def test_the_answer_about_torch_is_not_read_where_others_write(tmp_path):
    path = tmp_path / "cenote/demands.txt"
    demands.keep(str(path), "key", "answer")
    assert demands.cached(str(path), "key") == "answer"
    tmp_path.chmod(0o777)
    assert demands.cached(str(path), "key") is None


MARKED = """
import pytest

@pytest.mark.gpu_memory("1GiB")
def test_x():
    import torch
    torch.ones(8, device="cuda")
"""


@pytest.mark.torch
@pytest.mark.simulation
@pytest.mark.parametrize("command", ["cenote replay --under native x.csv", "cenote doctor --sim 4GiB",
                                     "cenote dry-run --gpu 4GiB --world 2 --rank 0 --steps 0 --writes . far/x.py",
                                     "pytest -p cenote.integrations.pytest_plugin -q far/test_x.py"])
def test_modules_of_the_current_folder_are_not_ours(clean, tmp_path, command):
    """A command that is started in /tmp does not run a json.py that lies there. As for bin/cenote, the current folder is not on its path."""
    (tmp_path / "x.csv").write_text("t_us,op,id,bytes\n0,a,1,512\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far/x.py").write_text("import os, near; open(os.environ['REACHED'], 'w').close()\n")
    (tmp_path / "far/near.py").write_text("")  # a module beside the user's script is the user's
    (tmp_path / "far/test_x.py").write_text(MARKED)
    for name in ("json", "marshal", "tempfile", "torch", "argparse", "cenote"):
        (tmp_path / f"{name}.py").write_text("import os; open('ran', 'w').close(); os._exit(3)\n")
    program, *arguments = command.split()
    start = (f"import sys; sys.path = [{str(ROOT / 'python')!r}, *filter(None, sys.path)]; "
             + (f"import pytest; sys.exit(pytest.main({arguments!r}))" if program == "pytest" else
                f"from cenote import command; sys.exit(command.main({arguments!r}))"))
    variables = {**clean, "CXX": "/nonexistent/c++", "REACHED": str(tmp_path / "reached")}
    done = subprocess.run([sys.executable, "-c", start], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "reached").exists() or "--world" not in command, done.stderr


def test_one_module_starts_every_python():
    """launch/python.py knows what has to stay off the path of a Python; a list that begins with sys.executable elsewhere does not."""
    found = set()
    for path in (ROOT / "python/cenote").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            inner = node.elts if isinstance(node, (ast.List, ast.Tuple)) else node.args if isinstance(node, ast.Call) else []
            if inner and ast.unparse(inner[0]) == "sys.executable" and not (isinstance(node, ast.Call) and "path." in ast.unparse(node.func)):
                found.add(str(path.relative_to(ROOT / "python/cenote")))
    assert found == {"launch/python.py"}
