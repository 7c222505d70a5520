"""Trains a small GPT with Megatron-core: megatron_gpt.py [TENSOR [PIPELINE [sequence]]]. An ordinary script for torchrun.

Tensor parallelism, a pipeline, bfloat16 weights with the distributed optimizer (ZeRO 1); with `sequence` also sequence parallelism: what lies
between the parallel layers is divided along the sequence. Layers of Megatron-core alone, without Transformer Engine and Apex, and a norm of our own,
because Megatron-core's has no sequence parallelism without them; data is made up.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

LENGTH, BATCH, MICROBATCHES, VOCABULARY = 256, 2, 4, 1024


class Norm(torch.nn.RMSNorm):
    """Each rank has a part of the sequence, so gradients of its weight are sums over the tensor-parallel ranks: Megatron-core goes by the mark."""

    def __init__(self, config, hidden_size, eps):
        super().__init__(hidden_size, eps)
        self.weight.sequence_parallel = config.sequence_parallel


def layers(config):
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=Norm)


def build(config, pipeline):
    stage = parallel_state.get_pipeline_model_parallel_rank()
    model = GPTModel(config, layers(config), VOCABULARY, LENGTH, pre_process=stage == 0,
                     post_process=stage == pipeline - 1, position_embedding_type="rope")
    model = Float16Module(config, model.cuda())
    return DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True,
                                                                         use_distributed_optimizer=True), model)


def forward(batches, model):
    words = next(batches)
    positions = torch.arange(LENGTH, device="cuda").expand(BATCH, LENGTH)
    return model(words, positions, None, labels=words), lambda losses: (losses.float().mean(), {})


def main():
    tensor, pipeline = (int(word) for word in [*sys.argv[1:], "1", "1"][:2])
    is_divided = "sequence" in sys.argv
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor, pipeline)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(num_layers=4, hidden_size=512, num_attention_heads=8, normalization="RMSNorm", add_bias_linear=False, bf16=True,
                               params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=tensor,
                               pipeline_model_parallel_size=pipeline, sequence_parallel=is_divided, activation_func=F.silu, gated_linear_unit=True,
                               finalize_model_grads_func=finalize_model_grads, persist_layer_norm=False, bias_dropout_fusion=False,
                               gradient_accumulation_fusion=False, masked_softmax_fusion=False)
    model = build(config, pipeline)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), [model])
    batches = iter(lambda: torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda"), None)
    for _ in range(4):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(forward_step_func=forward, data_iterator=batches, model=[model], num_microbatches=MICROBATCHES,
                                    seq_length=LENGTH, micro_batch_size=BATCH, forward_only=False)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
