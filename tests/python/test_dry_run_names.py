"""Which names the rows of a dry run have where a program moves its weights about, or has several models."""
import pytest
from test_dry_run import MIB, dry, line_of  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

BLOCKS = """
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(512, 8192), torch.nn.Linear(8192, 512)
        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Block() for _ in range(4))
        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
"""

OFFLOADED = """
    import torch
    from accelerate import dispatch_model
""" + BLOCKS + """
    places = {"layers.0": "cuda:0", "layers.1": "cpu", "layers.2": "cpu", "layers.3": "cpu"}
    net = dispatch_model(Net(), places, main_device="cuda:0")
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(64, 512, device="cuda"))
"""


def large_rows(found, least=8 * MIB):
    return [row for row in found["processes"][0]["devices"]["0"]["names"]["rows"] if row["bytes"] >= least]


def test_weights_that_accelerate_brings_from_the_host(dry):  # noqa: F811
    """A module has them for one call. They are parameters all the same."""
    done, found = dry(OFFLOADED, "--gpu", "2GiB", "--steps", "0")
    assert done.returncode == 0, done.stderr
    rows = large_rows(found)
    names = {row["name"] for row in rows}
    assert {row["kind"] for row in rows} == {"parameters"}, rows
    assert {"layers.0.up.weight", "layers.0.down.weight"} < names and {name.split(".")[1] for name in names} & {"1", "2", "3"}, rows


SHARDED = """
    import sys, torch, torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(0)
""" + BLOCKS + """
    is_offloaded = sys.argv[1:] == ["offloaded"]
    policy, net = (CPUOffloadPolicy(), Net()) if is_offloaded else (OffloadPolicy(), Net().cuda())
    for layer in net.layers:
        fully_shard(layer, offload_policy=policy)
    fully_shard(net, offload_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    for _ in range(3):
        net(torch.randn(64, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("where", ["on the GPU", "offloaded"])
def test_parameters_that_fsdp_gathers(dry, where):  # noqa: F811
    """At the peak, in backward, two blocks have their parameters, and what was gathered for a third one is there."""
    done, found = dry(SHARDED, "--gpu", "2GiB", "--world", "2", "--steps", "2", "--unknown", "zero", arguments=[where])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = large_rows(found, 16 * MIB)
    whole = [row["name"] for row in rows if row["kind"] == "parameters" and row["bytes"] == 16 * MIB]
    assert any(name.endswith(".up.weight") for name in whole) and any(name.endswith(".down.weight") for name in whole), rows
    sent = {(row["kind"], row["shape"]) for row in rows}
    assert {("parameters", "gathered"), ("gradients", "to be reduced")} <= sent, rows
    assert "gradients of activations" not in {row["kind"] for row in rows}, rows


TWO = """
    import copy, torch
    def mean_of(model, x):
        return model(x).square().mean()
    policy = torch.nn.Linear(1024, 4096).cuda()
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters())
    for _ in range(3):
        x = torch.randn(64, 1024, device="cuda")
        loss = mean_of(policy, x)
        with torch.no_grad():
            other = mean_of(reference, x)
        (loss - other).backward()
        optimizer.step()
"""


def test_two_models_that_one_function_calls(dry):  # noqa: F811
    """`model` leads to both, but in turn."""
    done, found = dry(TWO, "--gpu", "2GiB")
    assert done.returncode == 0, done.stderr
    parameters = {row["name"] for row in large_rows(found) if row["kind"] == "parameters"}
    assert {"policy.weight", "reference.weight"} <= parameters, parameters


def test_a_model_that_is_not_called(dry):  # noqa: F811
    """As one that a compiled function has: its parameters were those of the optimizer, by number."""
    done, found = dry("""
        import torch
        net = torch.nn.Linear(1024, 4096).cuda()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(3):
            torch.nn.functional.linear(torch.randn(64, 1024, device="cuda"), net.weight, net.bias).square().mean().backward()
            optimizer.step()
    """, "--gpu", "2GiB")
    assert done.returncode == 0, done.stderr
    names = {row["name"] for row in large_rows(found)}
    assert {"weight", "exp_avg of weight"} <= names, names
