"""The parts of a survey that measure; `duoln.testing.prover` has those that compare values.

    python -m duoln.bench.survey_parts --what ops --backend cupy --json ops.json

A part times rows of the table and writes its record after each. What cannot run is told there with its reason.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.bench import groups
from duoln.bench.running import Bench, Plan
from duoln.bench.survey import NOT_THERE, options, save
from duoln.bench.turns import Kept
from duoln.kernels import source
from duoln.system import processes

_PATIENCE, _TURN_SECONDS = 60.0, 20.0
"""Seconds for which a side may load its libraries, which takes long from a disk that nobody has read, or prepare
itself; and those of its runs of a turn."""
_RUNS = 1

# The rows ---------------------------------------------------------------------------------------------

_MIDDLE, _HANDWRITING, _SENTENCES = (100, 64, 256, 256), (100, 8, 400, 400), (30, 64, 620, 1024)
_LAYERS = (("lstm", _MIDDLE, False), ("lstm", _MIDDLE, True), ("lstm", _HANDWRITING, False),
           ("lstm", _HANDWRITING, True), ("lstm", _SENTENCES, True), ("gru", _MIDDLE, True), ("gru", _SENTENCES, True))
"""Cell, shape, and whether the gradient is computed too."""
_COMPILED_LAYER = ("lstm", _HANDWRITING, True)
"""The one whose loop is timed by `torch.compile` too: that takes half a minute to compile."""
_STEPS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("mnist", 128, {"rows": 2560}), ("attentive_reader", 64, {}), ("draw", 128, {}))
"""Dense layers; an LSTM over a text, in both directions; 64 time steps of two cells with an attention around them.
`torch.compile` needs minutes for the unrolled time steps of the last two."""


def plans(what: str, backend: str, quick: bool, torch: bool) -> list[Plan]:
    """The rows of a part, the most important first."""
    if what == "device":
        from duoln.bench.device import LIMITS

        return [Plan("device", {"name": name}) for name in LIMITS]
    if what == "ops":
        return _ops(backend, quick, torch)
    made = []
    if what == "rnn":
        for cell, shape, backward in (("lstm", (3, 4, 5, 6), True), ("gru", (3, 4, 5, 6), False)) if quick else _LAYERS:
            peers = ["products", *(["steps"] if backend == "cupy" else []), *(["torch"] if torch else [])]
            peers += ["torch-compile"] if torch and (cell, shape, backward) == _COMPILED_LAYER else []
            made.append(Plan("rnn", {"cell": cell, "norm": "layer", "shape": shape, "backward": backward}, peers))
        return made
    for task, batch, more in (("mnist", 20, {}),) if quick else _STEPS:
        settings = {"batch_size": batch, "source": "made", **more}
        peers = ["eager", *(["torch"] if torch and not quick else [])]
        peers += ["torch-compile"] if torch and not quick and task == "mnist" else []
        made.append(Plan("train", {"task": task, "variant": "ln", "preset": "smoke" if quick else "paper",
                                   "settings": settings, "plugins": [task]}, peers))
    return made


def _ops(backend: str, quick: bool, torch: bool) -> list[Plan]:
    """On an NVIDIA GPU each operator's shapes of a device, the first ones first, those to compile last."""
    chosen = []
    for name, timed in groups.operators().items():
        shapes = (timed.on_device or timed.shapes) if backend == "cupy" else timed.small[:1]
        for k, shape in enumerate([(64, 128)] if quick else shapes):
            compiles = len(timed.on_device) > 1 and shape == timed.on_device[-1]
            liger = ["liger"] if name == "layer_norm" and find_spec("liger_kernel") else []
            peers = ["torch", *liger, *(["torch-compile"] if compiles else [])] if torch else []
            chosen.append((compiles, k, name, shape, peers))
    chosen.sort(key=lambda one: one[:2])
    return [Plan("ops", {"op": name, "shape": shape, "backward": backward}, peers)
            for _, _, name, shape, peers in chosen for backward in (False, True)]


def times(args: argparse.Namespace, backend: Backend) -> int:
    """Time the rows; the exit code is 0 if our side of each of them ran."""
    kind = {"steps": "train"}.get(args.what, args.what)
    wanted = plans(args.what, backend.name, args.quick, find_spec("torch") is not None)
    with Kept(_PATIENCE, _TURN_SECONDS) as sides:
        bench = Bench(kind, backend, lambda line: print(line, flush=True), None, sides)
        bench.time(wanted, 2 if args.quick else 5, _RUNS, lambda record: save(record, args.json))
    return 0 if bench.error is None else 1


# compute-sanitizer ------------------------------------------------------------------------------------

_TOOLS = ("memcheck", "racecheck", "synccheck")
_PROGRAM = "compute-sanitizer"
_FOUND = 86
"""The exit code by which the program says that it found something."""
_RESERVE_SECONDS = 4
"""Kept of the part's seconds to read the output of the tools."""
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")


def sanitizer(args: argparse.Namespace, backend: Backend) -> int:
    """A small case of each of our kernels under NVIDIA's compute-sanitizer, if it is installed.

    The tools run side by side, because only whether they find something matters. CuPy's kernels are not checked: each
    is a module of its own, and rewriting a module takes long.
    """
    until = time.monotonic() + args.seconds - _RESERVE_SECONDS
    program = find_program(os.environ)
    if program is None:
        save({NOT_THERE: f"{_PROGRAM} is neither on the PATH nor in CUDA_HOME"}, args.json)
        return 0
    logs = args.json.parent / "logs"
    logs.mkdir(exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    for tool in _TOOLS:
        with (logs / f"sanitizer-{tool}.log").open("wb") as output:
            running[tool] = subprocess.Popen(
                sanitizer_command(program, tool, args.backend, logs / f"sanitizer-{tool}.json"),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=processes.environment({"CUPY_ACCELERATORS": ""}))  # a reduction by CUB takes seconds to compile
    content: dict[str, Any] = {"program": program, "tools": {}}
    for tool, process in running.items():
        try:
            code: int | None = process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        log = logs / f"sanitizer-{tool}.log"
        content["tools"][tool] = verdict(code, log.read_text(encoding="utf-8", errors="replace"))
        save(content, args.json)
    return 1 if any(result["clean"] is False for result in content["tools"].values()) else 0


def find_program(variables: Mapping[str, str]) -> str | None:
    """The path of compute-sanitizer: on the PATH, or in the toolkit that CUDA_HOME or CUDA_PATH names."""
    homes = [Path(variables[name]) for name in ("CUDA_HOME", "CUDA_PATH") if variables.get(name)]
    places = [variables.get("PATH", ""), *(str(home / part) for home in homes for part in ("bin", _PROGRAM))]
    return shutil.which(_PROGRAM, path=os.pathsep.join(places))


def checked_kernels(tool: str) -> list[str]:
    """The names of our kernels that a tool checks: all for memory; for races and barriers, of the sources with shared
    memory.
    """
    files = [str(file) for folder in (source.FOLDER, source.FOLDER.parent / "plugins")
             for file in sorted(folder.rglob("*.cu")) if file.parent.name != "device_limits"]
    return [name for file in files if tool == "memcheck" or "__shared__" in source.with_headers(file)
            for name in source.entries_in(file)]


def sanitizer_command(program: str, tool: str, backend: str, record: Path) -> list[str]:
    """The command of one tool. Errors of CUDA's functions are not counted: libraries make harmless ones."""
    chosen = [word for name in checked_kernels(tool) for word in ("--kernel-regex", f"kns={name}")]  # a part of a name
    return [program, "--tool", tool, "--error-exitcode", str(_FOUND), "--report-api-errors", "no", *chosen,
            *processes.command("duoln.testing.prover", "--backend", backend, "--json", str(record), "--small",
                               *(["--no-pool"] if tool == "memcheck" else []))]


def verdict(code: int | None, output: str) -> dict[str, Any]:
    """The meaning of the exit code and the output of a tool.

    Args:
        code: None if the tool was stopped at its limit.
        output: stdout and stderr.
    """
    summaries = _SUMMARY.findall(output)
    if code == 0 and summaries:
        return {"result": summaries[-1], "clean": True}
    if code is None:
        result = "stopped at the part's limit"
    elif code == _FOUND:
        result = summaries[-1] if summaries else "errors"
    elif summaries:
        result = f"{summaries[-1]}, but the cases ended with exit code {code}"
    else:
        result = f"did not run: exit code {code}"
    return {"result": result, "clean": False if code == _FOUND else None, "output": output.strip().splitlines()[-20:]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part."""
    parser = options("duoln.bench.survey_parts", __doc__.splitlines()[0])
    parser.add_argument("--what", required=True, choices=("device", "ops", "rnn", "steps", "sanitizer"))
    args = parser.parse_args(argv)
    return (sanitizer if args.what == "sanitizer" else times)(args, runtime.backend(args.backend))


if __name__ == "__main__":
    sys.exit(main())
