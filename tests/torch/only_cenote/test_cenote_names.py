"""Blocks go by names: of modules, parameters, gradients, optimizer state, and of lines. For CENOTE_TEST_ALLOCATOR=cenote."""

import copy
import gc
import inspect
import io
import threading

import pytest
import torch

import simulated
from labelled import cenote, labels, only_cenote  # noqa: F401  (fixtures)

pytestmark = only_cenote


def all_names():
    from cenote.labels import hooks

    return hooks._labels.names


def row_of(tensor):
    """The row of the block under a tensor, as reports have it."""
    from cenote.inside import holdings

    names, at = all_names(), tensor.untyped_storage().data_ptr()
    block = next(block for block in names.blocks(tensor.device.index, False) if block.at == at)
    return holdings.Reader(names).row(block)


def name_of(tensor):
    row = row_of(tensor)
    return row.kind, row.name


class Keeps(torch.nn.Module):
    """Keeps what it computes."""

    def forward(self, x):
        self.kept = x * 2
        return self.kept


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = torch.nn.Linear(64, 256), Keeps(), torch.nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.register_buffer("mean", torch.zeros(1000))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def batch():
    return torch.empty(512, 64, device="cuda")


def test_every_tensor_of_a_step(labels):
    net = Net().cuda()  # made on the host, and moved
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        x = batch()
        y = net(x)
        (y * 1).sum().backward()
        weight = net.layers[1].down.weight
        assert name_of(weight) == ("parameters", "layers.1.down.weight") and row_of(weight).shape == "64x256 float32"
        assert name_of(weight.grad) == ("gradients", "layers.1.down.weight")
        optimizer.step()
        assert name_of(optimizer.state[weight]["exp_avg"]) == ("optimizer state", "exp_avg of layers.1.down.weight")
        assert name_of(net.mean) == ("buffers", "mean") and name_of(x)[0] == "inputs"
        optimizer.zero_grad()
    row = row_of(net.layers[2].act.kept)
    assert (row.kind, row.name, row.phase) == ("activations", "layers.2.act", "forward")
    first = inspect.getsourcelines(Keeps.forward)[1]
    assert row.line.endswith(f"test_cenote_names.py:{first + 1}") and row.text == "self.kept = x * 2"


def test_a_tensor_that_is_replaced_is_found(labels):
    """Tensors are looked for when a block of a module has ended, and else at some calls only."""
    net = Net().cuda()
    weight = net.layers[1].up.weight
    for _ in range(4):
        net(batch())
        weight.data = torch.randn_like(weight)
        assert row_of(weight).kind != "parameters"
        net(batch())
        assert name_of(weight) == ("parameters", "layers.1.up.weight")


@pytest.mark.parametrize("shape", [(256, 64), (64, 512)], ids=["alike", "other"])
def test_tensors_that_exchange_their_memory(labels, shape):
    """A report looks again: no block lacks a holder then, so calls of modules do not."""
    from cenote.labels import hooks

    net = Net().cuda()
    net(batch())
    one, other = net.layers[0].up.weight, net.layers[1].up.weight
    other.data = torch.zeros(shape, device="cuda")
    hooks.settle(0)
    for _ in range(3):
        one.data, other.data = other.data, one.data
        hooks.settle(0)
        for number, weight in enumerate((one, other)):
            row = row_of(weight)
            assert (row.kind, row.name) == ("parameters", f"layers.{number}.up.weight")
            assert row.shape == f"{'x'.join(map(str, weight.shape))} float32"


def test_modules_that_were_not_called(labels):
    """A model that is too large as it is moved, weights that are averaged, a teacher before its first call."""
    from cenote.labels import hooks

    large = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)).cuda()
    teacher = {"one": torch.nn.Linear(2048, 2048).cuda()}
    assert row_of(large[1].weight).kind == "outside of modules"
    hooks.settle(0)
    assert name_of(large[1].weight) == ("parameters", "large.1.weight")
    assert name_of(teacher["one"].weight) == ("parameters", "teacher['one'].weight")
    large(torch.empty(8, 1024, device="cuda")).sum().backward()
    assert name_of(large[0].weight.grad) == ("gradients", "large.0.weight")


def test_items_of_a_list_of_modules(labels):
    """The variable of a loop says less than the list."""
    blocks = torch.nn.ModuleList(Block() for _ in range(3)).cuda()
    x = batch()
    for block in blocks:
        x = block(x)
    assert [name_of(block.up.weight)[1] for block in blocks] == [f"blocks.{number}.up.weight" for number in range(3)]
    assert row_of(blocks[1].act.kept).name == "blocks.1.act"


def test_the_library_line_and_the_programs_own(labels):
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
    y = net(batch())
    row = row_of(y)
    assert row.name == "net.1" and "torch/nn/modules/activation.py" in row.library and "test_cenote_names.py" in row.line


def test_lines_that_torch_has_written_are_not_the_programs(labels):
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU())).cuda()
    y = traced(batch())
    row = row_of(y)
    assert "test_cenote_names.py" in row.line and "eval_with_key" not in row.line + row.library, row


def test_no_module_at_all(labels):
    weight = torch.randn(256, 256, device="cuda", requires_grad=True)
    row = row_of(weight)
    assert row.kind == "outside of modules" and row.name.startswith("outside modules: ") and "test_cenote_names.py" in row.name
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    saved = weight.exp()
    saved.sum().backward()
    optimizer.step()
    assert name_of(weight) == ("parameters", "parameter 0 of SGD")
    assert name_of(weight.grad)[0] == "gradients"
    assert name_of(optimizer.state[weight]["momentum_buffer"]) == ("optimizer state", "momentum_buffer of parameter 0 of SGD")


def test_backward_belongs_to_the_module_of_its_forward(labels):
    net, seen = Net().cuda(), []
    y = net(batch())
    net.layers[1].act.kept.register_hook(lambda gradient: seen.append(row_of(gradient)))
    y.sum().backward()
    (row,) = seen
    assert row.kind == "gradients of activations" and row.name == "layers.1.down" and row.phase == "backward"
    assert row.operation.startswith(("Addmm", "Mm")), row.operation


def test_what_a_function_of_the_program_allocates_in_backward(labels):
    kept = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            kept.append(gradient * 2)
            return kept[-1]

    Twice.apply(torch.ones(512, 64, device="cuda", requires_grad=True)).sum().backward()
    assert row_of(kept[0]).text == "kept.append(gradient * 2)"


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again(labels, reentrant):
    from torch.utils.checkpoint import checkpoint

    class Saves(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Block()

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    net = torch.nn.Sequential(torch.nn.Linear(64, 64), Saves()).cuda()
    rows, inner = [], net[1].inner.act
    inner.register_forward_hook(lambda module, inputs, result: rows.append(row_of(result)))
    net(batch()).sum().backward()
    assert [row.name for row in rows] == ["net.1.inner.act"] * 2 and [row.phase for row in rows] == ["forward", "backward"]
    assert rows[1].kind == "activations, computed again"


def test_names_of_wrappers_go(labels):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = torch.nn.Sequential(torch.nn.Linear(64, 64), checkpoint_wrapper(Block())).cuda()
    compiled = torch.compile(net, backend="eager", dynamic=False)
    compiled(batch()).sum().backward()
    assert name_of(net[1].up.weight) == ("parameters", "compiled.1.up.weight")
    parallel = torch.nn.DataParallel(Net().cuda(), device_ids=[0])
    parallel(batch()).sum().backward()
    assert name_of(parallel.module.layers[0].up.weight)[1].endswith("layers.0.up.weight")
    assert "module." not in name_of(parallel.module.layers[0].up.weight)[1]
    m = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 64)).cuda(), backend="eager", dynamic=False)     # a variable that says nothing
    m(batch()).sum().backward()
    assert name_of(m._orig_mod[0].weight)[1] == "Sequential.0.weight"


def test_copies_of_data_parallel(labels):
    """Each forward copies the module, and calls it in threads."""
    parallel, rows = torch.nn.DataParallel(Net().cuda(), device_ids=[0, 1]), []
    handle = parallel.module.layers[1].act.register_forward_hook(lambda module, inputs, result: rows.append(row_of(result)))
    for _ in range(2):
        parallel(batch()).sum().backward()
    handle.remove()
    assert [row.name for row in rows] == ["layers.1.act"] * 4, rows


def test_a_module_that_is_used_twice(labels):
    class Twice(torch.nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.a, self.b = torch.nn.Sequential(shared), torch.nn.Sequential(torch.nn.Identity(), shared)

        def forward(self, x):
            x = self.a(x)
            first = self.a[0].kept
            return first, self.b(x)

    first, second = Twice(Keeps()).cuda()(batch())
    assert (row_of(first).name, row_of(second).name) == ("a.0", "b.1")


def test_several_models(labels):
    generator, critics = Net().cuda(), [Block().cuda(), Block().cuda()]
    x = generator(batch())
    critics[1](x).sum().backward()
    assert name_of(generator.layers[0].up.weight)[1] == "generator.layers.0.up.weight"
    assert name_of(critics[1].up.weight)[1] == "critics[1].up.weight"
    assert name_of(critics[1].up.weight.grad)[1] == "critics[1].up.weight"


def test_parts_that_are_called_by_themselves(labels):
    class Owner:
        def __init__(self):
            self.model = Net().cuda()

        def run(self):
            return self.model.layers[2](batch())

    owner = Owner()
    owner.run()
    assert row_of(owner.model.layers[2].act.kept).name.endswith("2.act")


def test_modules_that_die_are_gone_and_others_take_their_place(labels):
    names = set()
    for size in range(64, 84):
        net = torch.nn.Sequential(torch.nn.Linear(64, size), Keeps()).cuda()
        net(batch())
        names.add(row_of(net[1].kept).name)
        del net
        gc.collect()
    assert {name.rpartition(".")[2] for name in names} == {"1"}


def test_copies_and_pickles_of_called_modules(labels):
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda()
    net(batch())
    again = copy.deepcopy(net)
    again(batch()).sum().backward()
    file = io.BytesIO()
    torch.save(again, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loaded(batch())
    assert name_of(loaded[0].weight)[1] == "loaded.0.weight" and name_of(again[0].weight.grad)[1] == "again.0.weight"


def test_hooks_that_raise(labels):
    net = Net().cuda()

    def fail(*_):
        raise ValueError

    handle = net.layers[1].act.register_forward_hook(fail)
    for _ in range(3):
        with pytest.raises(ValueError):
            net(batch())
    handle.remove()
    after = batch()
    assert row_of(after).kind == "outside of modules"
    net(after)
    assert row_of(net.layers[1].act.kept).name == "layers.1.act"


def test_scripts_and_traces(labels):
    layer, x = torch.nn.Linear(64, 64).cuda(), batch()
    for made in (torch.jit.trace(layer, x), torch.jit.script(layer)):
        y = made(x)
        assert row_of(y).kind == "activations"
        y.sum().backward()
    torch.jit.trace(Net().cuda().eval(), x, check_trace=True)  # compares two traces: what a look asks of tensors must not be in the first one


def test_a_mode_of_the_program_is_not_woken(labels):
    """A TorchFunctionMode sees each attribute of a tensor that is read: what labels look at is none of its business."""
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    net = Net().cuda()
    net(batch())
    with Mode():
        net(batch())
    assert "_cdata" not in seen and "linear" in seen


def test_threads_that_call_modules(labels):
    errors = []

    def work():
        try:
            net = Net().cuda()
            for _ in range(20):
                net(batch()).sum().backward()
                assert row_of(net.layers[2].act.kept).name.endswith("layers.2.act")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors, errors


def test_an_optimizer_that_steps_in_backward(labels):
    """Its hook drops each gradient at once: it was named before."""
    layer, rows = torch.nn.Linear(64, 64).cuda(), []
    layer(batch()).sum().backward()
    layer.zero_grad()

    def drop(parameter):
        rows.append(row_of(parameter.grad))
        parameter.grad = None

    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(drop)
    layer(batch()).sum().backward()
    assert {(row.kind, row.name) for row in rows} == {("gradients", "weight"), ("gradients", "bias")}


def test_the_peak(labels):
    """The blocks of the peak add up to it, and stay known after they are freed."""
    from cenote.inside import holdings

    simulated.forked(
        """
        import torch, cenote
        from cenote.inside import holdings
        from cenote.labels import hooks
        cenote.label()
        net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(3):
            net(torch.empty(4096, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found = holdings.at_peak(hooks._labels.names, 0)
        allocated = cenote.stats()["allocated"]
        assert found["bytes"] == found["peak"] == allocated.peak, (found["bytes"], found["peak"], allocated)
        assert sum(found["kinds"].values()) == sum(found["phases"].values()) == allocated.peak
        names = {(row["kind"], row["name"]): row["bytes"] for row in found["rows"]}
        assert names["activations", "net.1"] >= 16 << 20 and names["parameters", "net.0.weight"] == 1 << 20, names
        assert not {"other", "none"} & {*found["kinds"], *found["phases"]}, found["kinds"]
        live = holdings.now(hooks._labels.names, 0)
        assert live["bytes"] == allocated.current < found["bytes"]
        """,
        CENOTE="on",
    )
    from cenote.view import moments
    assert moments.fold("layers.3.mlp[0].w2") == "layers.*.mlp[*].w2"


def test_what_a_module_made_is_no_input_of_the_next(labels):
    first, second = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 64).cuda()
    x = batch()
    middle = first(x)
    twice = middle * 2
    with torch.no_grad():
        fake = first(batch())
    for each in (twice, middle, fake):
        second(each)
    assert name_of(x)[0] == "inputs"
    assert [name_of(each) for each in (middle, fake)] == [("activations", "first")] * 2
    assert row_of(twice).kind == "activations"


def test_a_block_of_several_parameters_has_no_name_of_one(labels):
    net = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(64, 64, 2)}).cuda()
    net["rnn"](batch())[0].sum().backward()
    for parameter in net.parameters():
        assert name_of(parameter)[0] == "parameters" and name_of(parameter)[1].endswith("rnn")
        assert row_of(parameter).shape == "several in one block"
        assert name_of(parameter.grad)[0] == "gradients" and name_of(parameter.grad)[1].endswith("rnn")


def test_a_flat_buffer_goes_by_what_its_names_begin_with(labels):
    small, net = torch.zeros(4 * 256, device="cuda"), Net().cuda()
    net.layers[0].up.bias.data, net.layers[2].up.bias.data = small[:256], small[512:768]
    net(batch())
    assert name_of(small) == ("parameters", "layers")


def test_named_tensors_can_be_swapped(labels):
    """PyTorch refuses to swap a tensor that weak references of Python's or of C++'s lead to."""
    net, other = torch.nn.Linear(64, 64).cuda(), torch.nn.Parameter(torch.zeros(64, 64, device="cuda"))
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    net(batch()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.utils.swap_tensors(net.weight, other)
    del other
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    net(batch().double()).sum().backward()
    assert name_of(net.weight)[0] == "parameters" and name_of(net.weight.grad)[0] == "gradients"


def test_state_of_all_parameters_goes_by_none_of_them(labels):
    net = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.LBFGS(net.parameters())

    def closure():
        loss = net(batch()).sum()
        loss.backward()
        return loss
    optimizer.step(closure)
    (state,) = optimizer.state.values()
    assert name_of(state["prev_flat_grad"]) == ("optimizer state", "prev_flat_grad")


def test_names_of_any_text(labels):
    """Reports are written in encodings that lack some characters of Python's."""
    net = torch.nn.Module()
    net.forward = lambda x: net._modules["a\nb\ud800"](x)
    net.add_module("a\nb\ud800", torch.nn.Linear(64, 64))
    net.cuda()(batch())
    assert name_of(net._modules["a\nb\ud800"].weight)[1].endswith("a\\nb\\ud800.weight")


def test_a_container_of_many_modules_is_not_searched_for_each(labels, monkeypatch):
    from cenote.labels import naming

    looked, inside = [], naming.own_modules
    monkeypatch.setattr(naming, "own_modules", lambda module: looked.append(module) or inside(module))
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(500))).cuda()
    y = net(torch.zeros(1, 4, device="cuda"))
    assert len(looked) < 20 * 500  # 125,000 if each is searched for
    assert name_of(net[499].weight)[1].endswith("499.weight") and y.shape == (1, 4)
    net[250], net[251] = net[251], net[250]  # the list is older
    net.append(Keeps())
    net(torch.zeros(1, 4, device="cuda"))
    assert name_of(net[500].kept)[1].endswith("500")
