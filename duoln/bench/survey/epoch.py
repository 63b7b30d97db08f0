"""One epoch of MNIST, as a part of the survey: whether a whole training works, and where its loss ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from duoln import runtime
from duoln.bench.epoch import measure
from duoln.bench.survey.program import options, save


def main(argv: Sequence[str] | None = None) -> int:
    """Train and write the file."""
    args = options("duoln.bench.survey.epoch", "One epoch of MNIST, on digits made on the spot.").parse_args(argv)
    preset, settings = ("smoke", []) if args.quick else (None, ["source=made"])
    save(measure("mnist", "ln", preset, settings, runtime.backend(args.backend)), args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
