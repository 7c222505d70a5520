"""Parameters, gradients, optimizer state, buffers, activations: the figures by kind agree to the byte with a count of the program's own tensors.
For CENOTE_TEST_ALLOCATOR=cenote.
"""

import copy
import gc
import io
import pickle

import pytest
import torch

import simulated
from labelled import Spy, by, cenote, kind_of, kinds, labels, only_cenote, phase_now, rounded  # noqa: F401  (fixtures)

pytestmark = only_cenote


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
    others = kinds()  # left behind by earlier tests and by PyTorch
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
    # Buffers and parameters to the byte, compared with what the model says it has.
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
    """Labels find parameters, gradients and state that were allocated before labels were switched on."""
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
            where = torch.zeros(1, 5, dtype=torch.long, device="cuda")
            self.register_buffer("sparse", torch.sparse_coo_tensor(where, torch.ones(5, device="cuda"), (4,)))

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
    """cenote keeps no module, tensor or optimizer alive."""
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


@pytest.mark.parametrize("wrapped", ["DDP", "FSDP", "fully_shard"])
def test_flat_and_sharded_parameters(tmp_path, wrapped):
    """One rank: the blocks of buckets, flat parameters and DTensors have the right kinds."""
    done = simulated.forked(
        f"""
        import sys, torch, cenote
        import torch.distributed as dist
        import torch.distributed.fsdp
        sys.path[:0] = [{str(simulated.ROOT / "tests/torch")!r}, {str(simulated.ROOT / "tests/torch/only_cenote")!r}]
        from labelled import kind_of, kinds, rounded
        dist.init_process_group("nccl", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        cenote.label()
        net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128), torch.nn.Linear(128, 8)).cuda()
        if {wrapped!r} == "DDP":
            net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[0], gradient_as_bucket_view=True)
        elif {wrapped!r} == "FSDP":
            net = torch.distributed.fsdp.FullyShardedDataParallel(net, device_id=0, use_orig_params=True)
        else:
            torch.distributed.fsdp.fully_shard(net)
        optimizer = torch.optim.Adam(net.parameters(), foreach=False)
        for _ in range(3):
            net(torch.empty(4, 64, device="cuda")).sum().backward()
            optimizer.step()
            local = lambda tensor: getattr(tensor, "_local_tensor", tensor)
            held = [local(parameter) for parameter in net.parameters()]
            gradients = [local(parameter.grad) for parameter in net.parameters()]
            states = [local(value) for state in optimizer.state.values() for value in state.values() if value.is_cuda]
            assert {{kind_of(tensor) for tensor in held}} == {{"parameters"}}
            assert {{kind_of(tensor) for tensor in gradients}} == {{"gradients"}}, [kind_of(tensor) for tensor in gradients]
            assert {{kind_of(tensor) for tensor in states}} == {{"optimizer state"}}
            assert kinds()["gradients"] >= rounded(*gradients) and kinds()["optimizer state"] == rounded(*states)
            optimizer.zero_grad()
        assert cenote.steps()[-1].number == 3
        from cenote.inside import holdings
        from cenote.labels import hooks
        rows = holdings.now(hooks._labels.names, 0)["rows"]
        names = {{row["name"] for row in rows if row["kind"] in ("parameters", "optimizer state")}}
        assert not [name for name in names if "module" in name], names
        assert {wrapped!r} == "FSDP" or {{"net.0.weight", "exp_avg of net.0.weight"}} <= names, names
        dist.destroy_process_group()
        print("end")
        """,
        CENOTE="on",
        timeout=200,
        whole=True,
    )
    assert done.stdout.endswith("end\n")


def test_views_are_found_by_their_storage(labels, monkeypatch):
    """A tensor inside a block is found by the start of its storage. A search from block to block would take milliseconds a step for a bucket."""
    from cenote.labels import hooks

    bucket = torch.empty(4, 1 << 20, device="cuda")
    asked, hold = [], hooks._labels.names.hold
    monkeypatch.setattr(hooks._labels.names, "hold", lambda *arguments: asked.append(arguments[0]) or hold(*arguments))
    for gradient in bucket:
        hooks._labels.marker.tensor(gradient, 2)
    assert asked == [bucket.data_ptr()] * 4 and kind_of(bucket) == "gradients"


def test_without_the_library_of_names(cenote, monkeypatch, capsys):
    """Where it cannot be compiled there are no labels, and one line says so."""
    from cenote.labels import hooks, names
    from cenote.native import adapter
    from cenote.torch import features

    def loaded(*arguments):
        raise adapter.NotMade("there is no C++ compiler: install g++")

    monkeypatch.setattr(names, "_names", None)
    monkeypatch.setattr(names, "_refused", False)
    monkeypatch.setattr(adapter, "loaded", loaded)
    monkeypatch.setattr(features, "_said", set())
    call = torch.nn.Module.__call__
    with pytest.raises(cenote.Error, match="memory has no labels: there is no C.. compiler: install g.."):
        cenote.label()
    names._refused = False
    hooks.label_if_possible(torch)
    assert capsys.readouterr().err == "cenote: memory has no labels: there is no C++ compiler: install g++\n"
    assert hooks._labels is None and torch.nn.Module.__call__ is call
    net = Net().cuda()
    net(torch.empty(2, 3, 32, 32, device="cuda")).sum().backward()
    assert {kind_of(parameter.grad) for parameter in net.parameters()} == {"other"}
