"""The exception that each command prints in one line and ends with."""


class Mistake(Exception):
    """The user asked for something that cannot be done; the text says why, in one line."""
