"""BERT under torch.compile(backend="cudagraphs"): a graph for each shape of training and of inference, in PyTorch's own graph pools."""
import torch
from transformers import BertConfig, BertForMaskedLM

import figures

LENGTHS = (128, 512)
TRAIN_BATCH, ANSWER_BATCH = 16, 64

config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
with torch.device("cuda"):
    model = BertForMaskedLM(config)
compiled = torch.compile(model, backend="cudagraphs", dynamic=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def train(length: int) -> None:
    tokens = torch.randint(config.vocab_size, (TRAIN_BATCH, length), device="cuda")
    loss = compiled(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.inference_mode()
def answer(length: int) -> torch.Tensor:
    return compiled(input_ids=torch.randint(config.vocab_size, (ANSWER_BATCH, length), device="cuda")).logits.argmax(-1)


for step in figures.steps(18):
    length = LENGTHS[step % len(LENGTHS)]
    model.train()
    train(length)
    model.eval()
    answer(length)

figures.report()
