"""What every command says in one line, and ends with."""


class Mistake(Exception):
    """What was asked cannot be done; the text says why, in one line."""
