"""Runs all cases of one Python library in this process, on a simulated GPU, and prints a line of JSON for each: its name, and what went wrong.

    python run.py FOLDER LIBRARY        the library lies in FOLDER; its cases are the functions case_* of LIBRARY_cases.py beside this
"""
import importlib
import json
import site
import sys
import traceback

site.addsitedir(sys.argv[1])  # as a site folder: numba-cuda has a .pth file
cases = importlib.import_module(sys.argv[2] + "_cases")
for name in dir(cases):
    if name.startswith("case_"):
        try:
            getattr(cases, name)()
            print(json.dumps([name, ""]), flush=True)
        except BaseException:
            print(json.dumps([name, traceback.format_exc()]), flush=True)
