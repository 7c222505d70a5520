"""`python -m cenote`."""
import sys

from cenote.command import main

sys.exit(main())
