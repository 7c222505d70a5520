"""cudnn.benchmark in a dry run: the need is the same each time, and without the search; what the search takes stands beside it."""
import json
import textwrap

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

NETWORK = """
    import sys, torch
    torch.backends.cudnn.benchmark = sys.argv[1] == "on"
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU(),
                                torch.nn.Conv2d(64, 256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.empty(16, 3, 128, 128, device="cuda")).sum().backward()
        optimizer.step()
"""
LINE = "more while cudnn.benchmark searches, if free"


@pytest.fixture
def dry(nursed_run, tmp_path):
    def call(benchmark):
        (tmp_path / "network.py").write_text(textwrap.dedent(NETWORK))
        done = nursed_run("dry-run", "--gpu", "80GiB", "--allocator", "native", "--json", tmp_path / "out.json", "network.py", benchmark)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads((tmp_path / "out.json").read_text())
    return call


def test_three_runs_say_the_same(dry):
    told = []
    for _ in range(3):
        text, found = dry("on")
        assert text.count(LINE) == 1 and found["search_room"] > 0
        (device,) = found["processes"][0]["devices"].values()
        told.append((found["needed"], found["search_room"], device))
    assert told[0] == told[1] == told[2]


def test_the_need_is_that_of_the_chosen_plans(dry):
    _, searching = dry("on")
    text, plain = dry("off")
    assert LINE not in text and plain["search_room"] == 0
    live = [found["processes"][0]["devices"]["0"]["live_peak"] for found in (searching, plain)]
    assert live[0] == live[1]
