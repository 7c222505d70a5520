"""`cenote dry-run --advise=fsdp` of programs that train adapters of a frozen base: the row beside the program with fully_shard written into it by
hand.

Adapters move to the GPU one by one, the base in the ways in which libraries move it. What is sharded has to be the base.
"""
import json

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.simulation]

SHARED = """
import os, sys, torch
how, is_by_hand = sys.argv[1], len(sys.argv) > 2
if is_by_hand:
    from torch.distributed.fsdp import fully_shard
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
"""
OWN = SHARED + """
class Adapted(torch.nn.Module):  # as PEFT does it
    def __init__(self, base):
        super().__init__()
        self.base, self.down, self.up = base.requires_grad_(False), torch.nn.ModuleDict(), torch.nn.ModuleDict()
        self.down["default"], self.up["default"] = torch.nn.Linear(2048, 8, bias=False), torch.nn.Linear(8, 2048, bias=False)
        for adapter in (self.down, self.up):
            adapter["default"] = adapter["default"].to(base.weight.device)

    def forward(self, x):
        return self.base(x) + self.up["default"](self.down["default"](x))

model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, device="cuda" if how == "device" else None) for _ in range(8)))
model = torch.nn.Sequential(torch.nn.Sequential(*map(Adapted, model)))
if is_by_hand:
    for block in model[0]:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
for step in range(10):
    model(torch.zeros(16, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PEFT = SHARED + """
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8, vocab_size=4000)
if how in ("map", "read"):
    model = LlamaForCausalLM.from_pretrained("model", **({"device_map": "cuda"} if how == "map" and not is_by_hand else {}))
else:
    with torch.device("cuda" if how == "device" else "cpu"):
        model = LlamaForCausalLM(config)
if how == "to":
    model = model.to(torch.bfloat16) if is_by_hand else model.to("cuda", torch.bfloat16)
elif how in ("cuda", "read") and not is_by_hand:
    model.cuda()
model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj", "down_proj"]))
if is_by_hand:
    for block in model.base_model.model.model.layers:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
if how == "prepare" and not is_by_hand:
    from accelerate import Accelerator
    model, optimizer = Accelerator().prepare(model, optimizer)
for step in range(10):
    words = torch.randint(4000, (2, 128), device="cuda")
    model(input_ids=words, labels=words).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


SAVE = """
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8, vocab_size=4000)
LlamaForCausalLM(config).save_pretrained("model")
"""


def compare(run, folder, code, how):
    """What the row and the program by hand need beside the context and what NCCL takes, and the row."""
    (folder / "train.py").write_text(code)
    given = "dry-run", "--quiet", "--gpu", "8GiB", "--steps", "3", "--json", "out.json"
    done = run(*given, "--advise=fsdp=2", "train.py", how)
    assert (folder / "out.json").exists(), done.stderr
    row = json.loads((folder / "out.json").read_text())["advice"]["rows"][0]
    assert row["verdict"] == "fits", row
    (folder / "out.json").unlink()
    done = run(*given, "--world", "2", "train.py", how, "by-hand")
    hand = json.loads((folder / "out.json").read_text())
    others = hand["processes"][0]["devices"]["0"]["others"]
    return row["needs"] - others, hand["least_needed"] - others, row


def test_a_frozen_base_is_sharded(nursed_run, tmp_path):
    """The base is on the GPU before it has adapters."""
    needs, by_hand, _ = compare(nursed_run, tmp_path, OWN, "device")
    assert needs == by_hand


@pytest.mark.deep
@pytest.mark.parametrize("how", ["device", "prepare", "cuda", "to", "map", "read"])
def test_a_frozen_base_of_peft(run, tmp_path, how):
    """`cuda` and `to`: the base was on the GPU before it got adapters, which by hand are gathered with their block. `map` and `read`: it was read
    from a file, straight to the GPU, and by way of the host."""
    if how in ("map", "read"):
        assert run("run", "--sim", "2GiB", "--quiet", "-c", SAVE).returncode == 0
    needs, by_hand, row = compare(run, tmp_path, PEFT, how)
    assert needs == by_hand and ("fsdp_plugin" in row["line"]) == (how == "prepare"), row


