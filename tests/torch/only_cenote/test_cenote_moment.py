"""What Python tells libcenote when it explains why memory ran out. For CENOTE_TEST_ALLOCATOR=cenote."""

import ast
import textwrap

import pytest

import simulated
from labelled import only_cenote
from spoken import said

pytestmark = only_cenote


def moment_of(code: str, shape="capacity:512MiB,devices:1", **variables) -> list:
    """What Python filled in at each explanation: the phase, and whether history is kept."""
    start = """
        import torch, cenote, threading
        from cenote.inside import moment
        from cenote.native import bindings
        seen = []
        inner = moment.Moment.fill
        def fill(self, m):
            inner(self, m)
            seen.append((bindings.phases()[m.phase], m.keeps_history, m.gradients))
        moment.Moment.fill = fill
        def fail():
            try:
                torch.empty(1 << 40, device="cuda")
            except torch.OutOfMemoryError:
                pass
        class Fails(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(100, device="cuda"))
            def forward(self, x):
                fail()
                return x * self.weight
        class Around(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Fails().eval()
            def forward(self, x):
                return self.inner(x)
        x = torch.zeros(100, device="cuda")
        """
    done = simulated.forked(textwrap.dedent(start) + textwrap.dedent(code) + "\nprint(seen)", shape=shape, CENOTE="on", whole=True, **variables)
    assert "Exception ignored" not in said(done.stderr), done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("labels", ["off", "on"])
def test_the_moment_of_running_out(labels):
    seen = moment_of(
        """
        around = Around()
        fail()
        y = around(x)
        y.register_hook(lambda gradient: fail())
        y.sum().backward()
        around.eval()
        y = around(x)
        with torch.no_grad():
            y = around(x)
        around.train()
        class Hungry(torch.optim.SGD):
            def step(self, closure=None):
                fail()
        Hungry(around.parameters()).step()
        """,
        CENOTE_LABELS=labels,
    )
    assert [(phase, keeps) for phase, keeps, _ in seen] == [
        ("none", 1),
        ("forward", 1),
        ("backward", 0),
        ("evaluation", 1),
        ("evaluation", 0),
        ("optimizer", 1),
    ]
    assert [gradients > 0 for _, _, gradients in seen[1:5]] == [False, False if labels == "off" else seen[2][2] > 0, True, True]


def test_the_moment_of_other_threads_and_of_the_end():
    """Threads of Python without a frame of PyTorch, an explanation that the program asks for, and one after Python has ended."""
    seen = moment_of(
        """
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        assert "GPU 0" in cenote.explain()
        class Late:
            def __del__(self):
                fail()
        import builtins
        builtins.late = Late()
        """
    )
    assert [phase for phase, _, _ in seen] == ["none", "none"]


def test_a_moment_that_fails_is_passed_over():
    done = simulated.forked(
        """
        import torch, cenote
        from cenote.inside import moment
        def fill(self, m):
            raise KeyboardInterrupt
        moment.Moment.fill = fill
        torch.empty(1, device="cuda")
        assert "GPU 0" in cenote.explain()
        try:
            torch.empty(1 << 40, device="cuda")
        except torch.OutOfMemoryError as error:
            print("out of memory" in str(error))
        """,
        CENOTE="on",
        whole=True,
    )
    assert done.stdout == "True\n" and done.stderr == ""
