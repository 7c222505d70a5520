#!/bin/bash
# cenote-replay's models of PyTorch's allocator, by hand: where blocks lie, what is reserved, and memory as a card held it.
exec python3 -B tests/tools/models.py
