"""Trains pipelines by each schedule of torch.distributed.pipelining: pipeline_schedules.py SCHEDULE STAGES. An ordinary script for torchrun.

SCHEDULE is GPipe, 1F1B or Interleaved1F1B (two stages a rank). The pipelines are replicas, and average their gradients. Widths differ from stage to
stage, so that each stage has to learn its shapes from the stage before, as objects.
"""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

SCHEDULES = {"GPipe": (ScheduleGPipe, 1), "1F1B": (Schedule1F1B, 1), "Interleaved1F1B": (ScheduleInterleaved1F1B, 2)}
WIDTHS = [256, 512, 384, 640, 256, 512, 320, 768]  # of what goes from stage to stage
ROWS, MICROBATCHES = 64, 4


def block(number):
    width, next_width = (WIDTHS[(number + i) % len(WIDTHS)] for i in (0, 1))
    return nn.Sequential(nn.Linear(width, 1024), nn.GELU(), nn.Linear(1024, next_width)).cuda()


def loss_of(found, wanted):
    return (found - wanted).square().mean()


def main():
    (kind, per_rank), ranks = SCHEDULES[sys.argv[1]], int(sys.argv[2])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size() // ranks, ranks), mesh_dim_names=("replicas", "pipeline"))
    rank, total = mesh.get_local_rank("pipeline"), ranks * per_rank
    models = {number: block(number) for number in range(rank, total, ranks)}
    stages = [PipelineStage(model, number, total, torch.device("cuda"), group=mesh.get_group("pipeline")) for number, model in models.items()]
    schedule = kind(stages if per_rank > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)
    parameters = [parameter for model in models.values() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(4):
        given = [torch.zeros(ROWS, WIDTHS[0], device="cuda")] if rank == 0 else []
        wanted = {"target": torch.zeros(ROWS, WIDTHS[total % len(WIDTHS)], device="cuda")} if rank == ranks - 1 else {}
        schedule.step(*given, **wanted)
        for parameter in parameters:
            dist.all_reduce(parameter.grad, group=mesh.get_group("replicas"), op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
