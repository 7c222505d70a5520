#!/bin/bash
# cenote-replay: its figures on traces small enough to count by hand, its arguments, its exit status on files that are broken.
exec python3 -B tests/tools/replay.py
