"""`cenote replay`: recorded allocations under several allocators."""
