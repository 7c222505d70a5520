"""What every part of the package may use and what uses none of them: files, sizes, a bar of progress, places in source, a Mistake."""
