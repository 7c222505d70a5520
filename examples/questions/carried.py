"""The state of a recurrent network, carried from chunk to chunk without detach()."""
import torch
from torch import nn

import cenote

rnn = nn.LSTM(256, 512).cuda()
cenote.growth()
state = None
for chunk in range(8):
    output, state = rnn(torch.randn(50, 64, 256, device="cuda"), state)
    cenote.step()
