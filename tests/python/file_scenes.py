"""What programs do to files: for test_guard.py. In a dry run the files of before stay, and each program finds what it would find without one."""
import os

MINE = b"mine" * 1000

# Each: files of before (a link has its target, a folder a / at its end), and a program whose assertions hold without the library, too.
SCENES = {
    "open": ("a b c d", """
        open("a", "wb").write(b"x"); assert open("a").read() == "x" and os.path.getsize("a") == 1
        open(b"b", "w").close(); assert not os.path.getsize("b")
        os.write(os.open("c", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), b"y"); assert open("c").read() == "y"
        open("d", "a").close(); assert mine("d")
    """),
    "in place": ("a b c d e", """
        with open("a", "r+b") as f: f.write(b"zz")
        assert open("a").read(4) == "zzne"
        os.truncate("b", 1); assert open("b").read() == "m"
        with open("c", "r+b") as f: mmap.mmap(f.fileno(), 0)[0:1] = b"q"
        assert open("c").read(2) == "qi"
        with open("d", "ab") as f: f.truncate(3); f.write(b"!")
        assert open("d").read() == "min!"
        f = open("e", "ab"); os.remove("e"); f.truncate(0); f.close()
    """),
    "remove": ("a b c d/e d/f/g", """
        os.remove("a"); Path("b").unlink(); os.unlink(b"c")
        assert os.listdir(".") == ["d"] and not glob.glob("[abc]") and not os.path.lexists("a") and not os.access("b", os.R_OK)
        for path in "abc": fails(FileNotFoundError, open, path); fails(FileNotFoundError, os.remove, path)
        fails(OSError, os.rmdir, "d"); shutil.rmtree("d"); assert not os.path.isdir("d") and not os.path.exists("d/e") and not os.listdir(".")
        fails(FileNotFoundError, open, "d/e"); fails(FileNotFoundError, open, "d/new", "w")
        open("a", "w").write("x"); os.makedirs("d/f"); assert os.listdir("d") == ["f"] and os.listdir("d/f") == []
        open("d/e", "w").write("y"); assert open("a").read() + open("d/e").read() == "xy" and sorted(os.listdir(".")) == ["a", "d"]
        os.remove("a"); shutil.rmtree(Path("d")); assert not os.listdir(".")
    """),
    "rename files": ("last prev log log.1", """
        os.replace("last", "prev"); assert mine("prev") and not os.path.exists("last")
        open("last", "w").write("2"); os.rename("last", "prev"); assert open("prev").read() == "2"
        os.rename("log.1", "log.2"); os.rename("log", "log.1"); open("log.1", "a").write("x"); open("log.2", "w").write("y")
        assert open("log.1").read().endswith("minex") and open("log.2").read() == "y"
        os.replace("log.2", "log.1"); assert open("log.1").read() == "y"; os.rename("log.1", "log.1")
    """),
    "a second name is written to": ("a b c e", """
        os.replace("a", "b"); open("b", "wb").write(b"x")
        os.rename("c", "d"); open("d", "r+b").write(b"y"); assert open("d").read(2) == "yi"
        os.link("e", "f"); open("f", "wb").write(b"z"); assert open("f").read() == "z"
    """),
    "rename folders": ("old/m old/s/n empty/ full/x", """
        os.rename("old", "older"); assert mine("older/m") and mine("older/s/n") and not os.path.exists("old")
        open("older/s/n", "w").write("x"); os.makedirs("old"); open("old/m", "w").write("y"); assert os.listdir("old") == ["m"]
        fails(OSError, os.rename, "old", "full"); os.rename("old", "empty"); assert os.listdir("empty") == ["m"]
        shutil.rmtree("older"); assert sorted(os.listdir(".")) == ["empty", "full"]
        fails(IsADirectoryError, os.rename, "empty/m", "full"); fails(NotADirectoryError, os.rename, "empty", "full/x")
    """),
    "a checkpoint that is staged": ("ck/m", """
        os.makedirs("tmp"); open("tmp/m", "w").write("x"); shutil.rmtree("ck"); os.rename("tmp", "ck"); assert open("ck/m").read() == "x"
    """),
    "atomic": ("a b c", """
        with tempfile.NamedTemporaryFile(dir=".", delete=False) as f: f.write(b"x")
        os.replace(f.name, "a"); assert open("a").read() == "x"
        with tempfile.NamedTemporaryFile(delete=False) as f: f.write(b"y")
        shutil.move(f.name, "b"); assert open("b").read() == "y"
        open("new", "w").write("z"); os.remove("c"); os.link("new", "c"); os.unlink("new"); assert open("c").read() == "z"
        assert sorted(os.listdir(".")) == list("abc")
    """),
    "copies": ("a d/a", """
        open("new", "w").write("x"); shutil.copy2("new", "a"); shutil.copytree(".", "../copy"); shutil.copytree("../copy", ".", dirs_exist_ok=True)
        shutil.copyfile("new", "d/a"); assert open("d/a").read() == open("a").read() == "x"; shutil.rmtree("../copy")
    """),
    "old links": (["link -> real", "real", "dl -> d", "d/x", "gone -> nowhere"], """
        open("link", "w").write("x"); assert open("real").read() == "x" and os.path.islink("link")
        open("dl/x", "w").write("y"); assert open("d/x").read() == "y"
        os.remove("dl"); assert not os.path.lexists("dl"); os.mkdir("new"); os.symlink("new", "dl"); assert os.readlink("dl") == "new"
        open("dl/y", "w").write("z"); assert open("new/y").read() == "z"
        os.symlink("d", "part"); os.replace("part", "dl"); assert os.readlink("dl") == "d"; os.unlink("gone")
    """),
    "links that lead to a folder made anew": (["latest -> ck", "ck/m", "ck/other/n", "up -> ck/other/.."], """
        shutil.rmtree("ck"); os.mkdir("ck"); open("ck/m", "w").write("x"); assert open("latest/m").read() == "x" and os.listdir("latest/") == ["m"]
        open("latest/k", "w").write("y"); assert open("ck/k").read() == "y"; os.mkdir("ck/other")
        assert sorted(os.listdir("up")) == ["k", "m", "other"]
        os.rename("ck", "new"); assert not os.path.exists("latest/m") and os.path.lexists("latest"); os.symlink("new", "ck")
        assert open("latest/m").read() == "x"
        assert sorted(one.name for one in os.scandir(".") if one.is_dir()) == ["ck", "latest", "new", "up"]
    """),
    "folders of the process": ("sub/a", """
        os.chdir("sub"); open("a", "w").write("x"); os.chdir("../sub/.."); assert open("./sub//a").read() == "x"
        at = os.open("sub", os.O_RDONLY); os.unlink("a", dir_fd=at); assert not os.listdir(at)
        os.mkdir("a", dir_fd=at); assert os.stat("a", dir_fd=at).st_mode & 0o40000
        os.rename("a", "b", src_dir_fd=at, dst_dir_fd=at); os.chdir("sub/b")
    """),
    "names": (["a b\nc", "invalid\udcff", "ä"], """
        for name in os.listdir(b"."): open(name, "w").write("x"); assert open(name).read() == "x"
    """),
    "other programs": ("a b c d/e/f g/h", """
        sh = lambda line: subprocess.run(line, shell=True, check=True)
        sh("set -e; rm a; echo hi > b; mv c c2; test ! -e a; test ! -e c; grep -q mine c2; grep -q hi b")
        sh("set -e; rm -rf d; test ! -e d; mkdir d; test -z $(ls -A d); mv g g2; cp b g2/h")
        assert open("b").read() == "hi\\n" and open("g2/h").read() == "hi\\n" and not os.path.exists("g")
        if not os.fork(): open("b", "w").write("child"); os._exit(0)
        os.wait(); assert open("b").read() == "child"
    """),
    "threads": ("0 1 2 3", """
        def work(name):
            for i in range(200):
                open(name, "w").write(f"{name}{i}"); assert open(name).read() == f"{name}{i}"
                os.remove(name); open(name + "new", "w").close(); os.rename(name + "new", name)
        with ThreadPoolExecutor() as pool: list(pool.map(work, "0123"))
    """),
    "its own files": ("other", """
        for i in range(3):
            open("f", "w").write(str(i)); os.replace("f", "g"); os.makedirs("d/e"); os.remove("g"); shutil.rmtree("d")
        assert os.listdir(".") == ["other"]
    """),
    "what is no file": ("other", """
        open("/dev/null", "w").write("x"); os.mkfifo("pipe"); os.remove("pipe"); print("x", file=open("/dev/stderr", "w"))
        subprocess.run("echo x > /dev/stdout", shell=True, check=True, stdout=subprocess.DEVNULL)
    """),
    "sqlite": ("db", """
        os.remove("db"); db = sqlite3.connect("db"); db.execute("create table a(b)"); db.execute("insert into a values (1)"); db.commit(); db.close()
        assert sqlite3.connect("db").execute("select b from a").fetchall() == [(1,)]
    """),
}
HEAD = f"""
import glob, mmap, os, shutil, sqlite3, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
def mine(path): return open(path, "rb").read() == {MINE!r}
def fails(kind, function, *arguments):
    try: function(*arguments)
    except kind: return
    raise AssertionError((function, arguments))
"""


def read(path):
    return b"-> " + os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes() if path.is_file() else b""


def make(folder, files):
    for name, _, target in (text.partition(" -> ") for text in (files.split() if isinstance(files, str) else files)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        elif name.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(MINE)
    return now(folder)


def now(folder):
    return {str(path): (read(path), path.lstat().st_ino) for path in folder.rglob("*")}
