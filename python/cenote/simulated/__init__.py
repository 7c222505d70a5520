"""What the simulated GPU has of what the installed torch asks for."""
