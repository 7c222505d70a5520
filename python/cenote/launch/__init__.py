"""Before a program runs: the command line, the environment that the program gets, and how the launcher becomes the program."""
