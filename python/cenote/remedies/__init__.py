"""What may make a program need less memory: changes that `cenote dry-run --advise` makes from outside, one at a time. table.py lists them."""
