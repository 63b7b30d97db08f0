"""PyTorch's threads beside those of duoln's kernels.

After an operation on several threads PyTorch's threads spin for some milliseconds, in case that another one follows. A
kernel of duoln that begins meanwhile gets too few cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from duoln import runtime

_SOFT = 1
"""omp_pause_soft of OpenMP 5.0, section 3.2.44: the threads may be started again."""


def pause_threads() -> None:
    """End the threads that PyTorch keeps for this one; its next operation starts them again. It costs nothing if there
    are none.
    """
    pause = _pause()
    if pause is not None:
        pause(_SOFT)


@lru_cache
def _pause() -> Callable[[int], int] | None:
    """The function of PyTorch's OpenMP library; None where it has none, or if duoln uses one thread."""
    if runtime.threads() == 1:
        return None
    for file in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*")):
        if hasattr(library := ctypes.CDLL(str(file)), "omp_pause_resource_all"):
            pause: Callable[[int], int] = library.omp_pause_resource_all
            return pause
    return None
