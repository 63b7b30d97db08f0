"""Everything that one device can show, an NVIDIA GPU or a Mac, in one command of less than eight minutes.

    duoln bench survey --out DIR

measures CuPy on an NVIDIA GPU. With `--backend mlx` it measures MLX on a Mac. It runs from a checkout that is not
installed; it needs the array library, NumPy, pluggy and rich, and compares with PyTorch where that is installed. Each
part is a process of its own with a time limit, so the other parts run even if one fails, hangs or makes the device
unusable. DIR gets a JSON file for each part, and `summary.md`, which is written again after every part.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.system import processes

SHAPES = ("100,64,256,256", "100,8,400,400", "30,64,620,1024")
REPEATS = 200
SUMMARY = "summary.md"


class Part(NamedTuple):
    """One part of the survey: its command and its time limit."""

    name: str
    what: str
    command: list[str]
    seconds: int
    """The time limit."""
    writes: bool = False
    """Whether the command writes the JSON file itself; otherwise its stdout is the JSON text."""


class Outcome(NamedTuple):
    """How a part ended."""

    part: Part
    seconds: float
    problem: str
    """Why the part failed; empty if it did not."""


def parts(backend: str, out: Path, quick: bool) -> list[Part]:
    """All parts, the most important first."""
    peer = ["--peer", "torch"] if importlib.util.find_spec("torch") else []
    duoln = processes.command("duoln")
    shapes = ("3,4,5,6",) if quick else SHAPES
    rnn = [flag for shape in shapes for flag in ("--shape", shape)]
    ops = ["--shape", "64,128"] if quick else ["--small"]
    turns = ["--rounds", "2"] if quick else ["--rounds", "7"]
    repeats = 3 if quick else REPEATS
    chosen = [
        Part("selftest", "every kernel against float64",
             [*duoln, "selftest", "--backend", backend, "--json", *(["--one-of-each"] if quick else [])], 150),
        Part("repeats", f"one case of each kind, {repeats} times, equal to the bit",
             [*duoln, "selftest", "--backend", backend, "--json", "--one-of-each", "--repeats",
              str(repeats)], 60),
        Part("ops", "layer norm and cross-entropy beside a copy",
             [*duoln, "bench", "ops", "--backend", backend, *ops, *turns, *peer, "--json", str(out / "ops.json")], 120,
             writes=True),
        Part("rnn", "LN-LSTM and LN-GRU beside PyTorch's loop, and its plain layers",
             [*duoln, "bench", "rnn", "--backend", backend, "--cell", "lstm", "--cell", "gru", *rnn, *turns,
              "--runs", "2", *peer, "--json", str(out / "rnn.json")], 150, writes=True),
        Part("mnist", "one epoch of MNIST, digits made on the spot",
             [*processes.command("duoln.bench.epoch"), "--task", "mnist", "--variant", "ln", "--backend", backend,
              *(["--preset", "smoke"] if quick else ["--set", "source=made"])], 90)]
    if backend == "mlx":
        chosen.append(Part("compiling", "whole training steps, compiled against eager",
                         [*processes.command("duoln.bench.compiling"), "--backend", backend,
                          *(["--steps", "2"] if quick else [])], 120))
    if backend == "cupy":
        chosen.insert(2, Part("device", "memory, launches, exchanges between blocks, tensor cores",
                            processes.command("duoln.kernels.device_limits.cuda"), 60))
    return chosen


def run_part(part: Part, out: Path) -> Outcome:
    """Run one part. Its JSON file is in `out` afterwards, if there is one."""
    started = time.monotonic()
    try:
        done = subprocess.run(part.command, capture_output=True, text=True, check=False, timeout=part.seconds,
                              env=processes.environment())
    except subprocess.TimeoutExpired:
        return Outcome(part, time.monotonic() - started, f"stopped after {part.seconds} s")
    seconds = time.monotonic() - started
    file = out / f"{part.name}.json"
    if not part.writes and done.stdout.strip():
        file.write_text(done.stdout, encoding="utf-8")
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-12:])
        return Outcome(part, seconds, f"exit code {done.returncode}\n{last}".strip())
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Outcome(part, seconds, f"no JSON: {error}")
    return Outcome(part, seconds, "")


def summary(outcomes: Sequence[Outcome], waiting: Sequence[Part], out: Path) -> str:
    """The results so far, as Markdown."""
    lines = ["# Survey of one device", "", "| part | what | seconds | |", "| --- | --- | --- | --- |"]
    for o in outcomes:
        lines.append(f"| {o.part.name} | {o.part.what} | {o.seconds:.0f} | {'FAILED' if o.problem else 'done'} |")
    lines += [f"| {p.name} | {p.what} | | not yet run |" for p in waiting]
    for o in outcomes:
        if o.problem:
            lines += ["", f"## {o.part.name} failed", "", "```", o.problem, "```"]
        file = out / f"{o.part.name}.json"
        if file.exists():
            lines += ["", f"## {o.part.name}", "", *_figures(_load(file))]
    return "\n".join(lines) + "\n"


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _figures(content: dict[str, Any]) -> list[str]:
    if "rules" in content:
        lines = [f"* {r['op']}, {r['rule']}: {r['cases']} cases, error {r['error']:.2g} of what is allowed, "
                 f"{'repeats' if r['repeats'] else 'DOES NOT REPEAT'}, {len(r['failures'])} failed"
                 for r in content["rules"]]
        return lines + [f"* failed: {line}" for r in content["rules"] for line in r["failures"]]
    if "cases" in content:
        return [_case(c) for c in content["cases"]]
    return [f"* {key}: {_plain(value)}" for key, value in content.items()]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(entry)}" for key, entry in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _case(case: dict[str, Any]) -> str:
    share = case.get("fraction_of_copy")
    return (f"* {case['op']} {case['pass']} {case['shape']} {case['cache']} {case['side']}: "
            f"{case['median'] * 1e6:.1f} us{'' if share is None else f', {share:.0%} of a copy'}")


def survey(backend: str, out: Path, quick: bool, say: Callable[[str], None]) -> bool:
    """Run all parts and write `out`; whether none failed.

    Args:
        backend: "cupy" for an NVIDIA GPU, "mlx" for a Mac, "numpy" for a CPU.
        out: a folder; it is made if it is not there.
        quick: tiny sizes: whether it works, not how fast.
        say: takes lines of progress.
    """
    out.mkdir(parents=True, exist_ok=True)
    waiting: list[Part] = parts(backend, out, quick)
    outcomes: list[Outcome] = []
    while waiting:
        say(f"{waiting[0].name}: {waiting[0].what}")
        outcomes.append(run_part(waiting.pop(0), out))
        say(f"  {'FAILED' if outcomes[-1].problem else 'done'} in {outcomes[-1].seconds:.0f} s")
        (out / SUMMARY).write_text(summary(outcomes, waiting, out), encoding="utf-8")
    return not any(outcome.problem for outcome in outcomes)
