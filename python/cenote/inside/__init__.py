"""What runs in the program's process: cenote as PyTorch's allocator, reports, and the summary when the program ends."""
