"""What a measurement is: samples, what was measured, and everything that the number depends on."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

import duoln
from duoln.backends import openblas

SCHEMA = "duoln-bench/1"
FLAGS = ("MLX_ENABLE_TF32", "CUPY_TF32", "OPENBLAS_CORETYPE", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
         "DUOLN_THREADS", "DUOLN_RULES", "DUOLN_MALLOPT", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


class Work(NamedTuple):
    """What one side does."""

    run: Callable[[int], Any]
    """One timed run, given its number."""
    checks: list[float]
    """Figures that every side must agree on."""
    facts: dict[str, Any]
    first: int = 0
    """The number of the first timed run."""


def machine() -> dict[str, Any]:
    """What this process runs on and with."""
    return {
        "schema": SCHEMA, "duoln": duoln.__version__, "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(), "numpy": np.__version__, "platform": platform.platform(),
        "cores": os.cpu_count(), "blas_core": openblas.loaded_core(),
        "flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
    }


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    ordered = sorted(samples)
    return {"median": statistics.median(ordered), "p10": ordered[len(ordered) // 10],
            "p90": ordered[(9 * len(ordered)) // 10]}


def ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The median over rounds of our time over theirs in the same round."""
    return statistics.median(a / b for a, b in zip(ours["samples"], theirs["samples"], strict=True))
