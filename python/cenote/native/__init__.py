"""What is compiled: libcenote by its functions, its reader of traces, the adapter to PyTorch."""
