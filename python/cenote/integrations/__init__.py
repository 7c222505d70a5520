"""cenote in other programs: pytest, notebooks, Trainers. Each module is imported by the program that it is for, and by no other module."""
