"""Runs modules of tests that a Python library brings along, in this process, and prints a line of JSON for each test: its name, what became of it
(passed, failed, skipped), and why. Not a judge of it: test_suites.py compares what several allocators make of the same tests.

    python run.py FOLDER MODULE...      the library lies in FOLDER
"""
import json
import site
import sys
import unittest

if len(sys.argv) > 1:
    site.addsitedir(sys.argv[1])  # as a site folder: numba-cuda has a .pth file


class Report(unittest.TestResult):
    def tell(self, test, outcome, why=""):
        print(json.dumps([test.id(), outcome, why]), flush=True)

    def addSuccess(self, test):
        self.tell(test, "passed")

    def addSkip(self, test, why):
        self.tell(test, "skipped", why)

    def addFailure(self, test, error):
        self.tell(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure

    def addSubTest(self, test, part, error):
        if error:
            self.addFailure(test, error)

    def addExpectedFailure(self, test, error):
        self.tell(test, "failed as expected")

    def addUnexpectedSuccess(self, test):
        self.tell(test, "passed unexpectedly")


if __name__ == "__main__":  # tests that spawn processes import this file
    unittest.defaultTestLoader.loadTestsFromNames(sys.argv[2:]).run(Report())
