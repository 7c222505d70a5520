"""What Python 3.15 and newer call as they start (PEP 829: cenote.start names it, and they leave out the line of cenote.pth then).

A module of its own beside the package: to import the package takes milliseconds, and every Python of the installation starts with this.
"""
import os


def add() -> None:
    if os.environ.get("CENOTE") or os.environ.get("CENOTE_SUMMARY"):
        from cenote import hook
        hook.add()
