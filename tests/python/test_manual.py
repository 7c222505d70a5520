"""Manual pages: every command and every call has one, man finds it, and neither groff nor mandoc complains."""
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from cenote import command

MANUAL = ROOT / "cmake/manual"
SECONDS = 60
NO_DATE = re.compile(r".*missing date.*\n?")  # pages have the version instead
CALL = re.compile(r"CENOTE_API\b[^;]*?\b(cenote_\w+)\s*\(")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man")
    for section, script in (1, "commands.py"), (3, "headers.py"):
        (folder / f"man{section}").mkdir()
        subprocess.run([sys.executable, "-B", MANUAL / script, "0.1.0", folder / f"man{section}"], check=True, timeout=SECONDS)
    return folder


def shown(page):
    done = subprocess.run(["groff", "-ww", "-man", "-Tascii", "-rHY=0", "-P-cbou", page], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, ""), page
    return " ".join(done.stdout.split())


def test_a_page_for_every_command_with_all_its_options(pages):
    for name, about, parser in command.parsers():
        text = shown(pages / "man1" / f"cenote{'-' if name else ''}{name}.1")
        assert about in text
        for action in parser._actions:
            assert not action.option_strings or ", ".join(action.option_strings[:1]) in text
        for line in parser.format_usage().removeprefix("usage:").strip().splitlines():
            assert " ".join(line.split()) in text


def test_a_page_for_every_call_of_the_headers(pages):
    for header in (ROOT / "include/cenote").glob("*.h"):
        name = header.name if header.stem == "cenote" else f"cenote_{header.name}"
        text = shown(pages / "man3" / f"{name}.3")
        calls = CALL.findall(header.read_text())
        assert calls and f"#include <cenote/{header.name}>" in text and "CENOTE_API" not in text and "__VA_ARGS__" not in text
        for call in calls:
            assert (pages / "man3" / f"{call}.3").read_text() == f".so man3/{name}.3\n"
            assert f"{call}(" in text
    text = shown(pages / "man3/cenote.h.3")
    assert "int cenote_find(const void *address, cenote_block *block);" in text and "CENOTE_DOUBLE_FREE the block is free already" in text


def test_mandoc_finds_nothing_wrong(pages):
    pages = [page for page in pages.glob("man?/*") if not page.read_text().startswith(".so ")]
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *pages], capture_output=True, text=True, timeout=SECONDS)
    assert NO_DATE.sub("", done.stdout + done.stderr) == ""
