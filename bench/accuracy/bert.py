"""bert-large-uncased with the Trainer of transformers, 4 sequences of 512 tokens a step: "Efficient training on a single GPU" of transformers 4.

    python bert.py [--checkpointing] [--fp16] [--adafactor] [--accumulate N]

That page is of January 2022, when PyTorch was at 1.10. What is otherwise today is set as it was: attention without a fused kernel, a softmax that
keeps its input for backward (pytorch#64000), an AdamW that works on one parameter at a time (transformers had its own), gradients that are set to
zero and kept, checkpoints that enter autograd again. Its evaluation every 500 steps never came: it made 128 steps.
"""
import argparse
import functools
import tempfile

import torch
import transformers

LENGTH = 512
STEPS = 5

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=1, help="the step's 4 sequences in so many parts")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--adafactor", action="store_true")
args = parser.parse_args()


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, dim):
        shares = torch.softmax(values, dim)
        ctx.dim = dim
        ctx.save_for_backward(values, shares)
        return shares

    @staticmethod
    def backward(ctx, gradient):
        values, shares = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, shares, ctx.dim, values.dtype), None


def softmax(values, dim):
    return Softmax.apply(values.float(), dim)  # under autocast, softmax is computed in float32


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        return {"input_ids": torch.randint(100, 30000, (LENGTH,)), "labels": 0}


def main():
    torch.ones((1, 1)).to("cuda")
    torch.nn.functional.softmax = softmax
    config = transformers.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                                     attn_implementation="eager")
    model = transformers.BertForSequenceClassification(config).to("cuda")
    model.zero_grad = functools.partial(model.zero_grad, set_to_none=False)
    with tempfile.TemporaryDirectory() as folder:
        options = transformers.TrainingArguments(
            folder, max_steps=STEPS, per_device_train_batch_size=4 // args.accumulate, gradient_accumulation_steps=args.accumulate,
            gradient_checkpointing=args.checkpointing, gradient_checkpointing_kwargs={"use_reentrant": True} if args.checkpointing else None,
            fp16=args.fp16, optim="adafactor" if args.adafactor else "adamw_torch", save_strategy="no", report_to="none", disable_tqdm=True)
        own = None if args.adafactor else torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0, foreach=False)
        transformers.Trainer(model, options, train_dataset=Data(), optimizers=(own, None)).train()


if __name__ == "__main__":
    main()
