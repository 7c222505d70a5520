"""Trains torchtitan's small Llama 3: titan_llama.py [TENSOR [PIPELINE]]. An ordinary script for torchrun.

FSDP2, tensor and sequence parallelism and a pipeline, as torchtitan's own trainer does them, with words that are made up in place of data and a
tokenizer.
"""
import sys
from dataclasses import dataclass

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.models.llama3.config_registry import llama3_debugmodel


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **more):
        super().__init__()

    def encode(self, *arguments, **named):
        return []

    def decode(self, *arguments, **named):
        return ""

    def get_vocab_size(self):
        return 2048


class Zeros(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, seq_len, local_batch_size, **more):
        self.shape = local_batch_size, seq_len

    def __iter__(self):
        while True:
            words = torch.zeros(self.shape, dtype=torch.long)
            positions = torch.arange(self.shape[1]).repeat(self.shape[0], 1)
            yield {"input": words, "positions": positions}, words

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def main():
    tensor, pipeline = (int(word) for word in [*sys.argv[1:], "1", "1"][:2])
    config = llama3_debugmodel()
    config.tokenizer, config.dataloader = NoTokenizer.Config(), Zeros.Config()
    config.parallelism.tensor_parallel_degree, config.parallelism.pipeline_parallel_degree = tensor, pipeline
    config.parallelism.pipeline_parallel_schedule = "1F1B"
    config.training.steps, config.training.seq_len, config.training.disable_cuda_graphs = 4, 512, True
    config.checkpoint.enable = config.validator.enable = config.debug.enable_structured_logging = False
    trainer = config.build()
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
