"""Which step, line and holder makes memory grow: cenote.growth(). For CENOTE_TEST_ALLOCATOR=cenote.

Each program with a bug must give an alarm within five steps, with the holder's name and with the line that is marked `# here`. The clean programs
do the same without the bug, and must give no alarm.
"""

import gc
import inspect
import random
import re
import sys
import threading
import weakref

import pytest
import torch

import simulated
from growing_programs import BUGS, CLEAN, batch, learn, network, outputs_in_a_list

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
sys.path.insert(0, str(simulated.ROOT / "python"))
FILE, PROGRAMS = "test_cenote_growth.py", "growing_programs.py"


@pytest.fixture
def cenote():
    import cenote

    torch.empty(1, device="cuda")
    return cenote


class Told(list):
    """Collects alarms, with the step of each."""

    def watch(self, **settings):
        import cenote

        self.watching = cenote.growth(alarm=lambda cause: self.append((self.watching.step, cause)), **settings)
        return self.watching


@pytest.fixture
def told(cenote):
    told = Told()
    yield told
    told.watching.close()
    assert not told.watching.trouble


def marked(function) -> str:
    """The line with `# here`, as an alarm names it."""
    lines, first = inspect.getsourcelines(function)
    (at,) = [number for number, line in enumerate(lines) if line.rstrip().endswith("# here")]
    return f"{PROGRAMS}:{first + at}"


@pytest.mark.parametrize("bug, where, holder, grows", BUGS, ids=[bug[0].__name__ for bug in BUGS])
def test_bugs_are_told_within_five_steps(told, bug, where, holder, grows):
    with told.watch():
        bug()
    (step, cause), *others = told
    text = str(cause)
    assert step <= 5 and not others
    assert holder in text, text
    assert re.search(rf"kept at \S*{re.escape(marked(where or bug))}:", text), text
    assert (cause.per_step > 0) == grows and ("memory grows: +" in text) == grows


def test_a_bug_that_begins_late(told):
    model, outputs = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    with told.watch() as watching:
        for number in range(40):
            output = model(batch())
            learn(optimizer, output.square().mean())
            if number >= 30:
                outputs.append(output.detach())
    ((step, cause),) = told
    assert step <= 35 and "list `outputs`" in str(cause) and watching.step == 40
    assert re.search(rf"allocated at \S*{FILE}:\d+ in test_a_bug_that_begins_late: `output = model", str(cause))
    assert cause.sites[0][1] == 512 * 256 * 4


def test_an_evaluation_after_training(told):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    with told.watch() as watching:
        for _ in range(6):
            learn(optimizer, model(batch()).square().mean())
        model.eval()
        total = 0
        for _ in range(8):
            total += model(batch()).square().mean()
    ((step, cause),) = told
    assert 7 < step <= 12 and "history of `total`" in str(cause), watching.step


def test_what_was_allocated_where(told):
    with told.watch():
        outputs_in_a_list()
    lines, first = inspect.getsourcelines(outputs_in_a_list)
    (at,) = [number for number, line in enumerate(lines) if "= model(" in line]
    assert f"allocated at {told[0][1].sites[0][0]}".split(" in ")[0].endswith(f"{PROGRAMS}:{first + at}")
    assert told[0][1].per_step == 512 * 256 * 4


# --- clean programs


@pytest.mark.parametrize("program", CLEAN, ids=[program.__name__ for program in CLEAN])
def test_clean_programs_give_no_alarm(told, program):
    random.seed(7)
    with told.watch() as watching:
        program()
    assert not told, told[0][1]
    assert watching.step >= 20


def test_a_dictionary_that_never_stops(told):
    model, outputs = network(), {}
    optimizer = torch.optim.Adam(model.parameters())
    with told.watch():
        for number in range(40):
            output = model(batch())
            learn(optimizer, output.square().mean())
            outputs[number] = output.detach()
    ((step, cause),) = told
    assert 16 < step <= 40 and "dict `outputs`" in str(cause)


# --- the report


def test_a_report_has_steps_tags_and_holders(cenote, told):
    model, outputs = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    watching = told.watch()
    assert "it takes 5 to tell" in watching.report()
    for _ in range(8):
        with cenote.tag("network"):
            output = model(batch())
        learn(optimizer, output.square().mean())
        outputs.append(output.detach())
    report = watching.report(stacks=True)
    assert "step 8: live " in report and "at its peak" in report and "(+512.0 KiB a step over the last 4)" in report
    assert "+512.0 KiB a step over the last 7, held by list `outputs` in test_a_report_has_steps_tags_and_holders(): 7 blocks" in report
    assert "tag network: +" in report and f"{FILE}:" in report
    outputs.clear()
    after = watching.report()
    assert "nothing grows" in after and "no longer: held by list `outputs`" in after
    watching.close()
    watching.close()
    assert "list `outputs`" in watching.report()


def test_what_no_python_object_holds(told):
    """TorchScript keeps its lists in C++: an alarm has only the line."""
    model, kept = network(), torch._C.ScriptList([torch.empty(1)])
    optimizer = torch.optim.Adam(model.parameters())
    with told.watch():
        for _ in range(20):
            output = model(batch())
            learn(optimizer, output.square().mean())
            kept.append(output.detach())
    ((_, cause),) = told
    assert "held by no Python object that was found" in str(cause) and "output = model(batch())" in str(cause)


def test_small_growth_is_for_the_report(told):
    model, means = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    with told.watch() as watching:
        for _ in range(10):
            loss = model(batch()).square().mean()
            learn(optimizer, loss)
            means.append(loss.detach())
        report = watching.report()
    assert not told and "+512 B a step over the last 9, held by list `means`" in report


# --- the program does not notice


class Touchy(type):
    """Counts what is asked of a class and of its objects."""

    asked: list = []

    def __hash__(cls):
        Touchy.asked.append("hash of a class")
        return 1

    def __eq__(cls, other):
        Touchy.asked.append("equality of a class")
        return cls is other

    def __getattribute__(cls, name):
        Touchy.asked.append(f"class.{name}")
        return type.__getattribute__(cls, name)


class Proxy(metaclass=Touchy):
    def __init__(self, target):
        object.__setattr__(self, "target", target)

    def __getattribute__(self, name):
        Touchy.asked.append(name)
        raise AttributeError(name)

    @property
    def __class__(self):
        Touchy.asked.append("__class__")
        return torch.Tensor

    def __len__(self):
        Touchy.asked.append("len")
        return 0

    __iter__ = __repr__ = __bool__ = __len__


class Wrapped(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Touchy.asked.append(f"torch function {function}")
        return super().__torch_function__(function, types, args, kwargs or {})


def test_nothing_of_the_program_runs(told):
    model, outputs = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    watching = told.watch()
    for _ in range(8):
        output = model(batch())
        learn(optimizer, output.square().mean())
        outputs.append(Proxy([output.detach().as_subclass(Wrapped)]))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: Touchy.asked.append("unpacked") or t):
        history = model(batch()).exp()
    Touchy.asked.clear()
    report = watching.report()
    assert not Touchy.asked
    assert "`outputs`" in report and len(told) == 1 and history is not None
    Touchy.asked.clear()


def test_nothing_is_kept_alive_and_the_device_is_not_asked(told, sim):
    outputs = []
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    watching = told.watch()
    for _ in range(8):
        output = model(batch())
        learn(optimizer, output.square().mean())
        outputs.append(output)
    watching.report()
    kernels, live = sim.books().kernels, torch.cuda.memory_allocated()
    gc.disable()
    try:
        for _ in range(3):
            watching.report()
        assert torch.cuda.memory_allocated() == live and sim.books().kernels == kernels
        last = weakref.ref(outputs[-2])
        del outputs[:], output
        assert last() is None and torch.cuda.memory_allocated() <= live - 8 * 512 * 256 * 4
    finally:
        gc.enable()


def test_variables_of_frames_are_as_they_were(told):
    """A look at the variables of a frame must neither undo what its function does nor keep objects alive."""
    watching = told.watch()
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    output = None
    for number in range(8):
        output = model(batch())
        gone = weakref.ref(output)
        learn(optimizer, output.square().mean())
        watching.report()
        del output
        assert gone() is None
    assert "output" not in locals() and number == 7


def test_what_the_program_has_from_locals_stays(told):
    watching = told.watch()
    batches = 8
    settings = locals()
    for _ in range(batches):
        watching.search()
        assert settings["batches"] == 8 and settings["told"] is told


def recording() -> bool:
    return torch._C._cuda_isHistoryEnabled()


def test_histories_of_the_program_are_left_on(told):
    assert not recording()
    told.watch().close()
    assert not recording()
    torch.cuda.memory._record_memory_history(stacks="python")
    told.watch().close()
    assert recording()
    torch.cuda.memory._record_memory_history(enabled=None, clear_history=True)
    watching = told.watch()
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = [torch.empty(10, device="cuda") for _ in range(3)]
    watching.close()
    assert recording() and kept is not None
    torch.cuda.memory._record_memory_history(enabled=None, clear_history=True)


def test_the_first_stack_imports_nothing():
    """For a stack, PyTorch would import its compiler, which takes seconds, to find the source of compiled lines."""
    code = """
    import sys, torch, cenote
    kept = []
    with cenote.growth() as watching:
        for number in range(6):
            kept.append(torch.ones(1 << 20, device="cuda"))
            cenote.step()
    print("torch._inductor" in sys.modules, "_inductor" in vars(torch))
    """
    lines = simulated.forked(code, whole=True).stdout.splitlines()
    assert "list `kept` of <string>: 4 blocks" in lines[0] and lines[-1] == "False False"


def test_an_alarm_that_fails_ends_the_watching(cenote, capsys):
    def alarm(cause):
        raise ValueError("no such pager")

    watching = cenote.growth(alarm=alarm)
    outputs_in_a_list()
    assert "the watching ended at step 5: ValueError: no such pager" in capsys.readouterr().err
    assert not recording() and "no such pager" in watching.report()


def test_an_alarm_may_step_and_report(cenote):
    said = []

    def alarm(cause):
        cenote.steps()
        said.append(watching.report())

    with cenote.growth(alarm=alarm) as watching:
        outputs_in_a_list()
    assert len(said) == 1 and "list `outputs`" in said[0] and not watching.trouble


def test_threads_train_while_others_ask(told):
    watching = told.watch()

    def train():
        with torch.cuda.stream(torch.cuda.Stream()):
            model = network()
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(20):
                learn(optimizer, model(batch()).square().mean())

    threads = [threading.Thread(target=train) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert "step" in watching.report()
    assert not watching.trouble


# --- bad input


BAD = [({"alarm": 3}, TypeError), ({"least": -1}, ValueError), ({"least": "much"}, ValueError), ({"least": 1.5}, ValueError)]


@pytest.mark.parametrize("settings, error", BAD)
def test_bad_settings(cenote, settings, error):
    with pytest.raises(error, match="alarm is a function|least is bytes a step"):
        cenote.growth(**settings)
    assert not recording()


def test_another_allocator():
    code = """
    import torch, cenote
    try:
        cenote.growth()
    except cenote.Error as error:
        print(error)
    """
    why = "needs cenote as PyTorch's allocator (CENOTE=on, or cenote.install()): PyTorch's allocator is native"
    assert why in simulated.forked(code, CENOTE="off", whole=True).stdout


def test_before_the_first_use_of_a_gpu():
    code = """
    import torch, cenote
    said = []
    with cenote.growth(alarm=said.append):
        kept = []
        model = torch.nn.Linear(256, 256).cuda().eval()
        for _ in range(8):
            kept.append(model(torch.randn(256, 256, device="cuda")))
    print(len(said), said[0].holder.split(':')[0])
    """
    assert simulated.forked(code).stdout == "1 held by list `kept` of <string>\n"


def test_a_snapshot_hides_nothing_from_other_threads(monkeypatch):
    """PyTorch would import torch._inductor for it; the program's other threads may do so meanwhile, and find it."""
    from cenote.holders.growth import Stacks

    found = []

    def snapshot():
        def look(words):
            words.append(getattr(torch, "_inductor", None))

        others = []
        thread = threading.Thread(target=look, args=(others,))
        thread.start()
        thread.join()
        look(found)
        found.extend(others)
        return {"segments": []}

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", snapshot)
    had = vars(torch).pop("_inductor", None)
    monkeypatch.setattr(torch, "__getattr__", lambda name: simulated if name == "_inductor" else None)
    try:
        assert Stacks().take() == {}
    finally:
        if had is not None:
            torch._inductor = had
    assert found == [None, simulated]
