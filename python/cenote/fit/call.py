"""`cenote.dry_run()`: a dry run that a program asks for. The command runs in a process of its own, and its --json is the answer."""
import json
import os
import subprocess
import tempfile
from typing import Any, Sequence, Union

from cenote.launch import python

Path = Union[str, "os.PathLike[str]"]
SELF = "cenote dry-run: "  # before a sentence of the command
TAIL = 2000


def listed(one_or_several: Union[Path, Sequence[Path]]) -> list[str]:
    several = [one_or_several] if isinstance(one_or_several, (str, os.PathLike)) else one_or_several
    return [os.fspath(one) for one in several]


def dry_run(program: Union[Path, Sequence[Path]], gpu: Union[str, Sequence[str], None], options: Sequence[str]) -> dict[str, Any]:
    cards = [f"--gpu={','.join(listed(gpu))}"] if gpu is not None else []
    with tempfile.TemporaryDirectory(prefix="cenote-call-") as folder:
        path = os.path.join(folder, "answer.json")
        command = python.of_ours("cenote.command", "dry-run", "--quiet", *cards, *options, "--json", path, *listed(program))
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                answer: dict[str, Any] = json.load(file)
            return answer
    raise RuntimeError(why(done.returncode, done.stdout.decode(errors="replace")))


def why(status: int, said: str) -> str:
    """The command's own sentence, which is the last that it says."""
    own = [line.removeprefix(SELF) for line in said.splitlines() if line.startswith(SELF)]
    return own[-1] if own else f"the dry run ended with status {status}: {said[-TAIL:].strip()}"
