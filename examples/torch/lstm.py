"""A language model of three LSTM layers (cuDNN), trained on packed batches of sequences of 10 to 120 words."""
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import figures

BATCH, WIDTH, WORDS = 256, 1500, 33000
SHORTEST, LONGEST = 10, 120

random.seed(0)
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=3, dropout=0.5, batch_first=True)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True)
        result: PackedSequence = self.lstm(packed)[0]
        return self.out(result.data)


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in figures.steps(150):
    longest = random.randint(SHORTEST, LONGEST)
    lengths = torch.randint(longest // 2, longest + 1, (BATCH,)).sort(descending=True).values
    lengths[0] = longest
    words = torch.randint(WORDS, (BATCH, longest), device="cuda")
    targets = torch.randint(WORDS, (int(lengths.sum()),), device="cuda")
    loss = F.cross_entropy(model(words, lengths), targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()

figures.report(loss)
