#!/usr/bin/env python3
"""Runs the commands of docs/memory-questions.md, and puts their real output there.

    examples/questions/answers.py [--check] [WORD...]

In the page a command is a line of a console block, "$ cenote run ... PROGRAM.py"; the lines up to the end of the block, or to the next command, are
its output. With --check nothing is written: if the output differs, the difference is printed, and the exit status is 1. Process ids may differ.
WORD: only commands that contain it.
"""
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

TREE = pathlib.Path(__file__).resolve().parents[2]
PAGE = TREE / "docs" / "memory-questions.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
CHANGES = re.compile(r"(?<=[Pp]rocess )\d+|(?<=kill )\d+|(?<=pid )\d+")
SECONDS = 300


def run(command: str) -> str:
    """The output of `cenote run ...` on both streams, as a terminal shows it."""
    words = shlex.split(command)
    if words[:2] != ["cenote", "run"]:
        raise SystemExit(f"{PAGE.name}: {command!r} is not cenote run")
    environment = {**os.environ, "PYTHONPATH": str(TREE / "python"), "COLUMNS": "150", "CENOTE_SUMMARY": "off"}
    done = subprocess.run([sys.executable, "-m", "cenote", *words[1:]], cwd=TREE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=SECONDS)
    if done.returncode:
        raise SystemExit(f"{command}: exit status {done.returncode}\n{done.stdout}")
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines()).replace(str(TREE) + "/", "") + "\n"


def answer(block: str, outputs: dict[str, str]) -> str:
    """The block with the present outputs of its commands. A command that did not run keeps its old output."""
    parts = COMMAND.split(block)
    for i in range(1, len(parts), 2):
        if parts[i] in outputs:
            parts[i + 1] = outputs[parts[i]] + ("\n" if i + 2 < len(parts) else "")
        parts[i] = f"$ {parts[i]}\n"
    return "".join(parts)


def steady(text: str) -> str:
    return CHANGES.sub("N", text)


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    wanted = [word for word in arguments if word != "--check"]
    before = PAGE.read_text(encoding="utf-8")
    commands = [command for block in BLOCK.findall(before) for command in COMMAND.findall(block)]
    commands = [command for command in commands if not wanted or any(word in command for word in wanted)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each thread waits for a process
        outputs = dict(zip(commands, pool.map(run, commands)))
    after = BLOCK.sub(lambda found: f"```console\n{answer(found.group(1), outputs)}```", before)
    if not check:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    difference = list(difflib.unified_diff(steady(before).splitlines(), steady(after).splitlines(), PAGE.name, "what is printed now", lineterm=""))
    print("\n".join(difference))
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
