#!/bin/bash
# Each check of tools/check fires on a tree that breaks its rule, and is silent on one that keeps it.
exec python3 -B tests/check/checks.py
