"""The reader of dynamic symbols agrees with the linker, and a damaged file gives an error and nothing worse."""
import pathlib
import random
import subprocess

import pytest

from cenote.simulated import elf

PROVIDER = """
int plain(void) { return 0; }
int old_name(void) { return 1; }
int data_of_it = 3;
static int hidden(void) { return 2; }
int (*pointer)(void) = hidden;
"""
USER = """
int plain(void), old_name(void), missing(void);
int weak_one(void) __attribute__((weak));
int use(void) { return plain() + old_name() + missing() + (weak_one ? weak_one() : 0); }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """libprovider.so.3 with the version NODE_1, and libuser.so, which needs it."""
    path = tmp_path_factory.mktemp("elf")
    (path / "provider.c").write_text(PROVIDER)
    (path / "user.c").write_text(USER)
    (path / "map").write_text("NODE_1 { global: plain; old_name; data_of_it; pointer; local: *; };")

    def gcc(*arguments):
        subprocess.run(["gcc", "-shared", "-fPIC", *arguments], cwd=path, check=True)
    gcc("provider.c", "-o", "libprovider.so.3", "-Wl,-soname,libprovider.so.3", "-Wl,--version-script=map")
    gcc("user.c", "-o", "libuser.so", "libprovider.so.3")
    gcc("provider.c", "-o", "libbare.so")
    return path


def named(symbols):
    return {symbol.name: (symbol.version, symbol.library) for symbol in symbols if not symbol.name.startswith("_")}


def test_what_a_library_exports(folder):
    library = elf.read(str(folder / "libprovider.so.3"))
    assert library.soname == "libprovider.so.3"
    assert {name for name in named(library.exported) if name != "NODE_1"} == {"plain", "old_name", "data_of_it", "pointer"}
    assert named(library.exported)["plain"] == ("NODE_1", "")


def test_what_a_library_wants(folder):
    library = elf.read(str(folder / "libuser.so"))
    wanted = named(library.wanted)
    assert wanted["plain"] == wanted["old_name"] == ("NODE_1", "libprovider.so.3")
    assert wanted["missing"] == ("", "")
    assert "weak_one" not in wanted
    assert "libprovider.so.3" in library.needs and library.soname == ""


def test_a_library_without_versions(folder):
    assert named(elf.read(str(folder / "libbare.so")).exported)["plain"] == ("", "")


@pytest.mark.parametrize("content", [
    b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x01" + bytes(58), b"\xff" * 5000,
])
def test_what_is_no_library(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    try:
        library = elf.read(str(tmp_path / "file"))
    except elf.ElfError as error:
        assert "file" in str(error)
    else:
        assert content[:6] == b"\x7fELF\x02\x01" and not library.wanted and not library.exported


def test_a_file_cut_short(folder, tmp_path):
    whole = (folder / "libuser.so").read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(elf.ElfError):
            elf.read(str(tmp_path / "cut"))


def test_damaged_files(folder, tmp_path):
    """Bytes are changed at random, mostly in headers and tables: the reader must soon return an answer or raise ElfError."""
    choose = random.Random(4)
    whole = (folder / "libuser.so").read_bytes()
    headers = len(whole) - int.from_bytes(whole[40:48], "little")
    refused = 0
    for _ in range(1000):
        damaged = bytearray(whole)
        for _ in range(choose.randint(1, 8)):
            at = choose.choice([choose.randrange(64), choose.randrange(len(whole) - headers, len(whole)), choose.randrange(0x1000)])
            damaged[at] = choose.choice([0, 1, 0x7F, 0x80, 0xFF, choose.randrange(256)])
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            elf.read(str(tmp_path / "damaged"))
        except elf.ElfError:
            refused += 1
    assert refused > 20
