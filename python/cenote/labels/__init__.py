"""What memory is for: steps, tags, phases and kinds, told to libcenote while the program runs."""
