#!/bin/bash
# cenote-ask on the simulated GPU: its answers are those of sim/entries/answers.txt, and what cenote takes for granted is in docs/real-cards.md.
exec python3 -B tests/tools/ask.py
