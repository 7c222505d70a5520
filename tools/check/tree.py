"""The files of the repository, and the report of a check. Checks nothing itself."""
import dataclasses
import functools
import pathlib
import subprocess


@dataclasses.dataclass
class Report:
    looked_at: str                                            # "84 files", for the line that is printed
    problems: list[str] = dataclasses.field(default_factory=list)


class Tree:
    """The files that git tracks or would track below `root`; in a folder without git, every file."""

    def __init__(self, root: pathlib.Path):
        self.root = root

    @functools.cached_property
    def files(self) -> list[str]:
        command = ["git", "ls-files", "-co", "--exclude-standard"]
        listing = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        if listing.returncode:
            names = [str(path.relative_to(self.root)) for path in self.root.rglob("*")]
        else:
            names = listing.stdout.splitlines()
        return sorted(name for name in set(names) if (self.root / name).is_file())

    def ending(self, *suffixes: str) -> list[str]:
        return [name for name in self.files if name.endswith(suffixes)]

    def scripts(self) -> list[str]:
        """Programs without a suffix, which name what runs them in their first line."""
        return [name for name in self.files if "." not in pathlib.Path(name).name and self.text(name).startswith("#!")]

    @functools.lru_cache(maxsize=None)
    def text(self, name: str) -> str:
        return (self.root / name).read_text(errors="replace")

    def lines(self, name: str) -> list[str]:
        return self.text(name).splitlines()

    def build_setting(self, name: str) -> str:
        """A value from the cache of the build in build/, or ""."""
        cache = self.root / "build/CMakeCache.txt"
        for line in cache.read_text().splitlines() if cache.exists() else []:
            if line.startswith(name + ":"):
                return line.split("=", 1)[1]
        return ""
