"""The callbacks for the Trainers of Transformers and Lightning, in trainings on the simulated GPU."""
import json

import pytest

import spoken

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

TRANSFORMERS = """
import json, sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from cenote.integrations.transformers import MemoryCallback

kept, reported = [], []

class Leaks(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        kept.append(torch.empty(1 << 20, device="cuda"))
        return super().compute_loss(model, inputs, *args, **kwargs)

class Reports(TrainerCallback):  # as those for TensorBoard and others, which come first
    def on_log(self, args, state, control, logs=None, **kwargs):
        reported.append(dict(logs))

data = [{"input_ids": torch.arange(16), "labels": torch.arange(16)}] * 64
arguments = TrainingArguments(output_dir=sys.argv[1], per_device_train_batch_size=4, max_steps=12, logging_steps=4, save_strategy="no",
                              report_to="none", disable_tqdm=True)
model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=128))
trainer = Leaks(model=model, args=arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[Reports()])
trainer.add_callback(MemoryCallback(trainer))
trainer.train()
peak = torch.cuda.max_memory_allocated() / 2**30
seen = trainer.evaluate()
with open(sys.argv[1] + "/told.json", "w") as file:
    json.dump(dict(history=trainer.state.log_history, reported=reported, peak=peak, seen=seen), file)
"""
LEAKS = "kept.append(torch.empty(1 << 20"

LIGHTNING = """
import csv, json, sys, torch
import lightning as L
from lightning.pytorch.loggers import CSVLogger
from cenote.integrations.lightning import MemoryCallback

class Small(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.kept = torch.nn.Linear(1024, 1024), []

    def training_step(self, batch, batch_idx):
        self.kept.append(torch.empty(1 << 20, device="cuda"))
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

logger = CSVLogger(sys.argv[1])
trainer = L.Trainer(max_steps=12, accelerator="gpu", devices=1, logger=logger, log_every_n_steps=4, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[1], callbacks=[MemoryCallback()])
trainer.fit(Small(), torch.utils.data.DataLoader(torch.randn(64, 1024), batch_size=4))
with open(logger.log_dir + "/metrics.csv") as log, open(sys.argv[1] + "/told.json", "w") as file:
    json.dump([{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(log)], file)
"""
FIGURES = {"memory_allocated_gib", "memory_allocated_peak_gib", "memory_reserved_gib", "memory_reserved_peak_gib", "memory_cached_gib", "memory_waste_percent"}
OURS = {"memory_waits", "memory_driver_seconds"}


@pytest.fixture
def train(run, tmp_path):
    """train(SCRIPT, ALLOCATOR): what the script wrote, and what it said."""
    def call(script, allocator):
        (tmp_path / "train.py").write_text(script)
        done = run("run", "--sim", "4GiB", "--allocator", allocator, "train.py", tmp_path, OMP_NUM_THREADS="1")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return json.loads((tmp_path / "told.json").read_text()), spoken.said(done.stderr, tmp_path)
    return call


LOOP = """
import json, sys, torch
from cenote.integrations.training import Memory
memory, told, kept = Memory(), [], []
for step in range(3):
    kept.append(torch.empty(1 << 20, device="cuda"))
    told.append(memory.figures())
json.dump(told, open(sys.argv[1] + "/told.json", "w"))
"""


def is_whole(figures):
    allocated, peak, reserved = (figures[f"memory_{name}_gib"] for name in ("allocated", "allocated_peak", "reserved"))
    return (0 < allocated <= reserved and allocated <= peak and figures["memory_waste_percent"] >= 0
            and figures["memory_cached_gib"] == pytest.approx(reserved - allocated, abs=1e-6))


@pytest.mark.parametrize("allocator", ["cenote", "native"])
def test_transformers(train, allocator):
    """Each entry of the log has the figures, also where other callbacks report; under cenote one entry has the line that grows."""
    found, said = train(TRANSFORMERS, allocator)
    entries = [entry for entry in found["history"] if "loss" in entry]
    assert [entry["step"] for entry in entries] == [4, 8, 12] and all(map(is_whole, entries)), entries
    assert [FIGURES <= set(entry) for entry in found["reported"]] == [FIGURES <= set(entry) for entry in found["history"]] == [True] * 4 + [False]
    assert entries[2]["memory_allocated_gib"] - entries[1]["memory_allocated_gib"] >= 4 / 256
    last = [entry for entry in found["history"] if FIGURES <= set(entry)][-1]
    assert last["memory_allocated_peak_gib"] == pytest.approx(found["peak"], rel=0.01)
    grows = [entry["memory_growth"] for entry in found["history"] if "memory_growth" in entry]
    if allocator == "cenote":
        assert len(grows) == 1 and "+4.0 MiB a step" in grows[0] and LEAKS in grows[0], grows
        assert LEAKS in said
    else:
        assert not grows
    assert found["seen"]["epoch"] and not FIGURES & set(found["seen"])


def test_lightning(train):
    rows, said = train(LIGHTNING, "cenote")
    assert [row["step"] for row in rows] == [3, 7, 11] and all(map(is_whole, rows)), rows
    assert rows[2]["memory_allocated_gib"] - rows[1]["memory_allocated_gib"] == pytest.approx(16 / 1024, rel=0.01)
    assert "+4.0 MiB a step" in said and "self.kept.append(torch.empty(1 << 20" in said, said


@pytest.mark.torch
@pytest.mark.simulation
def test_a_loop_of_ones_own_has_the_same_figures(train):
    told, _ = train(LOOP, "cenote")
    assert len(told) == 3 and all(set(figures) == FIGURES | OURS and is_whole(figures) for figures in told)
    assert [round(figures["memory_allocated_gib"] * 256) for figures in told] == [1, 2, 3]
