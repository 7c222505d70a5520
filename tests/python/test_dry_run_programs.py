"""Programs that look at what they compute, as users write them: each ends as it does on a card, and its verdict is right."""
import importlib.util
import os

import pytest
from test_dry_run import MIB, dry  # noqa: F401  (a fixture)

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

DETECTION = """
    import torch, torchvision
    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91,
                                                                  rpn_post_nms_top_n_test=200).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.005, momentum=0.9)
    images = [torch.rand(3, 480, 640, device="cuda") for _ in range(2)]
    boxes, labels = torch.tensor([[10., 10., 200., 200.], [300., 100., 500., 400.]]).cuda(), torch.tensor([1, 2]).cuda()
    targets = [{"boxes": boxes, "labels": labels} for _ in images]
    for _ in range(2):
        losses = model(images, targets)
        assert all(0 <= loss.item() < 100 for loss in losses.values()), losses
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        found = [len(each["boxes"]) for each in model(images)]
    assert all(0 < count <= 100 for count in found), found
    print("detected")
"""


@pytest.mark.skipif(not (importlib.util.find_spec("torchvision") or os.environ.get("CENOTE_TEST_ALL")), reason="torchvision is not installed")
def test_detection(dry):  # noqa: F811
    """Proposals of zeros made each anchor a proposal: it did not fit 40 GiB."""
    done, found = dry(DETECTION, "--gpu", "40GiB", "--steps", "0", "--unknown", "typical")
    assert done.returncode == 0 and "detected" in done.stdout, done.stdout + done.stderr
    assert found["processes"][0]["devices"]["0"]["live_peak"] < 8 << 30, done.stdout


REINFORCED = """
    import torch, torch.nn.functional as F
    body = torch.nn.Linear(64, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 2048), torch.nn.Tanh()
    actor = torch.nn.Sequential(*body, torch.nn.Linear(2048, 18)).cuda()
    critic = torch.nn.Linear(64, 1).cuda()
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()])
    turn = torch.randn(64, 64, device="cuda")
    state, rounds, steps = torch.randn(512, 64, device="cuda"), 0, 0
    while rounds < 3:
        seen, chosen, before, rewards = [], [], [], []
        is_done = torch.zeros(512, device="cuda")
        while is_done.mean().item() < 0.5:              # rollouts of a length that nobody knows before
            with torch.no_grad():
                said = torch.distributions.Categorical(logits=actor(state))
                action = said.sample()
                while (said.probs.gather(1, action[:, None]) < 1e-6).any():     # rejected
                    action = said.sample()
            seen.append(state), chosen.append(action), before.append(said.log_prob(action))
            state = torch.tanh(state @ turn + F.one_hot(action, 64))
            rewards.append(state.mean(1))
            is_done = torch.maximum(is_done, (torch.rand(512, device="cuda") < 0.1).float())
        states, actions, said_before, gain = torch.cat(seen), torch.cat(chosen), torch.cat(before), torch.cat(rewards)
        for part in torch.randperm(len(states), device="cuda").split(1024):
            said = torch.distributions.Categorical(logits=actor(states[part]))
            ratio = (said.log_prob(actions[part]) - said_before[part]).exp()
            loss = F.mse_loss(critic(states[part]).squeeze(1), gain[part]) - torch.min(ratio * gain[part], ratio.clamp(0.8, 1.2) * gain[part]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(actor.parameters(), 0.5, error_if_nonfinite=True)
            optimizer.step()
            steps += 1
        rounds += 1
        print(len(seen), loss.item())
    print("learnt" if 3 < steps < 200 else steps)
"""


def test_reinforcement_with_rejection(dry):  # noqa: F811
    done, _ = dry(REINFORCED, "--gpu", "4GiB", "--steps", "0", "--unknown", "typical")
    assert done.returncode == 0 and "learnt" in done.stdout, done.stdout + done.stderr


TWICE = """
    import torch
    class SAM(torch.optim.Optimizer):           # sharpness-aware: it climbs, looks again, and steps from where it was
        def __init__(self, parameters, base, **options):
            super().__init__(parameters, options)
            self.base = base(self.param_groups, **options)
            self.param_groups = self.base.param_groups
        @torch.no_grad()
        def climb(self):
            each = [p for group in self.param_groups for p in group["params"]]
            norm = torch.norm(torch.stack([p.grad.norm() for p in each]))
            for p in each:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * (0.05 / (norm + 1e-12)))
            self.zero_grad()
        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data = self.state[p]["old"]
            self.base.step()
            self.zero_grad()
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6))).cuda()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(40):
        x = torch.randn(512, 1024, device="cuda")
        model(x).square().mean().backward()
        optimizer.climb()
        model(x).square().mean().backward()
        optimizer.step()
"""


def test_an_optimizer_that_steps_twice(dry):  # noqa: F811
    """The step of the optimizer inside is none of its own, and the weights that are kept are no growth."""
    done, found = dry(TWICE, "--gpu", "2GiB")
    assert done.returncode == 0 and "(5 steps of the optimizer, then ended)" in done.stdout and "grows" not in done.stdout, done.stdout
    rows = found["processes"][0]["devices"]["0"]["names"]["rows"]
    assert sum(row["bytes"] for row in rows if row["name"].startswith("momentum_buffer of ")) == pytest.approx(24 * MIB, rel=0.01), rows


SEARCHED = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1)).cuda()
    x, y = torch.randn(65536, 512, device="cuda"), torch.randn(65536, 1, device="cuda")
    optimizer, calls = torch.optim.LBFGS(model.parameters(), max_iter=20, history_size=10, line_search_fn="strong_wolfe"), 0
    for step in range(40):
        def closure():
            global calls
            calls += 1
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss
        loss = optimizer.step(closure)
        assert calls < 100 * (step + 1)
"""


def test_a_history_that_fills_is_no_growth(dry):  # noqa: F811
    """L-BFGS with a line search, which reads losses until one is small enough. Here its history takes several steps to be full."""
    done, found = dry(SEARCHED, "--gpu", "4GiB", "--unknown", "typical")
    assert done.returncode == 0 and "fits for now" not in done.stdout, done.stdout + done.stderr
    late = found["processes"][0]["growth"].get("late")  # if the run ended before it was full
    assert not late or (late["parameters"], late["history"]) == (0, 10) and "the optimizer keeps 10 steps, and has" in done.stdout, done.stdout
