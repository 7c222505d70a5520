"""A plug-in of pytest (docs/ci.md): a test that is marked fails if it needs more GPU memory than the mark says. No GPU is needed.

    @pytest.mark.gpu_memory("4GiB")
    def test_a_training_step(model): ...

The test runs, with its fixtures, in a process of its own on the simulated GPU (pytest_child.py), which tells what it held as a program tells
`cenote dry-run`. This process sets up nothing for the test; it hands on the reports of the other one, and adds its judgement. So the peak is the same
alone as among other tests, and tests without the mark run as they would without the plug-in.

pytest loads this module for every project of a Python in which cenote is installed: it imports the rest only when a marked test runs.
"""
from __future__ import annotations

import marshal
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import Any, Callable, NamedTuple, Optional

import pytest

MARK, PEAK = "gpu_memory", "gpu_memory_peak"
CHILD = "cenote-child"  # the plug-in that stands for the other process there
ORDER, REPORTS = "order.marshal", "reports.json"
FILES = ("xmlpath", "htmlpath", "report_log", "cov_source")  # options for files that a session writes at its end: this process does
TAIL = 4000  # bytes of the output of a process that ended without a report


class Run(NamedTuple):
    """What became of the other process."""

    reports: list[dict[str, Any]]  # of pytest: setup, call, teardown
    troubles: list[str]  # why the test could not be collected
    figures: list[dict[str, Any]]  # of inside/fit_report.py
    status: int
    tail: str


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(limit): run the test on cenote's simulated GPU; it fails if its tensors hold more at one time, "
                            "as in gpu_memory('4GiB')")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: Optional[pytest.Item]) -> Optional[bool]:
    mark = item.get_closest_marker(MARK)
    if mark is None or item.config.pluginmanager.has_plugin(CHILD):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in [*play(item, mark), *torn_down(item, nextitem)]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def called(item: pytest.Item, function: Callable[[], None], when: Any) -> pytest.TestReport:
    call = pytest.CallInfo.from_call(function, when=when, reraise=(pytest.exit.Exception, KeyboardInterrupt))
    return pytest.TestReport.from_item_and_call(item, call)


def torn_down(item: pytest.Item, nextitem: Optional[pytest.Item]) -> list[pytest.TestReport]:
    """Ends what the tests before have set up and the next one does not share. This test has set up nothing, so pytest would not expect it."""
    state: Any = item.session._setupstate
    report = called(item, lambda: state.teardown_exact(nextitem), "teardown")
    return [report] if report.failed else []


# --- one marked test

def play(item: pytest.Item, mark: pytest.Mark) -> list[pytest.TestReport]:
    found: list[Any] = []

    def work() -> None:
        limit = limit_of(mark)
        found.append((limit, run(item)))
    report = called(item, work, "call")
    if not found:
        return [report]
    limit, done = found[0]
    reports = [item.config.hook.pytest_report_from_serializable(config=item.config, data=data) for data in done.reports]
    judge(item, limit, done, reports)
    return reports


def limit_of(mark: pytest.Mark) -> int:
    from cenote.base import quantity
    limit = mark.args[0] if len(mark.args) == 1 and not mark.kwargs else None
    if type(limit) is int and limit >= 0:
        return limit
    with suppress(TypeError, ValueError):
        return quantity.read_size(limit)  # type: ignore[arg-type]
    text = ", ".join([*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())])
    pytest.fail(f"@pytest.mark.{MARK}({text[:60]}): it takes one size, as in @pytest.mark.{MARK}('4GiB')", pytrace=False)


def variables(folder: str) -> dict[str, str]:
    """The environment of the other process: of `cenote dry-run --steps 0` on the largest simulated GPU, or on that of this process."""
    from cenote.launch import command_line, environment
    from cenote.launch import run as launcher
    capacity = None if os.environ.get(environment.SIM) else command_line.MOST_CAPACITY
    allocator = environment.chosen(os.environ)
    new = environment.prepare(environment.Wish(capacity, allocator=allocator), os.environ, launcher.preload_library())
    new.setdefault(environment.CENOTE, "off")  # Python's hook looks whether it is there
    launcher.prepare_plugin(True, new)
    for name in (environment.LABELS, "CUDA_VISIBLE_DEVICES"):  # inside/fit_report.py switches labels on; the other is about this machine's GPUs
        new.pop(name, None)
    return {**new, environment.DRY_RUN: folder, environment.DRY_STEPS: "0", environment.DRY_UNKNOWN: "typical"}


def order(item: pytest.Item) -> dict[str, Any]:
    """What the other process needs to be as this one: pytest's options, as pytest-xdist hands them to its workers, and where modules are found."""
    config = item.config
    options = {**vars(config.option), "rootdir": str(config.rootpath), "inifilename": str(config.inipath) if config.inipath else None,
               "usepdb": False, "plugins": [*config.option.plugins, "no:terminal"], **dict.fromkeys(FILES)}
    place: Any = getattr(config, "_tmp_path_factory", None)
    options["basetemp"] = str(place.getbasetemp() / f"{MARK}-{os.urandom(4).hex()}") if place is not None else None
    return {"test": f"{item.path}::{item.nodeid.partition('::')[2]}", "options": plain(options), "path": sys.path, "arguments": sys.argv,
            "worker": plain(getattr(config, "workerinput", {}))}


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Those that can be written down; the others are at their defaults there."""
    return {name: value for name, value in values.items() if is_plain(value)}


def is_plain(value: Any) -> bool:
    try:
        marshal.dumps(value)
    except ValueError:
        return False
    return True


def run(item: pytest.Item) -> Run:
    from cenote.base import outputs
    from cenote.base.mistake import Mistake
    from cenote.launch import python
    from cenote.places import NotBuilt
    with tempfile.TemporaryDirectory(prefix="cenote-pytest-") as folder, tempfile.TemporaryFile() as output:
        figures = os.path.join(folder, "figures")
        os.mkdir(figures)
        try:
            environment = variables(figures)
        except (Mistake, NotBuilt) as why:
            pytest.fail(f"{MARK}: {why}", pytrace=False)
        outputs.write(os.path.join(folder, ORDER), marshal.dumps(order(item)))
        shown = None if item.config.option.capture == "no" else output
        command = python.of_ours("cenote.integrations.pytest_child", folder)
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=shown, stderr=shown,
                                 cwd=item.config.invocation_params.dir)
        try:
            status = child.wait()
        finally:  # an interrupt, or the time limit of another plug-in
            child.kill()
            child.wait()
        output.seek(max(output.seek(0, os.SEEK_END) - TAIL, 0))
        return read(folder, status, output.read().decode(errors="replace"))


def read(folder: str, status: int, tail: str) -> Run:
    import json

    from cenote.fit import dry_run
    said: dict[str, Any] = {"reports": [], "troubles": []}
    path = os.path.join(folder, REPORTS)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            said = json.load(file)
    return Run(said["reports"], said["troubles"], dry_run.read_reports(os.path.join(folder, "figures")), status, tail)


# --- the judgement

def judge(item: pytest.Item, limit: int, done: Run, reports: list[pytest.TestReport]) -> None:
    """Adds a failure where there is one that the test itself does not tell, and the peak to each report."""
    call = next((report for report in reversed(reports) if report.when == "call"), None)  # the last of several tries
    peak = max((device["live_peak"] for report in done.figures for device in report["devices"].values()), default=0)
    if not reports or (call is None and all(report.passed for report in reports)) or (done.status < 0 and not any(one.failed for one in reports)):
        why = "\n".join(done.troubles) or done.tail or "pytest kept what it printed, and -s shows it"
        how = f"signal {-done.status}" if done.status < 0 else f"exit status {done.status}"
        text = f"{MARK}: the process in which this test runs ended without its result, {how}:\n{why}"
        reports[:] = [called(item, lambda: pytest.fail(text, pytrace=False), "call")]
    elif call is not None and call.passed and not hasattr(call, "wasxfail"):
        why = excess(limit, peak, done) if peak else no_gpu(done)
        if why:
            call.outcome, call.longrepr = "failed", why
    for report in reports:
        report.user_properties.extend([(PEAK, peak), (MARK, limit)])


def excess(limit: int, peak: int, done: Run) -> str:
    """Empty if the test keeps to its limit."""
    if peak <= limit:
        return ""
    from cenote.base.quantity import readable as size
    from cenote.fit import verdict
    from cenote.fit.outcome import Outcome
    from cenote.launch import command_line
    outcome = Outcome(command_line.MOST_CAPACITY, "", 0, done.status, done.figures, "")
    head = f"GPU memory: {size(peak)} at most, {size(peak - limit)} above the limit of {size(limit)} (simulated GPU)"
    return "\n".join([head, *verdict.peak_lines(outcome)[1:]])  # that line is about what the allocator holds on this card


def no_gpu(done: Run) -> str:
    why = "no tensor was on a GPU"
    if not done.figures:
        why = "PyTorch was not imported, or is built without CUDA (a build for CUDA needs no GPU here)"
    return f"{MARK}: the test used no GPU memory, so its limit says nothing: {why}"


# --- what all marked tests held

def pytest_terminal_summary(terminalreporter: Any) -> None:
    from cenote.base.quantity import readable as size
    reports = [report for name in ("passed", "failed", "xfailed", "xpassed") for report in terminalreporter.stats.get(name, ())]
    held = {report.nodeid: dict(report.user_properties) for report in reports if getattr(report, "when", "") == "call"}
    rows = [(properties[PEAK], properties[MARK], test) for test, properties in held.items() if PEAK in properties]
    if rows:
        terminalreporter.section("GPU memory on cenote's simulated GPU: peak, limit")
        for peak, limit, test in sorted(rows, reverse=True):
            terminalreporter.line(f"{size(peak):>12}  {size(limit):>12}  {test}")
