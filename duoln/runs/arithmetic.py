"""What decides the last bits of a result besides the program: OpenBLAS's kernels and its number of threads."""

from __future__ import annotations

from duoln.backends.protocol import Backend
from duoln.errors import CheckpointError
from duoln.runs.checkpoint import Checkpoint

_VARIABLES = {"blas_threads": "OPENBLAS_NUM_THREADS", "blas_core": "OPENBLAS_CORETYPE"}
"""What of a backend's `info()` it is, and what sets it before duoln starts."""


def arithmetic_of(backend: Backend) -> dict[str, str]:
    """What to note in a checkpoint, so that a run does not go on with other bits unnoticed."""
    facts = backend.info()
    return {"backend": backend.name, **{key: facts[key] for key in _VARIABLES if key in facts}}


def check_arithmetic(saved: Checkpoint, backend: Backend) -> None:
    """Refuse to go on with another number of BLAS threads or other BLAS kernels than a checkpoint was made with.

    Another backend is a choice of its user; its results are close and never the same to the bit. Checkpoints of earlier
    versions do not tell.

    Raises:
        CheckpointError: they differ; the message names both and what to set.
    """
    then, now = saved.notes.get("arithmetic", {}), arithmetic_of(backend)
    if then.get("backend") != now["backend"]:
        return
    odd = [key for key in _VARIABLES if key in then and key in now and then[key] != now[key]]
    if odd:
        told = " and ".join(f"{key} {then[key]}, found {now[key]}" for key in odd)
        remedy = " ".join(f"{_VARIABLES[key]}={then[key]}" for key in odd)
        raise CheckpointError(f"{saved.path}: expected {told}: the results would differ in their last bits. "
                              f"Set {remedy}, or take that into account with --resume anyway")
