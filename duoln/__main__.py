"""`python -m duoln` is the `duoln` command."""

import sys

from duoln.cli import main

if __name__ == "__main__":
    sys.exit(main())
