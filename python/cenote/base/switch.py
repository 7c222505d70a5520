"""Reads a variable of the environment that switches something on or off.

Imports nothing: every Python that a program starts with CENOTE=on imports this module."""

ON = ("on", "1", "yes", "true")
OFF = ("", "off", "0", "no", "false")
FALLBACK = "fallback"  # of CENOTE: on, also where there is no adapter for this PyTorch, and less works


def is_on(text: str) -> bool:
    """Raises ValueError for any other word."""
    word = text.strip().lower()
    if word in ON or word in OFF:
        return word in ON
    raise ValueError(f"{text[:40]!r} is neither on nor off")


def accepts_fallback(text: str) -> bool:
    return text.strip().lower() == FALLBACK
