"""What a program says, less the names of folders: tests look for words like Traceback, error and cenote, and any folder may be called so."""

import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]


def said(text: str, *folders: object) -> str:
    known = {str(ROOT), os.getcwd(), sys.prefix, sys.base_prefix, tempfile.gettempdir(), os.path.expanduser("~"), *map(str, folders)} - {"/"}
    for folder in sorted(known, key=len, reverse=True):
        text = text.replace(folder, "...")
    return text
