"""No file of before changes in a dry run: see overlay.py, landlock.py and choice.py."""
