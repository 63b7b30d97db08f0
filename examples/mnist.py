"""The paper's MNIST comparison: layer norm, batch norm and no norm on the same network.

    python -m duoln.examples.mnist                  about a minute on two CPU cores
    python -m duoln.examples.mnist --paper          the paper's 60 epochs
    python -m duoln.examples.mnist --batch-size 4   its small-batch half
"""

from __future__ import annotations

import argparse
import sys

from duoln import console
from duoln.cli import add_run_options, run_variants
from duoln.errors import DuolnError
from duoln.tasks.registry import find_task


def main() -> int:
    """Train the three variants; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m duoln.examples.mnist", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", action="store_true", help="the paper's protocol: 60 epochs")
    add_run_options(parser)
    args = parser.parse_args()
    try:
        task = find_task("mnist")
        return run_variants(task, list(task.variants), args, "paper" if args.paper else "small", {})
    except DuolnError as error:
        console.say(f"duoln: {error}", style="bold red")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
