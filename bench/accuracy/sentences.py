"""Four steps of training a language model of transformers on random sentences: the program that xMem's authors measured (measured.json).

    python sentences.py gpt2 --optimizer AdamW --batch 35

Their loop over WikiText with a collator that pads each batch to its longest sentence, of at most 128 tokens. Which sentences a batch has is chance;
here one of them has 128 tokens and the others fewer, as good as certain for the batch sizes of the table. Weights are random, float32.
"""
import argparse

import torch
import transformers

LENGTH = 128
STEPS = 4
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
    "distilgpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6)),
    "gpt-neo-125m": lambda: transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(
        hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]])),
    "t5-base": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)),
}

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=MODELS)
parser.add_argument("--optimizer", choices=("SGD", "Adam", "AdamW", "Adafactor"), required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--zero-grad", choices=("first", "before-backward", "last"), default="first", help="where in the step gradients are cleared")
args = parser.parse_args()


def batches(words):
    lengths = torch.linspace(1, LENGTH, args.batch).long()
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    for _ in range(STEPS):
        tokens = torch.randint(words, (args.batch, LENGTH))
        yield {"input_ids": tokens, "attention_mask": mask.clone(), "labels": torch.where(mask.bool(), tokens, -100)}


def main():
    model = MODELS[args.model]().train()
    device = torch.device("cuda:0")
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.001)
    model.to(device)
    for batch in batches(model.config.vocab_size):
        if args.zero_grad == "first":
            optimizer.zero_grad()
        batch = {name: values.to(device) for name, values in batch.items()}
        outputs = model(**batch)
        if args.zero_grad == "before-backward":
            optimizer.zero_grad()
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        if args.zero_grad == "last":
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
