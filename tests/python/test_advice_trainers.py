"""`cenote dry-run --advise` of programs that a Trainer of Transformers or Lightning runs, and of a loop around a model of Transformers: each row
beside the program with that line written into it by hand."""
import json
import sys

import pytest
from conftest import caller, nursery_with

from cenote.remedies import trainers

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

MODELS = """
import argparse, contextlib, json, sys, tempfile, torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--options", type=json.loads, default={})
parser.add_argument("--llama", action="store_true")
parser.add_argument("--half", action="store_true")
parser.add_argument("--checkpoints", action="store_true")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--seq-len", type=int, default=128)
asked = parser.parse_args()
if asked.llama:
    model = LlamaForCausalLM(LlamaConfig(hidden_size=128, intermediate_size=344, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
                                         vocab_size=1000))
else:
    model = GPT2LMHeadModel(GPT2Config(n_embd=128, n_layer=3, n_head=4, vocab_size=1000))
model = model.to(torch.bfloat16) if asked.half else model
"""
TRAINER = MODELS + """
class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, number):
        words = torch.randint(1000, (asked.seq_len,))
        return {"input_ids": words, "labels": words}
with tempfile.TemporaryDirectory() as folder:
    fixed = dict(output_dir=folder, per_device_train_batch_size=16, max_steps=10, save_strategy="no", report_to="none", disable_tqdm=True)
    Trainer(model=model, args=TrainingArguments(**{**fixed, **asked.options}), train_dataset=Words()).train()
"""
LOOP = MODELS + """
model.cuda().train()
if asked.checkpoints:
    model.activation_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    words = torch.randint(1000, (16, asked.seq_len), device="cuda")
    with torch.autocast("cuda", torch.bfloat16) if asked.autocast else contextlib.nullcontext():
        output = model(input_ids=words, labels=words)
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LIGHTNING = """
import argparse, lightning, torch
parser = argparse.ArgumentParser()
parser.add_argument("--precision", default="32-true")
parser.add_argument("--fused", action="store_true")
asked = parser.parse_args()

class Small(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1000))

    def training_step(self, batch, number):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), fused=asked.fused or None)

data = torch.utils.data.TensorDataset(torch.zeros(4096, 256), torch.zeros(4096, dtype=torch.long))
trainer = lightning.Trainer(max_epochs=9, accelerator="gpu", devices=1, precision=asked.precision, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Small(), torch.utils.data.DataLoader(data, batch_size=1024))
"""


@pytest.fixture
def compare(tmp_path):
    """compare(CALLER, CODE, ARGUMENTS, BY_HAND): what `--advise` wrote, if all is as BY_HAND has it: a row's name, and the arguments that are the
    same by hand, with the row's line."""
    def call(dry, code, arguments, by_hand):
        (tmp_path / "train.py").write_text(code)
        done = dry("dry-run", "--quiet", "--gpu", "80GiB", f"--advise={','.join(by_hand)}", "--json", "out.json", "train.py", *arguments)
        rows = json.loads((tmp_path / "out.json").read_text())["advice"]["rows"]
        found = {row["remedies"][0]: row for row in reversed(rows)}
        assert sorted(found) == sorted(by_hand), done.stdout + done.stderr
        for name, (more, line) in by_hand.items():
            dry("dry-run", "--quiet", "--gpu", "80GiB", "--json", "hand.json", "train.py", *arguments, *more)
            hand = json.loads((tmp_path / "hand.json").read_text())
            assert (hand["verdict"], hand["least_needed"]) == ("fits", found[name]["needs"]), (name, found[name], hand["least_needed"])
            assert found[name]["line"] == line
        return done.stdout
    return call


def test_a_trainer_of_transformers(compare, clean, tmp_path):
    """Its autocast makes the model's outputs float32 again, which only its own option can tell."""
    models = (f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama"))
    nursery = nursery_with("torch._dynamo", "transformers.trainer", *models)
    try:
        said = compare(caller(nursery.python, clean, tmp_path), TRAINER, [],
                       {"autocast": (["--options", '{"bf16": true}'], "TrainingArguments(bf16=True)")})
        assert "autocast to bfloat16" in said
    finally:
        nursery.close()


OPTIONS = {"checkpointing": (["--options", '{"gradient_checkpointing": true}'], "TrainingArguments(gradient_checkpointing=True)"),
           "autocast": (["--options", '{"bf16": true}'], "TrainingArguments(bf16=True)"),
           "bfloat16": (["--half"], "model.to(torch.bfloat16), without bf16=True or fp16=True")}


@pytest.mark.deep
@pytest.mark.parametrize("more", [[], ["--llama"]], ids=["gpt2", "llama"])
def test_all_of_a_trainer_of_transformers(compare, run, more):
    half = {"batch": (["--options", '{"per_device_train_batch_size": 8}'], "TrainingArguments(per_device_train_batch_size=8)")}
    compare(run, TRAINER, more, {**OPTIONS, **half})
    both = ["--options", '{"bf16": true, "gradient_checkpointing": true}'], "TrainingArguments(gradient_checkpointing=True)"
    compare(run, TRAINER, [*more, "--options", '{"bf16": true}'], {"checkpointing": both})


@pytest.mark.deep
def test_a_trainer_that_has_it_all(run, tmp_path):
    """bf16=True is autocast within the model's forward."""
    (tmp_path / "train.py").write_text(TRAINER)
    done = run("dry-run", "--quiet", "--gpu", "80GiB", "--advise=autocast,checkpointing,fused,in-backward", "train.py", "--options",
               '{"bf16": true, "gradient_checkpointing": true}')
    assert done.returncode == 0 and "none of the remedies" in done.stdout, done.stderr
    for title, why in {"autocast to bfloat16": "the program uses autocast already", "checkpointing": "the program checkpoints already",
                       "fused step of the optimizer": "the optimizer is fused already",
                       "step in backward": "the program clips the norm of all gradients together"}.items():
        assert f"  not tried: {title}: {why}\n" in done.stdout, done.stdout


@pytest.mark.deep
def test_a_loop_around_llama(compare, run):
    compare(run, LOOP, ["--llama"], {
        "checkpointing": (["--checkpoints"], "model.activation_checkpointing_enable()"),
        "autocast": (["--autocast"], 'with torch.autocast("cuda", torch.bfloat16): output = model(x)'),
        "bfloat16": (["--half"], "model.to(torch.bfloat16) before the optimizer is built; cast inputs that are floating point, not token ids"),
        "sequence": (["--seq-len", "64"], "--seq-len 64")})


@pytest.mark.deep
def test_a_trainer_of_lightning(compare, run):
    compare(run, LIGHTNING, [], {"autocast": (["--precision", "bf16-mixed"], 'Trainer(precision="bf16-mixed")'),
                                 "bfloat16": (["--precision", "bf16-true"], 'Trainer(precision="bf16-true")'),
                                 "fused": (["--fused"], "AdamW(..., fused=True)")})


def test_options_of_what_is_imported_later(monkeypatch, tmp_path):
    """Of a class and of one that is derived from it, which calls its method."""
    (tmp_path / "some_trainer.py").write_text("""
class Maker:
    def __init__(self, a=1, b=2):
        self.made = a, b

class Derived(Maker):
    def __init__(self, **more):
        super().__init__(**more)
""")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    monkeypatch.setitem(trainers.MAKERS, "some", trainers.Maker(("some_trainer", "no_such_trainer"), "Maker", "__init__", trainers.as_arguments))
    monkeypatch.setattr(sys, "meta_path", [*before])
    trainers.set_options("some", {"b": "x"})
    assert trainers.line("some", {"b": "x", "c": True}) == 'Maker(b="x", c=True)'
    import some_trainer
    assert some_trainer.Maker(a=5).made == (5, "x") and some_trainer.Derived(b=3).made == (1, "x")
    assert len(sys.meta_path) == len(before) + 1  # the other module was not imported
