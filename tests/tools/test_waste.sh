#!/bin/bash
# cenote-fuzz: the same seed finds the same, what it writes replays to what it says, its arguments; traces/worst.
exec python3 -B tests/tools/waste.py
