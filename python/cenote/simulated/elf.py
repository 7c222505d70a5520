"""Reads the dynamic symbols of a shared library, with versions: the symbols that the library exports, and those that it needs from others. Also which
libraries a program needs, and where its constants lie.

It reads 64-bit little-endian ELF files by their section headers, and only the parts that it needs. A damaged file is an ElfError, never a wrong
result.
"""
import mmap
import struct
from typing import Iterator, NamedTuple

DYNAMIC, DYNSYM, VERDEF, VERNEED, VERSYM = 6, 11, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 14, 15, 29
CONSTANTS = b".rodata"  # how the names of the sections of constants begin
WEAK, ABSENT, HIDDEN = 2, 0, 0x8000


class ElfError(ValueError):
    """The file is no library, or a damaged one."""


class Symbol(NamedTuple):
    name: str
    version: str  # "" without one
    library: str  # of a wanted symbol: the library that has to export it; "" if any may


class Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int
    entries: int


class Library(NamedTuple):
    soname: str
    needs: tuple[str, ...]
    wanted: frozenset[Symbol]  # without weak ones, which may be absent
    exported: frozenset[Symbol]


class Image:
    """A mapped file and its sections."""

    def __init__(self, data: mmap.mmap):
        self.data = data
        if len(data) < 64 or data[:6] != b"\x7fELF\x02\x01":
            raise ElfError("not a 64-bit little-endian ELF file")
        start, = struct.unpack_from("<Q", data, 40)
        size, count = struct.unpack_from("<HH", data, 58)
        self.sections = []
        for i in range(count):
            kind, = struct.unpack_from("<I", data, start + i * size + 4)
            offset, length, link, entries = struct.unpack_from("<QQII", data, start + i * size + 24)
            if kind in (DYNAMIC, DYNSYM, VERDEF, VERNEED, VERSYM) and offset + length > len(data):
                raise ElfError("a section is not in the file")
            self.sections.append(Section(kind, offset, length, link, entries))

    def section(self, kind: int) -> Section:
        """The first section of this kind, or an empty one."""
        return next((s for s in self.sections if s.kind == kind), Section(kind, 0, 0, 0, 0))

    def strings(self, section: Section) -> bytes:
        """The string table of a section's names."""
        if section.size == 0:
            return b"\0"
        table = self.sections[section.link]
        return self.data[table.offset:table.offset + table.size]

    def named(self, *tags: int) -> Iterator[tuple[int, str]]:
        """The rows of the dynamic section with these tags, whose values are names."""
        section = self.section(DYNAMIC)
        names = self.strings(section)
        for tag, value in struct.iter_unpack("<QQ", self.data[section.offset:section.offset + section.size // 16 * 16]):
            if tag in tags:
                yield tag, text_at(names, value)

    def dynamic(self) -> tuple[str, tuple[str, ...]]:
        """The library's own name, and the names of the libraries that it needs."""
        rows = list(self.named(DT_SONAME, DT_NEEDED))
        return next((text for tag, text in rows if tag == DT_SONAME), ""), tuple(text for tag, text in rows if tag == DT_NEEDED)

    def folders(self) -> tuple[str, ...]:
        """Where the file wants the libraries looked for that it needs."""
        return tuple(folder for _, text in self.named(DT_RPATH, DT_RUNPATH) for folder in text.split(":") if folder)

    def constants(self) -> Iterator[tuple[int, int]]:
        """Where each section of constants begins, and its size; the whole file if it has no sections."""
        start, = struct.unpack_from("<Q", self.data, 40)
        step, count, index = struct.unpack_from("<HHH", self.data, 58)
        if not count:
            yield 0, len(self.data)
            return
        table = self.sections[index]
        names = self.data[table.offset:table.offset + table.size]
        for i, section in enumerate(self.sections):
            at, = struct.unpack_from("<I", self.data, start + i * step)
            if names[at:at + len(CONSTANTS)] == CONSTANTS:
                yield section.offset, section.size

    def versions(self) -> dict[int, tuple[str, str]]:
        """By the number that the symbol table uses: a version, and the library that has to export it ("" for the file's own versions)."""
        found = {}
        section = self.section(VERNEED)
        names = self.strings(section)
        for at, (_, _, file, first, _) in self.chain(section.offset, section.entries, "<HHIII", 12):
            count, = struct.unpack_from("<H", self.data, at + 2)
            for _, (_, _, number, name, _) in self.chain(at + first, count, "<IHHII", 12):
                found[number & ~HIDDEN] = text_at(names, name), text_at(names, file)
        section = self.section(VERDEF)
        names = self.strings(section)
        for at, (_, _, number, _, _, first, _) in self.chain(section.offset, section.entries, "<HHHHIII", 16):
            name, = struct.unpack_from("<I", self.data, at + first)
            if number > 1:  # 1 is the library itself
                found[number & ~HIDDEN] = text_at(names, name), ""
        return found

    def chain(self, at: int, count: int, layout: str, next_field: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The offsets and fields of at most `count` linked records: the field at `next_field` is the distance to the next record, 0 in the last."""
        for _ in range(count):
            yield at, struct.unpack_from(layout, self.data, at)
            step, = struct.unpack_from("<I", self.data, at + next_field)
            if step == 0:
                return
            at += step

    def symbols(self) -> Iterator[tuple[bool, Symbol]]:
        """Each symbol, and whether it is defined here."""
        section, versym = self.section(DYNSYM), self.section(VERSYM)
        names, versions = self.strings(section), self.versions()
        count = section.size // 24
        numbers = struct.unpack_from(f"<{count}H", self.data, versym.offset) if versym.size else (1,) * count
        table = self.data[section.offset:section.offset + count * 24]
        for number, (name, info, _, index, _, _) in zip(numbers, struct.iter_unpack("<IBBHQQ", table)):
            bind = info >> 4
            if name == 0 or bind == 0 or (index == ABSENT and bind == WEAK):
                continue
            yield index != ABSENT, Symbol(text_at(names, name), *versions.get(number & ~HIDDEN, ("", "")))


def text_at(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if end < 0:
        raise ElfError("a name is not in its table")
    return table[offset:end].decode("ascii", "replace")


def needs(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The libraries that a file needs, and the folders in which it wants them looked for."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            image = Image(data)
            return image.dynamic()[1], image.folders()
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise ElfError(f"{path}: {error}") from None


def read(path: str) -> Library:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            image = Image(data)
            wanted: set[Symbol] = set()
            exported: set[Symbol] = set()
            for is_defined, symbol in image.symbols():
                (exported if is_defined else wanted).add(symbol)
            return Library(*image.dynamic(), frozenset(wanted), frozenset(exported))
    except (struct.error, IndexError, OverflowError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ElfError(f"{path}: {error}") from None
