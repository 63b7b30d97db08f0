"""The parts of a survey: the command of each, and how long it may take.

The order is that of importance: first whether the kernels are right, then what the device can do, then operators,
recurrent layers and whole training steps. On a machine of 16 cores the limits add up to nine minutes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from duoln.errors import UsageError
from duoln.system import processes

_COMPILING_SECONDS = 400
"""Of one core, for all settings of the CUDA kernels: NVRTC needs 200 s for 583 of them on an AMD EPYC; the rest is for
processes that start, and a reserve."""
REPEATS = 50


class Part(NamedTuple):
    """One part of the survey. Its command writes the JSON file `NAME.json`, if it can after every figure."""

    name: str
    what: str
    command: list[str]
    seconds: int
    """The time limit."""
    environment: Mapping[str, str] = {}


LIMIT = "the seconds that it gets"
"""In a command, the number of them."""
_OFFLINE = {"DUOLN_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"}
_TIMED = {**_OFFLINE, "DUOLN_PROVE": "0"}
"""No part that times proves rules meanwhile, or times another rule because one case was off: the selftest says that."""
_PLAIN_REDUCTIONS = {**_OFFLINE, "CUPY_ACCELERATORS": ""}
"""CuPy compiles a reduction by CUB for 2 s and a plain one for 0.1 s, of each operation and dtype."""


def parts(backend: str, out: Path, quick: bool, cores: int) -> list[Part]:
    """All parts, the most important first.

    Args:
        backend: "cupy", "mlx" or "numpy".
        out: the folder of the JSON files.
        quick: tiny sizes.
        cores: of the machine; with fewer of them the kernels take longer to compile.
    """
    def part(name: str, what: str, seconds: int, module: str, *words: str,
             environment: Mapping[str, str] = _TIMED) -> Part:
        command = processes.command(module, "--backend", backend, "--json", str(out / f"{name}.json"), *words)
        return Part(name, what, [*command, *(["--quick"] if quick else [])], seconds, environment)

    def tried(name: str, what: str, seconds: int, environment: Mapping[str, str] = _PLAIN_REDUCTIONS) -> Part:
        return part(name, what, seconds, "duoln.testing.correctness", "--what", name, "--seconds", LIMIT,
                    environment=environment)

    survey = "duoln.bench.survey"
    torch = ["--peer", "torch"] if importlib.util.find_spec("torch") else []
    compiling = 20 + _COMPILING_SECONDS // max(cores, 1) if backend == "cupy" else 0
    correct = [
        tried("ladder", "the simplest things first: launches, sums, products, graphs, clusters", 25),
        tried("selftest", "every kernel compiled, and compared with float64", compiling + 65),
        tried("graphs", "a step of every task: its graph against operator by operator", 30, _OFFLINE),
        tried("repeats", f"walks and one case of each rule, {REPEATS} times, equal to the bit", 30)]
    device = [part("device", "memory, launches, exchanges between blocks, tensor cores", 20, f"{survey}.device")]
    times = [
        part("ops", "norms and cross-entropy beside a copy", 70, f"{survey}.operators", *torch,
             environment={**_TIMED, **_PLAIN_REDUCTIONS}),
        part("rnn", "LN-LSTM and LN-GRU beside PyTorch's loop, and its plain layers", 75, f"{survey}.cells", *torch),
        part("steps", "whole training steps, eager and compiled", 70, f"{survey}.steps", *torch)]
    sanitizer = [part("sanitizer", "a small case of each kernel under compute-sanitizer", 50, f"{survey}.sanitizer",
                      "--seconds", LIMIT)]
    return [*correct, *device, *times, *sanitizer] if backend == "cupy" else [*correct, *times]


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
