"""Ranks that have no process: inside a real rank of a dry run, PyTorch finds the job whole. entry.py is where it begins."""
