"""The one door to PyTorch: its private names (seams), and what cenote replaces of it (patches)."""
