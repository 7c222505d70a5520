"""Labels for memory (steps, tags, phases and kinds), given to libcenote while the program runs."""
