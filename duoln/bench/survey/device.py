"""What the device can do at best, as a part of the survey."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.bench import machine
from duoln.bench.survey.program import options, save


def allocate_each_array() -> None:
    """Give each array an allocation of its own, so that memcheck sees an access beyond its end; CUDA alone."""
    from duoln.kernels.device_limits import cuda

    cuda.allocate_each_array()


def give_back(backend: Backend) -> None:
    """Give free memory of the device back to other processes; CUDA alone keeps it."""
    if backend.name == "cupy":
        from duoln.kernels.device_limits import cuda

        cuda.give_back()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the file after every figure."""
    args = options("duoln.bench.survey.device", __doc__.splitlines()[0]).parse_args(argv)
    backend = runtime.backend(args.backend)
    from duoln.kernels.device_limits import cuda

    content: dict[str, Any] = {"backend": machine.backend_facts(backend), "figures": {}}
    for name, value in cuda.figures(*((1, 1, 1) if args.quick else ())):
        content["figures"][name] = value
        save(content, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
