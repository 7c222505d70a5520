"""GPT-2 trained with the Trainer of transformers, on random tokens, as the documentation of transformers teaches it.

    python trainer.py --batch-size 16
"""
import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

SIZES = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16), "gpt2-large": (1280, 36, 20)}  # width, layers, heads

parser = argparse.ArgumentParser()
parser.add_argument("--size", choices=SIZES, default="gpt2")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--length", type=int, default=1024)
args = parser.parse_args()
width, layers, heads = SIZES[args.size]


class Tokens(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        words = torch.randint(50257, (args.length,))
        return {"input_ids": words, "labels": words}


def main():
    model = GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=layers, n_head=heads))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            bf16=True,
            max_steps=1000,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            dataloader_num_workers=2,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
        trainer.train()


if __name__ == "__main__":
    main()
