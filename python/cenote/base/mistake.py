"""The exception that each command prints in one line and ends with; and what a text of a file may become on a terminal."""


class Mistake(Exception):
    """The user asked for something that cannot be done; the text says why, in one line."""


def visible(text: str) -> str:
    """A file's name or content may be another user's: its control characters must not move a terminal's cursor, or give its window a title."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
