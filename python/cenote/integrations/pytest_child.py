"""Runs one test for pytest_plugin.py, in a process that was started on the simulated GPU, and writes pytest's reports to a file.

It is to the other process what a worker is to pytest-xdist. If the other process is such a worker, this one looks like it to other plug-ins.
"""
import json
import marshal
import os
import sys
from typing import Any, Generator

import pytest

from cenote.base import outputs
from cenote.integrations.pytest_plugin import CHILD, ORDER, REPORTS


class Child:
    """Keeps the reports, and writes all of them anew after each: a file remains if the process ends in the middle."""

    def __init__(self, config: pytest.Config, folder: str) -> None:
        self.config, self.folder = config, folder
        self.said: dict[str, list[Any]] = {"reports": [], "troubles": []}

    def write(self) -> None:
        outputs.write(os.path.join(self.folder, REPORTS), json.dumps(self.said, default=str).encode())

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        """This one test was chosen: whatever deselects tests (-k, --lf, a plug-in that divides them) has had its say."""
        chosen = list(items)
        yield
        items[:] = chosen

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.said["troubles"].append(report.longreprtext)
            self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.said["reports"].append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))
        self.write()


def main() -> None:
    folder = sys.argv[1]
    with open(os.path.join(folder, ORDER), "rb") as file:
        order = marshal.load(file)
    sys.path[:], sys.argv[:] = order["path"], order["arguments"]
    config: Any = pytest.Config.fromdictargs(order["options"], [order["test"]])
    if order["worker"]:
        config.workerinput, config.workeroutput = order["worker"], {}
    config.pluginmanager.register(Child(config, folder), CHILD)
    try:
        status = config.hook.pytest_cmdline_main(config=config)
    except pytest.UsageError as why:
        sys.exit(f"{why}")
    sys.exit(int(status))
