"""What PyTorch's memory is for: steps, tags, phases and kinds, as cenote's functions tell it. For CENOTE_TEST_ALLOCATOR=cenote.

Figures by kind are compared to the byte with what a count by hand over the program's own tensors gives.
"""

import copy
import gc
import io
import pathlib
import pickle
import sys
import threading

import pytest
import torch

import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")
sys.path.insert(0, str(simulated.ROOT / "python"))
MIB = 1 << 20


@pytest.fixture
def cenote():
    """The package, with a GPU in use; labels are off before and after."""
    import cenote

    torch.empty(1, device="cuda")
    cenote.label(False)
    yield cenote
    cenote.label(False)


@pytest.fixture
def labels(cenote):
    cenote.label()
    return cenote


def block(size: int, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def rounded(*tensors) -> int:
    """Allocated bytes of the storages under them, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum((size + 511) // 512 * 512 for at, size in storages.items() if at)


def by(division: str, device=None) -> dict:
    import cenote

    return {row.name: row.live for row in cenote.rows(division, device)}


def kinds(device=None) -> dict:
    return {name: live for name, live in by("kind", device).items() if live}


def phase_of(tensor) -> str:
    """In which the block under a tensor was allocated."""
    from cenote import bindings

    at = tensor.untyped_storage().data_ptr()
    piece = next(piece for piece in bindings.pieces(tensor.device) if piece.address == at)
    return bindings.phases()[piece.phase]


def kind_of(tensor) -> str:
    from cenote import bindings

    at = tensor.data_ptr()
    piece = next(piece for piece in bindings.pieces(tensor.device) if piece.address <= at < piece.address + piece.size)
    return bindings.kinds()[piece.kind]


def phase_now() -> str:
    from cenote import bindings

    return bindings.phases()[bindings.function("cenote_phase_now")()]


class Spy(torch.nn.Module):
    """Notes the phase in which it is called."""

    def __init__(self):
        super().__init__()
        self.phases = []

    def forward(self, x):
        self.phases.append(phase_now())
        return x


# --- steps


def test_optimizer_steps_are_steps():
    """Accumulation of gradients counts once, two optimizers count once, and so does a step that GradScaler leaves out."""
    simulated.forked(
        """
        import cenote, torch
        def count(): return cenote.steps()[-1].number if cenote.steps() else 0
        model, other = torch.nn.Linear(4, 4).cuda(), torch.nn.Linear(4, 4).cuda()
        first, second = torch.optim.SGD(model.parameters()), torch.optim.Adam(other.parameters())
        assert count() == 0
        for _ in range(3):
            for _ in range(4):
                model(torch.empty(2, 4, device="cuda")).sum().backward()
            first.step()
        assert count() == 3
        for _ in range(3):
            other(model(torch.empty(2, 4, device="cuda"))).sum().backward()
            first.step()
            second.step()
        assert count() == 6

        weight = torch.nn.Parameter(torch.ones(2))
        scaled = torch.optim.SGD([weight])
        del first, second
        for enabled in (True, False):
            scaler = torch.amp.GradScaler("cpu", enabled=enabled)
            for factor in (1.0, float("inf"), 1.0):
                before, was = count(), weight.detach().clone()
                scaled.zero_grad()
                scaler.scale((weight * factor).sum()).backward()
                scaler.step(scaled)
                scaler.update()
                assert count() == before + 1, (enabled, factor)
                assert torch.equal(weight, was) == (enabled and factor != 1.0)
        from cenote import stepping
        before = count()
        cenote.step()
        scaled.step()
        scaled.step()
        assert count() == before + 1 and not stepping._undo
        assert torch.amp.GradScaler._maybe_opt_step.__module__ == "torch.amp.grad_scaler"
        assert cenote.steps(1)[-1].number == count()
        """,
        shape="capacity:1GiB,devices:2",
        CENOTE="on",
    )


def test_a_step_knows_its_peak_and_what_it_left(cenote):
    kept, before = [], cenote.stats()["allocated"].current
    cenote.step()
    for _ in range(3):
        temporary = block(9 * MIB)
        kept.append(block(2 * MIB))
        del temporary
        cenote.step()
    three = cenote.steps()[-3:]
    assert [step.live - before for step in three] == [2 * MIB, 4 * MIB, 6 * MIB]
    assert [step.peak - before for step in three] == [11 * MIB, 13 * MIB, 15 * MIB]
    assert [step.number for step in three] == list(range(three[0].number, three[0].number + 3)) and three[0].seconds <= three[2].seconds
    del kept


# --- tags


def test_tags_reach_the_threads_of_autograd(cenote):
    weight = torch.empty(1000, device="cuda", requires_grad=True)
    with cenote.tag("backward of this"):
        (weight * 2).sum().backward()
    with cenote.tag("another"):
        kept = block(MIB)
    assert by("tag")["backward of this"] >= rounded(weight.grad)
    assert by("tag")["another"] == MIB
    pieces = {row.name: row.key for row in cenote.rows("tag")}
    from cenote import bindings

    found = next(piece for piece in bindings.pieces() if piece.address == weight.grad.data_ptr())
    assert found.tag == pieces["backward of this"]
    del kept


def test_threads_have_tags_of_their_own(cenote):
    kept, threads = {}, []

    def work(number):
        with cenote.tag(f"thread-{number}"):
            kept[number] = block((number + 1) * MIB)
            with cenote.tag("inner"):
                kept[number, "inner"] = block(MIB)

    with cenote.tag("main"):
        for number in range(4):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
        [thread.join() for thread in threads]
    tags = by("tag")
    assert [tags[f"thread-{number}"] for number in range(4)] == [MIB, 2 * MIB, 3 * MIB, 4 * MIB]
    assert [tags[f"thread-{number}/inner"] for number in range(4)] == [MIB] * 4
    assert sum(tags.values()) == cenote.stats()["allocated"].current
    kept.clear()


# --- kinds, to the byte


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(16)
        self.last = torch.nn.Linear(16 * 32 * 32, 10)
        self.last.weight.requires_grad_(True)
        self.register_buffer("mean", torch.zeros(1000))

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))).flatten(1))


def adam_state(optimizer) -> list:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor) and value.is_cuda]


@pytest.mark.parametrize("capturable", [False, True])
def test_kinds_of_a_training_step(labels, capturable):
    gc.collect()
    others = kinds()  # what earlier tests and PyTorch itself left behind
    net = Net().cuda()
    optimizer = torch.optim.Adam(net.parameters(), foreach=not capturable, capturable=capturable)
    loss_of = torch.nn.CrossEntropyLoss()
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    def new() -> dict:
        return {name: live - others.get(name, 0) for name, live in by("kind").items() if live != others.get(name, 0)}

    for step in range(3):
        images, labels_of = torch.empty(8, 3, 32, 32, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(net(images), labels_of)
        parameters, buffers = rounded(*net.parameters()), rounded(*net.buffers())
        inputs = {tensor.untyped_storage().data_ptr() for tensor in (images, labels_of, *net.parameters(), *net.buffers())}
        activations = [tensor for tensor in [*saved, loss] if tensor.untyped_storage().data_ptr() not in inputs]
        expected = {"parameters": parameters, "buffers": buffers, "activations": rounded(*activations), "other": rounded(images, labels_of)}
        if step:
            expected["optimizer state"] = rounded(*adam_state(optimizer))
        assert new() == expected
        saved.clear()
        del activations

        loss.backward()
        del loss
        expected = {**expected, "gradients": rounded(*(parameter.grad for parameter in net.parameters()))}
        del expected["activations"]
        assert new() == expected
        optimizer.step()
        expected["optimizer state"] = rounded(*adam_state(optimizer))
        assert new() == expected
        optimizer.zero_grad()
        del images, labels_of
    # Buffers and parameters to the byte by another road: what the model itself says it has.
    assert expected["parameters"] >= sum(parameter.nbytes for parameter in net.parameters()) == 4 * (3 * 16 * 9 + 16 + 32 + 16 * 1024 * 10 + 10)
    at_peak = {row.name: row.at_peak for row in labels.rows("kind")}
    assert sum(at_peak.values()) == labels.stats()["allocated"].peak


def test_gradients_that_accumulate_are_marked_once(labels):
    layer = torch.nn.Linear(64, 64).cuda()
    before = kinds().get("gradients", 0)
    for _ in range(3):
        layer(torch.empty(2, 64, device="cuda")).sum().backward()
        assert kinds()["gradients"] - before == rounded(layer.weight.grad, layer.bias.grad)


def test_what_was_there_before_is_found(cenote):
    """Parameters, gradients and state from before labels were switched on."""
    layer = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.empty(2, 64, device="cuda")).sum().backward()
    optimizer.step()
    assert {kind_of(layer.weight), kind_of(layer.weight.grad), kind_of(optimizer.state[layer.weight]["exp_avg"])} == {"other"}
    cenote.label()
    optimizer.step()
    assert (kind_of(layer.weight), kind_of(layer.weight.grad)) == ("parameters", "gradients")
    assert kind_of(optimizer.state[layer.weight]["exp_avg"]) == "optimizer state"


def test_a_functional_model_has_parameters_by_its_optimizer(labels):
    weight = torch.empty(1000, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    (weight * 2).sum().backward()
    optimizer.step()
    assert (kind_of(weight), kind_of(weight.grad)) == ("parameters", "gradients")
    assert kind_of(optimizer.state[weight]["momentum_buffer"]) == "optimizer state"


def test_nested_state(labels):
    weight = torch.nn.Parameter(torch.ones(100, device="cuda"))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)
    phases = []

    def closure():
        optimizer.zero_grad()
        loss = Spy()(weight * 2).sum()
        phases.append(phase_now())
        loss.backward()
        weight.grad.fill_(1)
        phases.append(phase_now())
        return loss

    optimizer.state[weight]["mine"] = {"deep": [torch.empty(300, device="cuda")]}
    optimizer.step(closure)
    assert kind_of(optimizer.state[weight]["mine"]["deep"][0]) == "optimizer state"
    assert set(phases) == {"forward", "optimizer"} and phase_now() == "none"


def test_a_storage_shared_by_views_and_weights(labels):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            flat = torch.zeros(3000, device="cuda")
            self.a = torch.nn.Parameter(flat[:1000])
            self.b = torch.nn.Parameter(flat[1000:2000])
            self.register_buffer("c", flat[2000:])
            self.d = self.a

        def forward(self, x):
            return x * self.a * self.b

    before = kinds().get("parameters", 0)
    tied = Tied()
    tied(torch.empty(1000, device="cuda"))
    assert kinds()["parameters"] - before == rounded(tied.a) == 12288 and kind_of(tied.c) == "parameters"


def test_the_flat_weights_of_an_lstm(labels):
    lstm = torch.nn.LSTM(32, 64, num_layers=2).cuda()
    before = kinds().get("parameters", 0)
    out, _ = lstm(torch.empty(5, 2, 32, device="cuda"))
    assert kinds()["parameters"] - before == rounded(*lstm.parameters())
    out.sum().backward()
    assert {kind_of(parameter.grad) for parameter in lstm.parameters()} == {"gradients"}


def test_what_is_not_on_a_gpu_is_passed_over(labels):
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.host = torch.nn.Parameter(torch.zeros(10))
            self.meta = torch.nn.Parameter(torch.zeros(10, device="meta"))
            self.empty = torch.nn.Parameter(torch.zeros(0, device="cuda"))
            self.whole = torch.nn.Parameter(torch.zeros(10, dtype=torch.int, device="cuda"), requires_grad=False)
            self.lazy = torch.nn.LazyLinear(4, device="cuda")
            self.freed = torch.nn.Parameter(torch.zeros(10, device="cuda"))
            self.freed.untyped_storage().resize_(0)
            self.register_buffer("nothing", None)
            self.register_parameter("none", None)
            self.register_buffer("sparse", torch.eye(4, device="cuda").to_sparse())

        def forward(self, x):
            return x + 1

    mixed = Mixed()
    mixed(torch.empty(1, device="cuda"))
    assert kind_of(mixed.whole) == "parameters" and kind_of(mixed.sparse._values()) == "buffers"


def test_a_gradient_that_is_sparse(labels):
    table = torch.nn.Embedding(100, 16, sparse=True).cuda()
    optimizer = torch.optim.SparseAdam(list(table.parameters()))
    table(torch.zeros(5, dtype=torch.long, device="cuda")).sum().backward()
    assert table.weight.grad.is_sparse and kind_of(table.weight.grad._values()) == "gradients"
    optimizer.step()


def test_two_devices(labels):
    a, b = torch.nn.Linear(64, 64, device="cuda:0"), torch.nn.Linear(64, 64, device="cuda:1")
    before = [kinds(device).get("parameters", 0) for device in range(2)]
    b(a(torch.empty(2, 64, device="cuda:0")).to("cuda:1")).sum().backward()
    assert [kinds(device)["parameters"] - before[device] for device in range(2)] == [rounded(*a.parameters()), rounded(*b.parameters())]
    assert kind_of(b.weight.grad) == kind_of(a.weight.grad) == "gradients"


def test_models_that_die_are_gone(labels):
    """Nothing of cenote's holds a module, a tensor, or an optimizer."""
    import weakref

    def train():
        net = Net().cuda()
        optimizer = torch.optim.Adam(net.parameters())
        net(torch.empty(2, 3, 32, 32, device="cuda")).sum().backward()
        optimizer.step()
        return [weakref.ref(net), weakref.ref(optimizer), *(weakref.ref(parameter) for parameter in net.parameters())]

    before = kinds()
    for _ in range(2):
        dead = train()
        gc.collect()
        assert [ref() for ref in dead] == [None] * len(dead)
    assert {name: kinds().get(name, 0) for name in ("parameters", "gradients", "optimizer state", "buffers")} == {
        name: before.get(name, 0) for name in ("parameters", "gradients", "optimizer state", "buffers")
    }


def test_models_are_copied_and_pickled(labels):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).cuda()
    net(torch.empty(2, 4, device="cuda")).sum().backward()
    again = copy.deepcopy(net)
    again(torch.empty(2, 4, device="cuda")).sum().backward()
    assert kind_of(again[0].weight.grad) == "gradients"
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)[0].weight.device.type == "cuda"
    pickle.loads(pickle.dumps(net.state_dict()))


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
    assert spy.phases == ["forward"] and phase_of(y) == "forward" and phase_now() == "forward"  # until backward: losses belong to it
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
    from cenote import hooks

    assert not errors and hooks._labels.phases.doing == []
    with torch.no_grad():
        torch.nn.Identity()(torch.empty(1, device="cuda"))
    assert phase_now() == "none"


# --- with the rest of PyTorch


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_modules(in_place):
    """No graph is broken, nothing of ours is in it, and it is not compiled again because labels are switched."""
    simulated.fresh(
        f"""
        import torch, cenote
        from cenote import bindings, hooks
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
    """Marking a block and setting a phase are no work of the GPU's."""
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


def test_labels_are_switched_off(cenote):
    from cenote import hooks
    from torch.optim import optimizer as optimizers

    import torch.autograd

    sys.modules["torch.optim.optimizer"]
    optimizers = sys.modules["torch.optim.optimizer"]
    with cenote.tag("x"):  # tags want the entry of backward from then on
        pass
    place = (torch.nn.Module, "__call__"), (torch.autograd, "_engine_run_backward")
    before = [getattr(*where) for where in place]
    hooks_before = [dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)]
    layer = torch.nn.Linear(4, 4).cuda()
    cenote.label()
    cenote.label()
    assert getattr(*place[0]) is not before[0]
    layer(torch.empty(2, 4, device="cuda"))
    assert len(layer.weight._post_accumulate_grad_hooks) == 1 and phase_now() == "forward"
    cenote.label(False)
    cenote.label(False)
    assert [getattr(*where) for where in place] == before
    assert [dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)] == hooks_before
    assert not layer.weight._post_accumulate_grad_hooks and phase_now() == "none"
    layer(torch.empty(2, 4, device="cuda")).sum().backward()
    assert phase_now() == "none" and kind_of(layer.weight.grad) == "other"


def test_who_wraps_after_us_is_left_alone(cenote):
    """Another library has replaced the call since: switched off, ours lets everything pass."""
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
        from cenote import hooks
        torch.empty(1, device="cuda")
        print(hooks._labels is not None)
        """
    assert simulated.fresh(code, CENOTE="on", CENOTE_LABELS="on").stdout == "True\n"
    done = simulated.fresh("import torch", CENOTE="on", CENOTE_LABELS="yes", check=False)
    assert done.returncode and "CENOTE_LABELS says 'yes'; on and off are what it may say" in done.stderr


# --- what is asked


def test_without_cenote_there_is_one_line():
    done = simulated.fresh(
        """
        import torch, cenote
        torch.empty(1, device="cuda")
        for ask in (cenote.stats, cenote.rows, cenote.steps, cenote.explain, cenote.trim, cenote.label, lambda: cenote.mark("x"),
                    lambda: cenote.record(10), lambda: cenote.snapshot("x.json"), lambda: cenote.snapshot("x.pickle")):
            try:
                ask()
                print("no error")
            except cenote.Error as error:
                assert "not PyTorch's allocator here, native is" in str(error), error
        cenote.step()
        with cenote.tag("x"):
            pass
        print("end")
        """,
        CENOTE="off",
    )
    assert done.stdout == "end\n"


def test_before_a_gpu_is_used_there_is_one_line():
    done = simulated.fresh(
        """
        import torch, cenote
        try:
            cenote.stats()
        except cenote.Error as error:
            print(error)
        cenote.step()
        with cenote.tag("early"):
            kept = torch.empty(1000, device="cuda")
        print(cenote.rows()[0].name, torch.cuda.is_initialized())
        """,
        CENOTE="on",
    )
    assert done.stdout.splitlines() == ["PyTorch has not used a GPU in this process yet: there is no memory to speak of", "early True"]


def test_marks(labels, capfd):
    labels.mark("begin")
    kept = block(3 * MIB)
    made = labels.mark("output_layer")
    assert (made.change, made.live) == (3 * MIB, labels.stats()["allocated"].current) and sum(made.kinds.values()) == made.live
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[1].startswith("cenote: output_layer: live ") and "+3.00 MiB since begin" in lines[1]
    del kept


def test_figures_agree_with_torchs(cenote):
    kept = block(5 * MIB, "cuda:1")
    for device in range(2):
        stats = cenote.stats(device)
        assert stats["allocated"].current == torch.cuda.memory_allocated(device)
        assert stats["reserved"].peak == torch.cuda.max_memory_reserved(device)
        for division in ("tag", "kind", "phase", "arena"):
            assert sum(by(division, device).values()) == stats["allocated"].current
    assert cenote.stats(kept.device)["allocated"] == cenote.stats("cuda:1")["allocated"]
    with torch.cuda.device(1):
        assert cenote.stats()["allocated"] == cenote.stats(1)["allocated"]


def test_files(cenote, tmp_path):
    kept = block(MIB)
    cenote.record(1000)
    del kept
    kept = block(MIB)
    cenote.save_trace(tmp_path / "trace.csv")
    cenote.snapshot(str(tmp_path / "picture.json"))
    cenote.snapshot(tmp_path / "picture.pickle")
    cenote.record(0)
    assert (tmp_path / "trace.csv").read_text().count("\n") >= 3 and (tmp_path / "picture.json").read_text()[0] == "{"
    with open(tmp_path / "picture.pickle", "rb") as file:
        segments = pickle.load(file)["segments"]
    assert sum(segment["total_size"] for segment in segments) >= MIB
    cenote.trim()
    assert cenote.stats()["reserved"].current < 64 * MIB
    del kept


# --- what libcenote asks Python when it explains


def moment_of(code: str, shape="capacity:512MiB,devices:1", **variables) -> list:
    """What was filled in at each explanation that a program had made: phase and whether history is kept."""
    start = """
        import torch, cenote, threading
        from cenote import bindings, moment
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
    import ast
    import textwrap

    done = simulated.fresh(textwrap.dedent(start) + textwrap.dedent(code) + "\nprint(seen)", shape=shape, CENOTE="on", **variables)
    assert "Exception ignored" not in done.stderr, done.stderr
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
    """Threads of Python without a frame of PyTorch's, an explanation that is asked for, and one after Python has ended."""
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
    done = simulated.fresh(
        """
        import torch, cenote
        from cenote import moment
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
    )
    assert done.stdout == "True\n" and done.stderr == ""
