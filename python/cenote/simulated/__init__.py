"""Checks that the simulated GPU has the functions that the installed torch needs."""
