"""Pictures of recorded memory: `cenote view`, and pictures for PyTorch's viewer."""
