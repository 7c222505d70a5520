"""Trains a small model with DeepSpeed's ZeRO: deepspeed_zero.py STAGE. An ordinary script for torchrun."""
import os
import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn


def main():
    stage = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed("nccl")
    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))]
    config = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
              "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(4):
        loss = engine(torch.zeros(8, 1024, dtype=torch.bfloat16, device="cuda")).float().square().mean()
        engine.backward(loss)
        engine.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
