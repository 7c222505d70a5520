"""`make docs`: the documents as a site. Nothing comes from a network, the search works in files, and a link to nowhere is an error."""
import os
import re
import shutil
import subprocess
import sys
import time

import pytest
from conftest import ROOT
from patience import patience

import browser

SITE = ROOT / "tools/site"
SECONDS = 120
MKDOCS = (sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file")
FETCHES = re.compile(r"<(?:script|link|img|iframe)[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")


def build(config, folder):
    return subprocess.run([*MKDOCS, config, "--site-dir", folder], capture_output=True, text=True, timeout=SECONDS,
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(SITE / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_document_is_a_page_and_a_source_that_one_names_is_too(site):
    documents = {path.relative_to(ROOT).with_suffix(".html") for path in (ROOT / "docs").glob("*.md") if path.stem != "README"}
    pages = {path.relative_to(site) for path in site.rglob("*.html")}
    assert documents <= pages
    assert (site / "docs/index.html").exists() and (site / "pool/index.html").exists() and (site / "docs/pictures/run.png").exists()
    assert "cenote_pool_trim" in (site / "include/cenote/cenote.h.html").read_text()
    assert 'href="../include/cenote/options.def.html"' in (site / "docs/options.html").read_text()


def test_no_page_fetches_anything(site):
    for page in site.rglob("*.html"):
        assert not FETCHES.search(page.read_text()), page


@pytest.mark.browser
def test_the_search_works_in_a_page_that_was_opened_as_a_file(site):
    with browser.Browser() as opened:
        opened.open(site / "index.html")
        ask = """(() => { const field = document.querySelector('.md-search__input'); field.blur(); field.focus(); field.value = 'cenote_pool_grant';
                 field.dispatchEvent(new Event('keyup'));
                 return new Promise(done => setTimeout(done, 300)).then(() =>
                     [...document.querySelectorAll('.md-search-result__item a')].map(found => found.getAttribute('href'))); })()"""
        until = time.monotonic() + patience(20)  # what is typed before the page listens is lost
        while not (found := opened.value(ask)) and time.monotonic() < until:
            pass
        assert any("cenote.h.html" in address for address in found), found
        assert not [line for line in opened.complaints() if not line.startswith("data:")]


GOOD = "# A heading: of `two_words`\n\n[a](#a-heading-of-two_words) [b](../README.md)\n"
BAD = GOOD + "[c](b.md) [d](../pool/b.c) [e](#another)\n"


@pytest.mark.parametrize("page, complaints", [
    (GOOD, []), (BAD, ["'docs/b.md' is not found", "'pool/b.c' is not found", "'#another', but there is no such anchor"])
])
def test_a_link_to_nowhere_ends_the_build(tmp_path, page, complaints):
    place = tmp_path / "repository"
    shutil.copytree(SITE, place / "tools/site", ignore=shutil.ignore_patterns("__pycache__"))
    config = place / "tools/site/mkdocs.yml"
    config.write_text(config.read_text().partition("\nnav:")[0] + "\nnav: [README.md, CONTRIBUTING.md, docs/a.md]\n")
    (place / "docs").mkdir()
    for name, text in ("README.md", "# R\n"), ("CONTRIBUTING.md", "# C\n"), ("docs/a.md", page):
        (place / name).write_text(text)
    subprocess.run(["git", "init", "-q", place], check=True)
    done = build(config, tmp_path / "site")
    assert (done.returncode != 0) == bool(complaints) and [words for words in complaints if words not in done.stderr] == [], done.stderr
