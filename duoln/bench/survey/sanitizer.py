"""A small case of each of our kernels under NVIDIA's compute-sanitizer: memory, races, barriers.

The tools run side by side, because only whether they find something matters. CuPy's kernels are not checked: each is a
module of its own, and rewriting a module takes long. Where the program is not installed, the part says so and is no
failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duoln.bench.survey.folder import NOT_THERE
from duoln.bench.survey.program import options, save
from duoln.kernels import source
from duoln.system import processes

TOOLS = ("memcheck", "racecheck", "synccheck")
_PROGRAM = "compute-sanitizer"
_FOUND = 86
"""The exit code by which the program says that it found something."""
_RESERVE_SECONDS = 4
"""Of the part, to read what the tools wrote."""
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: .*")
_LAST_LINES = 20


def program(variables: Mapping[str, str]) -> str | None:
    """Where compute-sanitizer is: on the PATH, or in the toolkit that CUDA_HOME or CUDA_PATH names."""
    homes = [Path(variables[name]) for name in ("CUDA_HOME", "CUDA_PATH") if variables.get(name)]
    places = [variables.get("PATH", ""), *(str(home / part) for home in homes for part in ("bin", _PROGRAM))]
    return shutil.which(_PROGRAM, path=os.pathsep.join(places))


def kernels(tool: str) -> list[str]:
    """The names of our kernels that a tool checks: all for memory; for races and barriers, of the sources with shared
    memory.
    """
    files = [str(file) for folder in (source.FOLDER, source.FOLDER.parent / "plugins")
             for file in sorted(folder.rglob("*.cu")) if file.parent.name != "device_limits"]
    return [name for file in files if tool == "memcheck" or "__shared__" in source.text(file)
            for name in source.entries(file)]


def command(sanitizer: str, tool: str, backend: str, record: Path) -> list[str]:
    """The command of one tool. Errors of CUDA's functions are not counted: libraries make harmless ones."""
    chosen = [word for name in kernels(tool) for word in ("--kernel-regex", f"kns={name}")]  # a part of a name
    return [sanitizer, "--tool", tool, "--error-exitcode", str(_FOUND), "--report-api-errors", "no", *chosen,
            *processes.command("duoln.testing.correctness", "--backend", backend, "--json", str(record), "--small",
                               *(["--no-pool"] if tool == "memcheck" else []))]


def verdict(code: int | None, output: str) -> dict[str, Any]:
    """What the exit code and the output of a tool say.

    Args:
        code: None if the tool was stopped at its limit.
        output: stdout and stderr.
    """
    summaries = _SUMMARY.findall(output)
    last = output.strip().splitlines()[-_LAST_LINES:]
    if code is None:
        return {"result": "stopped at the part's limit", "clean": None, "output": last}
    if code == _FOUND:
        return {"result": summaries[-1] if summaries else "errors", "clean": False, "output": last}
    if not summaries:
        return {"result": f"did not run: exit code {code}", "clean": None, "output": last}
    if code:
        return {"result": f"{summaries[-1]}, but the cases ended with exit code {code}", "clean": None, "output": last}
    return {"result": summaries[-1], "clean": True}


def main(argv: Sequence[str] | None = None) -> int:
    """Run all tools, and write the file."""
    until = time.monotonic() - _RESERVE_SECONDS
    parser = options("duoln.bench.survey.sanitizer", __doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, metavar="N", help="tools that need longer are stopped")
    args = parser.parse_args(argv)
    until += args.seconds
    sanitizer = program(os.environ)
    if sanitizer is None:
        save({NOT_THERE: f"{_PROGRAM} is neither on the PATH nor in CUDA_HOME"}, args.json)
        return 0
    logs = args.json.parent / "logs"
    logs.mkdir(exist_ok=True)
    running: dict[str, subprocess.Popen[bytes]] = {}
    for tool in TOOLS:
        with (logs / f"sanitizer-{tool}.log").open("wb") as output:
            running[tool] = subprocess.Popen(
                command(sanitizer, tool, args.backend, logs / f"sanitizer-{tool}.json"),
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=processes.environment({"CUPY_ACCELERATORS": ""}))  # a reduction by CUB takes seconds to compile
    content: dict[str, Any] = {"program": sanitizer, "tools": {}}
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


if __name__ == "__main__":
    sys.exit(main())
