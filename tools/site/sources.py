"""sources: which files of the repository are pages of the site, for mkdocs (hooks of mkdocs.yml). Reads files and writes none.

The pages are those at the root of the repository and in docs/, the maps of folders (README.md), and every file to which one of these links: sources
in a code block, pictures and figures as they are. Each has the path that it has in the repository, so the links that work on a code host work here. A
link to a file that is not in the repository stays without a page, and mkdocs, which is strict here, ends with an error.
"""
import pathlib
import posixpath
import re
import subprocess

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
LINK = re.compile(r"\]\(([^)#\s]+)")
LANGUAGES = {".c": "c", ".h": "c", ".def": "c", ".cpp": "cpp", ".hpp": "cpp", ".py": "python", ".map": "text", ".txt": "text", ".yml": "yaml"}
ASSETS = ("iframe-worker.js", "site.css")


def slug(text: str, separator: str) -> str:
    """The anchor that code hosts give a heading: neither blanks nor dashes are joined."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


class Source(File):
    """A file of the repository that is no Markdown, as a page with one block of code."""

    def __init__(self, path: str, config) -> None:
        super().__init__(path, None, config.site_dir, False, dest_uri=path + ".html", inclusion=InclusionLevel.NOT_IN_NAV)
        self.generated_by = __name__
        text = (ROOT / path).read_text()
        self._content = f"---\nhide: [toc]\n---\n# {path}\n\n~~~~~~~~ {LANGUAGES[posixpath.splitext(path)[1]]}\n{text}~~~~~~~~\n"

    def is_documentation_page(self) -> bool:
        return True


def repository() -> set[str]:
    """Tracked files, and new ones that git does not ignore; a source package has no git, and no site."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(listed.stdout.splitlines())


def linked(page: str) -> set[str]:
    folder = posixpath.dirname(page)
    return {posixpath.normpath(posixpath.join(folder, target)) for target in LINK.findall((ROOT / page).read_text())}


def on_config(config):
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_files(files: Files, *, config) -> Files:
    there = repository()
    pages = {path for path in there if path.endswith(".md") and ("/" not in path or path.startswith("docs/"))}
    found, new = set(pages), set(pages)
    while new:  # what pages name, and the pages that those name
        new = {path for page in new if page.endswith(".md") for path in linked(page)} & there - found
        found |= new
    headers = {path for path in there if re.fullmatch(r"include/cenote/\w+\.h(pp)?", path)}
    made = [Source(path, config) for path in sorted(found | headers) if posixpath.splitext(path)[1] in LANGUAGES]
    made += [File(path, str(ROOT), config.site_dir, False, inclusion=InclusionLevel.INCLUDED if path in pages else InclusionLevel.NOT_IN_NAV)
             for path in sorted(found) if posixpath.splitext(path)[1] not in LANGUAGES]
    made += [File.generated(config, f"assets/{name}", abs_src_path=str(HERE / name)) for name in ASSETS]
    return Files([file for file in files if file.src_dir != config.docs_dir] + made)  # the others are the theme's


def on_page_markdown(markdown: str, *, page, **_) -> str:
    if page.parent is None and not page.file.inclusion.is_not_in_nav():
        page.meta.setdefault("hide", []).append("navigation")  # a list of one: itself
    return re.sub(r"^\|.*", lambda row: re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", row[0]), markdown, flags=re.M)
