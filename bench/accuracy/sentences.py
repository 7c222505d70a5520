"""Four steps of training a language model of transformers on random sentences: the program that xMem's authors measured (measured.json).

    python sentences.py gpt2 --optimizer AdamW --batch 35

Their loop over WikiText with a collator that pads each batch to its longest sentence, of at most 128 tokens. Which sentences a batch has is chance;
here one of them has 128 tokens and the others fewer, as good as certain for all but batches of one. Weights are float32 and never set.
"""
import argparse

import torch
import transformers
from transformers.initialization import no_init_weights

LENGTH = 128
STEPS = 4
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
    "distilgpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6)),
    "gpt-neo-125m": lambda: transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(
        hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]])),
    "deepseek-r1-distill-qwen-1.5b": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2)),
    "llama-3.2-3b": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8,
        tie_word_embeddings=True)),
    "qwen3-4b": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, tie_word_embeddings=True)),
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
    with no_init_weights():  # pages that are never written take no memory of the host
        model = MODELS[args.model]().train()
    model.tie_weights()
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
