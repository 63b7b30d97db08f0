"""The parts of a survey that measure; `duoln.testing.prover` has those that compare values.

    python -m duoln.bench.survey_parts ops --backend cupy --json ops.json

A part writes its record after every figure. What cannot run is told there with its reason, and the rest is measured.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.bench import machine, operators, recurrent
from duoln.bench.operators import Plan
from duoln.bench.records import make_case, make_record, of_row
from duoln.bench.subjects import Subject, every_subject
from duoln.bench.survey import NOT_THERE, options, save
from duoln.bench.turns import Entry, Side, take_turns
from duoln.errors import DuolnError
from duoln.kernels import source
from duoln.kernels.recurrent.cases import Shape
from duoln.system import processes

# The device -------------------------------------------------------------------------------------------

def device(args: argparse.Namespace, backend: Backend) -> int:
    """The limits of the device itself."""
    from duoln.kernels.device_limits import cuda

    content: dict[str, Any] = {"backend": machine.backend_facts(backend), "figures": {}}
    for name, value in cuda.figures(*((1, 1, 1) if args.quick else ())):
        content["figures"][name] = value
        save(content, args.json)
    return 0


# Operators --------------------------------------------------------------------------------------------

def plans_of(backend_name: str, quick: bool) -> list[Plan]:
    """All plans: on an NVIDIA GPU each operator's shapes of a device, the first ones first, those to compile last."""
    chosen = [(k, subject, shape) for subject in every_subject().values() if subject.op is not None
              for k, shape in enumerate(_shapes(subject, backend_name, quick))]
    chosen.sort(key=lambda one: (is_compiled(one[1], one[2]), one[0]))
    return [plan for _, subject, shape in chosen
            for plan in operators.make_plans([subject], [shape], False, ["cold"], False)]


def _shapes(subject: Subject, backend_name: str, quick: bool) -> Sequence[tuple[int, int]]:
    if quick:
        return [(64, 128)]
    return (subject.timed.on_device or subject.timed.shapes) if backend_name == "cupy" else subject.timed.small[:1]


def is_compiled(subject: Subject, shape: tuple[int, int]) -> bool:
    """True if `torch.compile` compiles it, too, which takes some seconds: for the last of the shapes of a device."""
    shapes = subject.timed.on_device
    return len(shapes) > 1 and shape == shapes[-1]


def ops(args: argparse.Namespace, backend: Backend) -> int:
    """Norms and cross-entropy beside a copy and beside PyTorch, `torch.compile` and Liger."""
    rounds = 2 if args.quick else 5
    copied = operators.measure_copy(backend, rounds)
    timed = [copied]
    missing: dict[str, str] = {}
    for plan in plans_of(backend.name, args.quick):
        print(plan.name, flush=True)
        lacking: dict[str, str] = {}
        try:
            made = operators.measure(plan, backend, peers_of(plan, args.peer), rounds, copied["gbps"], lacking)
            timed += made
            lacking |= {f"{case['side']} in a graph": case["no_event_seconds"] for case in made
                        if "no_event_seconds" in case}
        except Exception as error:  # of a kernel, or of CuPy where memory is out; the next plan may run
            lacking["duoln"] = f"{type(error).__name__}: {error}"
        missing |= {f"{plan.name}, {peer}": why for peer, why in lacking.items()}
        save({**make_record("ops", backend, None, copied["gbps"], timed), "missing": missing}, args.json)
    return 1 if any(what.endswith(", duoln") for what in missing) else 0


def peers_of(plan: Plan, asked: Sequence[str]) -> list[str]:
    """The peers of one plan, of those that are installed."""
    if "torch" not in asked:
        return []
    compiles = ["torch-compile"] if is_compiled(plan.subject, plan.shape) else []
    liger = ["liger"] if plan.subject.name == "layer_norm" and find_spec("liger_kernel") else []
    return ["torch", *liger, *compiles]


# Sides in processes of their own ----------------------------------------------------------------------

class Comparison(NamedTuple):
    """Our side and others, which may be missing: what a peer's compiler cannot do is a result."""

    name: str
    entries: Sequence[Entry]
    case: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The entries of a case in a record, from a row of `turns.take_turns`."""


_IMPORT_SECONDS = 60.0
"""For which all sides may load their libraries: the first time, from a disk that nobody has read, that takes long."""
_TURN_SECONDS = 20.0
_RUNS = 2


def time_comparisons(comparisons: Sequence[Comparison], rounds: int, patience: float,
                     ) -> Iterator[tuple[Comparison, list[dict[str, Any]], dict[str, str]]]:
    """Time comparisons in turns between their sides: each with its rows, and the reason for each missing side.

    As many sides start together as there are cores, because a process that loads PyTorch and a device takes seconds.
    They are timed only when all of them are ready or given up, so that nothing compiles beside a run that is timed.

    Args:
        comparisons: in order.
        rounds: turns of each side.
        patience: seconds for which a side may prepare itself.
    """
    waiting = list(comparisons)
    while waiting:
        group = [waiting.pop(0)]
        while waiting and sum(len(c.entries) for c in (*group, waiting[0])) <= (os.cpu_count() or 1):
            group.append(waiting.pop(0))
        print(f"starting {', '.join(comparison.name for comparison in group)}", flush=True)
        started = [[Side(entry) for entry in comparison.entries] for comparison in group]
        every = [side for sides in started for side in sides]
        missing: dict[Side, str] = {}
        try:
            for wait, seconds in ((Side.imported, _IMPORT_SECONDS), (Side.ready, patience)):
                until = time.monotonic() + seconds
                for side in (side for side in every if side not in missing):
                    try:
                        wait(side, until - time.monotonic())
                    except DuolnError as error:
                        missing[side] = str(error)
            for comparison, sides in zip(group, started, strict=True):
                print(f"timing {comparison.name}", flush=True)
                yield comparison, *_timed(comparison.name, sides, missing, rounds)
        finally:
            for side in every:
                side.close()


def _timed(name: str, sides: Sequence[Side], missing: Mapping[Side, str], rounds: int,
           ) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows and missing sides. Where a side ends while it is timed, the others begin again without it."""
    reasons = {side.name: missing[side] for side in sides if side in missing}
    able = [side for side in sides if side not in missing]
    if sides[0] in missing:
        return [], reasons
    try:
        return take_turns(able, rounds, _RUNS, _TURN_SECONDS), reasons
    except DuolnError as error:
        ended = {side: str(error) for side in able if side.ended}
        if ended:
            return _timed(name, sides, {**missing, **ended}, rounds)
        return [], {**reasons, name: str(error)}


def _measure(args: argparse.Namespace, kind: str, backend: Backend, comparisons: Sequence[Comparison], patience: float,
             ) -> int:
    """Time all comparisons and write the record after each; the exit code is 0 if our side of each of them ran."""
    copy_gbps = operators.measure_copy(backend)["gbps"]
    made: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    good = True
    for comparison, rows, lacking in time_comparisons(comparisons, 2 if args.quick else 5, patience):
        made += [make_case(copy_gbps=copy_gbps, runs=_RUNS, **comparison.case(row)) for row in rows]
        missing |= {f"{comparison.name}, {side}": why for side, why in lacking.items()}
        good = good and bool(rows)
        save({**make_record(kind, backend, None, copy_gbps, made), "missing": missing}, args.json)
    return 0 if good else 1


# Recurrent layers -------------------------------------------------------------------------------------

LAYERS = (("lstm", Shape(100, 64, 256, 256), False), ("lstm", Shape(100, 64, 256, 256), True),
          ("lstm", Shape(100, 8, 400, 400), False), ("lstm", Shape(100, 8, 400, 400), True),
          ("lstm", Shape(30, 64, 620, 1024), True), ("gru", Shape(100, 64, 256, 256), True),
          ("gru", Shape(30, 64, 620, 1024), True))
"""Cell, shape, and whether the gradient is computed too."""
COMPILED_LAYER = ("lstm", Shape(100, 8, 400, 400), True)
"""The one whose loop is timed by `torch.compile` too: that takes half a minute to compile."""
_LAYER_SIDES = ("duoln", "our products alone", "torch loop", "torch.nn.LSTM, no norm", "torch.nn.GRU, no norm")
_QUICK_LAYERS = (("lstm", Shape(3, 4, 5, 6), True), ("gru", Shape(3, 4, 5, 6), False))


def rnn(args: argparse.Namespace, backend: Backend) -> int:
    """LN-LSTM and LN-GRU beside PyTorch's loop, eager and compiled, and its plain layers."""
    wanted = [of_layer(*layer, args.backend, args.peer) for layer in (_QUICK_LAYERS if args.quick else LAYERS)]
    return _measure(args, "rnn", backend, wanted, 40.0)


def of_layer(cell: str, shape: Shape, backward: bool, backend: str, peers: Sequence[str]) -> Comparison:
    """The sides of one layer."""
    entries = [entry for entry in recurrent.entries(cell, "layer", shape, backward, backend, list(peers))
               if entry.name in _LAYER_SIDES]
    asked = entries[0].asked
    if backend == "cupy":  # where the first side walks in one launch
        entries.append(Entry("duoln, by steps", {**asked, "rule": "cuda steps"}))
    if "torch" in peers and (cell, shape, backward) == COMPILED_LAYER:
        entries.append(Entry("torch loop, compiled", {**asked, "peer": "torch", "form": "compiled"}))
    return Comparison(f"{cell} layer {'x'.join(map(str, shape))} {operators.passes(backward)}", entries,
                      lambda row: recurrent.case_of(cell, "layer", shape, backward, row))


# Training steps ---------------------------------------------------------------------------------------

class Step(NamedTuple):
    """A training step of a task."""

    task: str
    batch: int
    preset: str = "paper"
    settings: Mapping[str, Any] = {"source": "made"}


STEPS = (Step("mnist", 128, settings={"source": "made", "rows": 2560}), Step("attentive_reader", 64), Step("draw", 128))
"""Dense layers; an LSTM over a text, in both directions; 64 time steps of two cells with an attention around them."""
COMPILED_STEP = STEPS[0]
"""The one that `torch.compile` compiles, too. It needs minutes for the unrolled time steps of the others."""
_QUICK_STEPS = (Step("mnist", 20, "smoke"),)


def steps(args: argparse.Namespace, backend: Backend) -> int:
    """Whole training steps, eager and compiled, beside PyTorch's; a compiled step of CUDA is one graph."""
    wanted = [of_step(step, args.backend, [] if args.quick else args.peer)
              for step in (_QUICK_STEPS if args.quick else STEPS)]
    return _measure(args, "train", backend, wanted, 60.0)


def of_step(step: Step, backend: str, peers: Sequence[str]) -> Comparison:
    """The sides of one step."""
    asked: dict[str, Any] = {
        "kind": "step", "task": step.task, "variant": "ln", "preset": step.preset, "plugins": [step.task],
        "settings": {"batch_size": step.batch, **step.settings}, "backend": backend, "peer": None}
    entries = [Entry(f"duoln, {form}", {**asked, "form": form}) for form in ("eager", "compiled")]
    if "torch" in peers:
        entries.append(Entry("torch", {**asked, "peer": "torch", "form": "eager"}))
        if step == COMPILED_STEP:
            entries.append(Entry("torch, compiled", {**asked, "peer": "torch", "form": "compiled"}))
    return Comparison(f"{step.task} ln", entries, lambda row: {
        "op": f"{step.task} ln", "passes": "step", "shape": [step.batch],
        "settings": {"preset": step.preset, **step.settings}, **of_row(row)})


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


PARTS = {"device": device, "ops": ops, "rnn": rnn, "steps": steps, "sanitizer": sanitizer}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part."""
    parser = options("duoln.bench.survey_parts", __doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--peer", action="append", default=[], choices=("torch",))
    parser.add_argument("--seconds", type=float, default=600.0, metavar="N",
                        help="for the tools of the sanitizer")
    args = parser.parse_args(argv)
    return PARTS[args.part](args, runtime.backend(args.backend))


if __name__ == "__main__":
    sys.exit(main())
