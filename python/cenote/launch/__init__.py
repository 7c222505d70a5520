"""What happens before a program runs: the launcher reads the command line, makes the program's environment, and becomes the program."""
