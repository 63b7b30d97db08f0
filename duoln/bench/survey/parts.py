"""The parts of a survey: the command of each, and how long it may take.

The order is that of importance: first whether the kernels are right, then what the device can do, then operators,
recurrent layers and whole training steps. On a machine of 16 cores the limits add up to ten minutes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from duoln.errors import UsageError
from duoln.system import processes

_COMPILING_SECONDS = 400
"""Of one core, for all settings of the CUDA kernels: NVRTC needs 150 s for 491 of them on an AMD EPYC; the rest is for
processes that start, and a reserve."""
_REPEATS = 200


class Part(NamedTuple):
    """One part of the survey. Its command writes the JSON file `NAME.json`, if it can after every figure."""

    name: str
    what: str
    command: list[str]
    seconds: int
    """The time limit."""


def parts(backend: str, out: Path, quick: bool, cores: int) -> list[Part]:
    """All parts, the most important first.

    Args:
        backend: "cupy", "mlx" or "numpy".
        out: the folder of the JSON files.
        quick: tiny sizes.
        cores: of the machine; with fewer of them the kernels take longer to compile.
    """
    def part(name: str, what: str, seconds: int, module: str, *words: str) -> Part:
        command = processes.command(module, "--backend", backend, "--json", str(out / f"{name}.json"), *words)
        return Part(name, what, [*command, *(["--quick"] if quick else [])], seconds)

    survey, correctness = "duoln.bench.survey", "duoln.testing.correctness"
    torch = ["--peer", "torch"] if importlib.util.find_spec("torch") else []
    compiling = 20 + _COMPILING_SECONDS // max(cores, 1) if backend == "cupy" else 0
    chosen = [
        part("selftest", "every kernel compiled, and compared with float64", compiling + 75, correctness),
        part("repeats", f"one case of each kind, {_REPEATS} times, equal to the bit", 50, correctness,
             "--one-of-each", "--repeats", str(3 if quick else _REPEATS)),
        part("ops", "norms and cross-entropy beside a copy", 105, f"{survey}.operators", *torch),
        part("rnn", "LN-LSTM and LN-GRU beside PyTorch's loop, and its plain layers", 95, f"{survey}.cells", *torch),
        part("steps", "whole training steps, eager and compiled", 95, f"{survey}.steps", *torch),
        part("mnist", "one epoch of MNIST, digits made on the spot", 35, "duoln.bench.epoch",
             "--task", "mnist", "--variant", "ln", "--set", "source=made")]
    if backend == "cupy":
        chosen[1:1] = [part("sanitizer", "a small case of each kernel under compute-sanitizer", 60,
                            f"{survey}.sanitizer")]
        chosen[3:3] = [part("device", "memory, launches, exchanges between blocks, tensor cores", 40,
                            f"{survey}.device")]
    return chosen


def chosen_parts(everything: Sequence[Part], names: Sequence[str]) -> list[Part]:
    """The parts of these names in the survey's order; all of them if no name is given.

    Raises:
        UsageError: there is no part of a name.
    """
    known = [part.name for part in everything]
    for name in names:
        if name not in known:
            raise UsageError(f"[survey] expected a part of {', '.join(known)}; found {name!r}")
    return [part for part in everything if not names or part.name in names]
