"""Runs tests that a Python library brings along, and prints a line of JSON for each: its name, what became of it (passed, failed, skipped), and why.
Not a judge of it: test_suites.py compares what several allocators make of the same tests.

    python run.py FOLDERS MODULE...              modules of unittest; the library lies in one of FOLDERS, between colons
    python run.py FOLDERS --pytest OPTION...     files of pytest
"""
import importlib.util
import json
import os
import site
import sys
import unittest

OUT = open(os.dup(1), "w", encoding="utf-8")  # pytest takes the program's own output away

if len(sys.argv) > 1:
    for folder in sys.argv[1].split(os.pathsep):
        site.addsitedir(folder)  # as a site folder: numba-cuda has a .pth file


def tell_jax_of_the_gpu():
    """It looks for files in /dev, which a simulated GPU does not have."""
    if importlib.util.find_spec("jax"):
        from jax._src import hardware_utils
        hardware_utils.has_visible_nvidia_gpu = lambda: True


def tell(test, outcome, why=""):
    print("\n" + json.dumps([test, outcome, why]), file=OUT, flush=True)  # on a line of its own: pytest writes there, too


class Report(unittest.TestResult):
    def addSuccess(self, test):
        tell(test.id(), "passed")

    def addSkip(self, test, why):
        tell(test.id(), "skipped", why)

    def addFailure(self, test, error):
        tell(test.id(), "failed", self._exc_info_to_string(error, test))

    addError = addFailure

    def addSubTest(self, test, part, error):
        if error:
            self.addFailure(test, error)

    def addExpectedFailure(self, test, error):
        tell(test.id(), "failed as expected")

    def addUnexpectedSuccess(self, test):
        tell(test.id(), "passed unexpectedly")


class Plugin:
    """Tells of each phase of a test that is no plain success, and of the test itself."""

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome + (" as expected" if hasattr(report, "wasxfail") else "")
            tell(report.nodeid, outcome if report.when == "call" else f"{outcome} at {report.when}", str(report.longrepr or ""))

    def pytest_collectreport(self, report):
        if report.outcome != "passed":
            tell(report.nodeid, f"{report.outcome} before it ran", str(report.longrepr))


if __name__ == "__main__":  # tests that spawn processes import this file
    if sys.argv[2:3] == ["--pytest"]:
        import pytest
        tell_jax_of_the_gpu()
        ours = ["-q", "--capture=fd", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "required_plugins=", "-o", "addopts="]
        status = pytest.main([*ours, *sys.argv[3:]], plugins=[Plugin()])
        sys.exit(status if status in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR) else 0)
    else:
        unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:]).run(Report())
