"""The phase of a program; and the rest of PyTorch works while labels watch it. For CENOTE_TEST_ALLOCATOR=cenote."""

import sys
import threading

import pytest
import torch

import simulated
from labelled import Spy, block, cenote, kind_of, labels, only_cenote, phase_now, phase_of  # noqa: F401  (fixtures)

pytestmark = only_cenote


# --- phases


def test_phases_of_a_training(labels):
    spy = Spy()
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), spy, torch.nn.ReLU()).cuda()
    optimizer = torch.optim.SGD(net.parameters())
    seen = {}
    net[0].weight.register_hook(lambda gradient: seen.update(backward=phase_now()))
    optimizer.register_step_pre_hook(lambda *_: seen.update(optimizer=phase_now()))
    assert phase_now() == "none"
    y = net(torch.empty(2, 8, device="cuda"))
    assert spy.phases == ["forward"] and phase_of(y) == "forward" and phase_now() == "forward"  # until backward: losses belong to the forward phase
    loss = (y * 2).sum()
    assert (phase_of(loss), kind_of(loss)) == ("forward", "activations")
    loss.backward()
    assert phase_now() == "none" and seen["backward"] == "backward" and phase_of(net[0].weight.grad) == "backward"
    optimizer.step()
    assert phase_now() == "none" and seen["optimizer"] == "optimizer"
    assert phase_of(block(1)) == "none"
    net.eval()
    net(torch.empty(2, 8, device="cuda"))
    assert spy.phases[-1] == "evaluation" and phase_now() == "none"
    net.train()
    with torch.no_grad():
        y = net(torch.empty(2, 8, device="cuda"))
    assert spy.phases[-1] == "evaluation" and (phase_of(y), phase_now()) == ("evaluation", "none")
    with torch.inference_mode():
        net(torch.empty(2, 8, device="cuda"))
    assert spy.phases[-1] == "evaluation"


def test_autograd_grad_is_backward(labels):
    x = torch.ones(10, device="cuda", requires_grad=True)
    seen = []
    y = (x * x).sum()
    x.register_hook(lambda gradient: seen.append(phase_now()))
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    gradient.sum().backward()
    assert seen == ["backward"] * 2 and phase_now() == "none" and phase_of(gradient) == "backward"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exceptions_end_phases(labels, error):
    class Fails(torch.nn.Module):
        def forward(self, x):
            raise error

    with pytest.raises(error):
        torch.nn.Sequential(Spy(), Fails())(torch.empty(1, device="cuda"))
    assert phase_now() == "none"
    net = torch.nn.Linear(4, 4).cuda()

    def fail(_):
        raise error

    y = net(torch.empty(2, 4, device="cuda"))
    y.register_hook(fail)
    with pytest.raises(error):
        y.sum().backward()
    assert phase_now() == "none"

    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise error

    optimizer, spy = Broken(net.parameters()), Spy()
    with pytest.raises(error):
        optimizer.step()
    y = spy(torch.empty(1, device="cuda"))
    assert spy.phases == ["forward"]
    torch.ones(1, device="cuda", requires_grad=True).sum().backward()
    assert phase_now() == "none"


def test_what_is_computed_again_is_backward(labels):
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        spy = Spy()
        layer = torch.nn.Sequential(torch.nn.Linear(8, 8), spy, torch.nn.GELU()).cuda()
        x = torch.empty(2, 8, device="cuda", requires_grad=True)
        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
        assert spy.phases == ["evaluation" if reentrant else "forward", "backward"] and phase_now() == "none"


def test_threads_that_train_side_by_side(labels):
    errors = []

    def work():
        try:
            net = torch.nn.Linear(16, 16).cuda()
            optimizer = torch.optim.SGD(net.parameters())
            for _ in range(50):
                net(torch.empty(2, 16, device="cuda")).sum().backward()
                optimizer.step()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    torch.empty(1, device="cuda")
    from cenote.labels import hooks

    assert not errors and hooks._labels.phases.doing == []
    with torch.no_grad():
        torch.nn.Identity()(torch.empty(1, device="cuda"))
    assert phase_now() == "none"


# --- with the rest of PyTorch


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_modules(in_place):
    """Labels break no graph, add nothing to it, and do not cause another compilation when they are switched."""
    simulated.fresh(
        f"""
        import torch, cenote
        from cenote.labels import hooks
        from cenote.native import bindings
        from torch._dynamo.testing import CompileCounterWithBackend
        in_place = {in_place}
        cenote.label()
        counter = CompileCounterWithBackend("eager")
        inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).cuda()
        if in_place:
            inner.compile(backend=counter, fullgraph=True)
            model = inner
        else:
            model = torch.compile(inner, backend=counter, fullgraph=True)
        optimizer = torch.optim.SGD(inner.parameters(), momentum=0.9)
        for _ in range(3):
            y = model(torch.empty(2, 8, device="cuda"))
            assert bindings.phases()[bindings.function("cenote_phase_now")()] == "forward"
            y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert counter.frame_count == 1 and counter.op_count <= 4, (counter.frame_count, counter.op_count)
        rows = {{row.name: row.live for row in cenote.rows("kind")}}
        assert rows["parameters"] == 2 * (512 + 512), rows
        assert rows["optimizer state"] == 2 * (512 + 512), rows
        assert cenote.steps()[-1].number == 3

        step = torch.compile(optimizer.step, backend="eager")
        model(torch.empty(2, 8, device="cuda")).sum().backward()
        step()
        cenote.label(False)
        model(torch.empty(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        """,
        CENOTE="on",
        timeout=300,
    )


def test_graphs_are_captured_and_replayed(labels):
    """To mark a block or to set a phase puts no work on the GPU."""
    net = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.empty(4, 64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        net(x).sum().backward()
        optimizer.step()
    for _ in range(3):
        graph.replay()
    assert (kind_of(net.weight), kind_of(net.weight.grad)) == ("parameters", "gradients")
    graphed = torch.cuda.make_graphed_callables(torch.nn.Linear(8, 8).cuda(), (torch.empty(2, 8, device="cuda", requires_grad=True),))
    graphed(torch.empty(2, 8, device="cuda", requires_grad=True)).sum().backward()
    torch.cuda.synchronize()


def test_symbolic_traces_and_scripts(labels):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x) + 1

    layer, x = Layer().cuda(), torch.empty(2, 4, device="cuda")
    traced = torch.fx.symbolic_trace(layer)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_function", "output"]
    traced(x).sum().backward()
    torch.jit.trace(layer, x)(x).sum().backward()
    torch.jit.script(layer)(x).sum().backward()
    torch.func.functional_call(layer, dict(layer.named_parameters()), (x,)).sum().backward()
    torch.func.grad(lambda values: torch.func.functional_call(layer, values, (x,)).sum())(dict(layer.named_parameters()))
    exported = torch.export.export(layer, (x,))
    assert [node.op for node in exported.graph.nodes].count("call_function") >= 2
    assert phase_now() in ("none", "forward")


def test_a_signal_may_come_at_any_time(labels):
    """The handler saves a model and evaluates it once more. It runs between two instructions, while the thread holds the lock."""
    from cenote.labels import hooks

    layer, inputs, done = torch.nn.Linear(4, 4).cuda(), torch.empty(2, 4, device="cuda"), threading.Event()

    def interrupted():
        with hooks._labels.phases.lock:
            layer(inputs)
        done.set()

    threading.Thread(target=interrupted, daemon=True).start()
    assert done.wait(10)


def test_labels_are_switched_off(cenote):
    from cenote.labels import hooks

    optimizers = sys.modules["torch.optim.optimizer"]
    with cenote.tag("x"):  # from now on tags need the entry of backward
        pass
    place = (torch.nn.Module, "__call__"), (torch.autograd, "_engine_run_backward")
    before = [getattr(*where) for where in place]
    hooks_before = [dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)]
    layer = torch.nn.Linear(4, 4).cuda()
    cenote.label()
    cenote.label()
    assert getattr(*place[0]) is not before[0]
    layer(torch.empty(2, 4, device="cuda"))
    assert not layer.weight._post_accumulate_grad_hooks and phase_now() == "forward"  # the program's parameters get no hook
    cenote.label(False)
    cenote.label(False)
    assert [getattr(*where) for where in place] == before
    assert [dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)] == hooks_before
    assert phase_now() == "none"
    layer(torch.empty(2, 4, device="cuda")).sum().backward()
    assert phase_now() == "none" and kind_of(layer.weight.grad) == "other"


def test_a_library_that_wraps_after_cenote_is_left_alone(cenote):
    """Another library has replaced the call since. When labels are switched off, cenote's wrapper only passes calls on."""
    original = torch.nn.Module.__call__
    cenote.label()
    ours = torch.nn.Module.__call__

    def theirs(self, *args, **kwargs):
        return ours(self, *args, **kwargs)

    torch.nn.Module.__call__ = theirs
    try:
        cenote.label(False)
        assert torch.nn.Module.__call__ is theirs
        spy = Spy()
        spy(torch.empty(1, device="cuda"))
        assert spy.phases == ["none"]
    finally:
        torch.nn.Module.__call__ = original


def test_the_variable_switches_them_on():
    code = """
        import torch
        from cenote.labels import hooks
        torch.empty(1, device="cuda")
        print(hooks._labels is not None)
        """
    assert simulated.fresh(code, CENOTE="on", CENOTE_LABELS="on").stdout == "True\n"
    done = simulated.fresh("import torch", CENOTE="on", CENOTE_LABELS="maybe", check=False)
    assert done.returncode and "CENOTE_LABELS says 'maybe'; set it to on or off" in done.stderr
