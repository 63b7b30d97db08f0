"""The settings that change the last bits of a result: OpenBLAS's kernels and its number of threads."""

from __future__ import annotations

from duoln.backends.protocol import Backend
from duoln.errors import CheckpointError
from duoln.runs.checkpoint import Checkpoint

_VARIABLES = {"blas_threads": "OPENBLAS_NUM_THREADS", "blas_core": "OPENBLAS_CORETYPE"}
"""The keys of a backend's `info()`, and the environment variables that set them before duoln starts."""


def arithmetic_of(backend: Backend) -> dict[str, str]:
    """The settings to note in a checkpoint, so that a resumed run notices a difference."""
    facts = backend.info()
    return {"backend": backend.name, **{key: facts[key] for key in _VARIABLES if key in facts}}


def check_arithmetic(saved: Checkpoint, backend: Backend) -> None:
    """Refuse to resume with another number of BLAS threads or other BLAS kernels than those of the checkpoint.

    Another backend is allowed, because its user chose it; its results are close but not equal to the bit. Checkpoints
    of earlier versions do not have these notes.

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
