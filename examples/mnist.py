"""The paper's MNIST comparison: layer norm, batch norm and no norm on the same network.

    python -m duoln.examples.mnist                  about half a minute on two CPU cores
    python -m duoln.examples.mnist --paper          the paper's 60 epochs
    python -m duoln.examples.mnist --batch-size 4   its small-batch half
"""

from __future__ import annotations

import sys

from duoln.cli import run_task
from duoln.tasks.registry import find_task


def main() -> int:
    """Train the paper's three variants; the exit code."""
    return run_task(lambda: find_task("mnist"), sys.argv[1:], "python -m duoln.examples.mnist", __doc__,
                    variants=("none", "bn", "ln"))


if __name__ == "__main__":
    sys.exit(main())
