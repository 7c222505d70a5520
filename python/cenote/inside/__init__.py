"""What runs in the program's process: cenote as PyTorch's allocator, reports, and what is said when the program ends."""
