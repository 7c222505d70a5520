"""Checks what the simulated GPU offers: the functions that the installed torch needs, and the quirks that a user names."""
