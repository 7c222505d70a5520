"""Which layer takes the memory? Marks between the layers, tags around the parts, kinds of everything."""
import torch

import cenote

cenote.label()  # for phases and kinds; tags and marks work without it
model = torch.nn.ModuleDict({
    "embedding": torch.nn.Embedding(50_000, 512),
    "body": torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 4, enable_nested_tensor=False),
    "output_layer": torch.nn.Linear(512, 50_000),
}).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(2):
    x = torch.randint(50_000, (16, 128), device="cuda")
    for name, layer in model.items():
        with cenote.tag(name):
            x = layer(x)
        if step == 1:
            cenote.mark(name)
    x.float().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    del x

MIB = 1 << 20
for by in ("tag", "kind", "phase"):
    print(f"\n{'by ' + by:<16} {'live':>8} {'peak':>8} {'at the peak of all':>20}")
    for row in cenote.rows(by):
        print(f"{row.name or '(none)':<16} {row.live / MIB:8.0f} {row.peak / MIB:8.0f} {row.at_peak / MIB:20.0f}  MiB")
