"""Finds the variables that hold memory, and the causes of its growth."""
