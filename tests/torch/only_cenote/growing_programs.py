"""Programs for test_cenote_growth.py: programs with the usual bugs that make memory grow, and clean programs that do the same without the bug.
`# here` marks the line that keeps what should not stay.
"""

import collections
import copy
import random

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 12


def network():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()


def batch(rows=512):
    return torch.randn(rows, 256, device="cuda")


def learn(optimizer, loss, **how):
    optimizer.zero_grad()
    loss.backward(**how)
    optimizer.step()


class Average(nn.Module):
    """Keeps statistics of what goes through it, with the autograd history (the bug)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.register_buffer("spread", torch.zeros(256))

    def forward(self, x):
        x = self.layer(x)
        self.spread = 0.99 * self.spread + 0.01 * x.var(0)  # here
        return x


# --- the bugs


def sum_of_losses_in_evaluation():
    model, total = network().eval(), 0
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        total += loss  # here


def sum_of_losses_in_training():
    model = network()
    optimizer, total = torch.optim.Adam(model.parameters()), 0
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        learn(optimizer, loss)
        total += loss  # here


def sum_of_losses_whose_graphs_are_retained():
    model = network()
    optimizer, total = torch.optim.SGD(model.parameters(), lr=0.0), 0
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        learn(optimizer, loss, retain_graph=True)
        total = loss + total  # here


def outputs_in_a_list():
    model, outputs = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        output = model(batch())
        learn(optimizer, output.square().mean())
        outputs.append(output)  # here


def losses_in_a_list():
    model, losses = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        loss = model(batch()).square().mean()
        learn(optimizer, loss)
        losses.append(loss)  # here


def step_that_fails(model, optimizer):
    output = model(batch())
    learn(optimizer, output.square().mean())
    raise ValueError("a bad batch")


def outputs_kept_by_exceptions():
    model, errors = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        try:
            step_that_fails(model, optimizer)
        except ValueError as error:
            errors.append(error)  # here


def outputs_kept_by_one_exception():
    model, last = network(), None
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(STEPS):
        try:
            if number == 2:
                step_that_fails(model, optimizer)
            learn(optimizer, model(batch()).square().mean())
        except ValueError as error:
            last = error  # here
    return last


def buffer_with_history():
    model = nn.Sequential(nn.Linear(256, 256), Average()).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        learn(optimizer, model(batch()).square().mean())


def evaluation_without_no_grad():
    model, outputs = network().eval(), []
    for _ in range(STEPS):
        outputs.append(model(batch()))  # here


def hidden_state_without_detach():
    model, state = nn.LSTM(64, 128).cuda().eval(), None
    for _ in range(STEPS):
        output, state = model(torch.randn(20, 32, 64, device="cuda"), state)  # here


def hidden_state_in_training():
    model, state, scale = nn.LSTM(64, 128).cuda(), None, nn.Parameter(torch.ones(1, device="cuda"))
    optimizer = torch.optim.SGD([scale], lr=0.0)
    for _ in range(STEPS):
        output, state = model(torch.randn(20, 32, 64, device="cuda"), state)  # here
        learn(optimizer, (scale * output).sum(), retain_graph=True)


class Trainer:
    def __init__(self):
        self.model, self.seen = network(), []
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self):
        output = self.model(batch())
        learn(self.optimizer, output.square().mean())
        self.seen.append({"output": output.detach()})  # here


def outputs_in_an_attribute():
    trainer = Trainer()
    for _ in range(STEPS):
        trainer.step()


def outputs_in_a_closure():
    kept = []

    def keep(module, inputs, output):
        kept.append(output.detach())  # here

    model = network()
    model[0].register_forward_hook(keep)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        learn(optimizer, model(batch()).square().mean())


BUGS = [  # program, function with the mark, name of the holder, whether the device's memory grows
    (sum_of_losses_in_evaluation, None, "history of `total` in sum_of_losses_in_evaluation()", True),
    (sum_of_losses_in_training, None, "history of `total` in sum_of_losses_in_training()", False),
    (sum_of_losses_whose_graphs_are_retained, None, "history of `total`", True),
    (outputs_in_a_list, None, "list `outputs` in outputs_in_a_list()", True),
    (losses_in_a_list, None, "list `losses` in losses_in_a_list()", True),
    (outputs_kept_by_exceptions, None, "exceptions in list `errors` in outputs_kept_by_exceptions()", True),
    (outputs_kept_by_one_exception, None, "exceptions in `last` in outputs_kept_by_one_exception()", False),
    (buffer_with_history, Average.forward, "history of `model.1.spread`", True),
    (evaluation_without_no_grad, None, "list `outputs` in evaluation_without_no_grad()", True),
    (hidden_state_without_detach, None, "history of `state[0]`", True),
    (hidden_state_in_training, None, "history of `state[0]`", True),
    (outputs_in_an_attribute, Trainer.step, "list `self.seen` in Trainer.step()", True),
    (outputs_in_a_closure, None, "list `kept`", True),
]


# --- clean programs


def with_adam():
    model, history, total, mean = network(), [], 0.0, torch.zeros((), device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(30):
        loss = model(batch()).square().mean()
        learn(optimizer, loss)
        total += loss.item()
        mean += loss.detach()
        history.append(loss.detach())


def with_mixed_precision():
    model, scaler = network(), torch.amp.GradScaler()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(30):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch(random.randint(100, 600))).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def with_accumulation():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(20):
        losses = [model(batch()).square().mean() for _ in range(8)]
        torch.stack(losses).sum().backward()
        for _ in range(8):
            model(batch()).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=number % 2 == 0)


def with_averages():
    model = network()
    average, optimizer = copy.deepcopy(model), torch.optim.Adam(model.parameters())
    shadow = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(30):
        learn(optimizer, model(batch()).square().mean())
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters()):
                old.mul_(0.99).add_(new, alpha=0.01)
        for name, value in model.state_dict().items():
            shadow[name] = 0.99 * shadow[name] + 0.01 * value


def with_recurrence():
    model, state = nn.LSTM(64, 128).cuda(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        outputs = []
        for _ in range(3):
            output, state = model(torch.randn(random.randint(10, 60), 32, 64, device="cuda"), state)
            outputs.append(output)
        learn(optimizer, torch.cat(outputs).sum())
        state = tuple(part.detach() for part in state)


def with_evaluation_between_epochs():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        model.train()
        for _ in range(8):
            learn(optimizer, model(batch()).square().mean())
        model.eval()
        right = 0
        with torch.no_grad():
            for _ in range(9):
                right += model(batch()).argmax(1).sum().item()


class Positions(nn.Module):
    """Keeps a tensor for each length that it has met."""

    def __init__(self):
        super().__init__()
        self.layer, self.known = nn.Linear(64, 64), {}

    def forward(self, x):
        if len(x) not in self.known:
            self.known[len(x)] = torch.randn(len(x), 64, device="cuda")
        return self.layer(x + self.known[len(x)])


def with_a_cache():
    model = Positions().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(60):
        learn(optimizer, model(torch.randn(1000 * (1 + min(number, random.randint(0, 9))), 64, device="cuda")).sum())


def with_checkpoints():
    model = nn.ModuleList([network() for _ in range(3)])
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(20):
        hidden = batch().requires_grad_()
        for layer in model:
            hidden = checkpoint(layer, hidden, use_reentrant=number % 2 == 0)
        learn(optimizer, hidden.sum())


def with_queues():
    """Holds the next batch, the last three outputs and the last twelve losses."""
    model, ahead, three, twelve = network(), batch(), [], collections.deque(maxlen=12)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(30):
        now, ahead = ahead, batch()
        three = [*three, now][-3:]
        twelve.append(batch())
        learn(optimizer, model(now).square().mean())


def with_two_models():
    maker, judge = network(), network()
    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    for _ in range(20):
        made = maker(batch())
        learn(of_judge, judge(made.detach()).mean() - judge(batch()).mean())
        learn(of_maker, judge(made).mean())


CLEAN = [with_adam, with_mixed_precision, with_accumulation, with_averages, with_recurrence, with_evaluation_between_epochs, with_a_cache,
         with_checkpoints, with_queues, with_two_models]
