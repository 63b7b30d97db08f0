"""The command line that goes on with a run, for the user to copy."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

BY_LAUNCH = ["--ranks", "duoln"]
"""What `duoln run --ranks N` adds to the command lines of its processes."""


def resume_command(words: Sequence[str], out: Path | None) -> str:
    """The whole command, quoted for a shell, indented by four columns, by which `console.say` leaves it in one line.

    Args:
        words: the command line of this process.
        out: the run folder; None stands for the newest of the task.
    """
    given = list(words[:-2] if list(words[-2:]) == BY_LAUNCH else words)
    old = argparse.ArgumentParser(add_help=False)
    old.add_argument("--resume")
    old.add_argument("--out")
    _, kept = old.parse_known_args(given)
    return "    " + shlex.join([*_program(), *kept, "--resume", "auto", *([] if out is None else ["--out", str(out)])])


def _program() -> list[str]:
    """How this process was started: as a command, `python -m MODULE`, or `python FILE`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        module = spec.name.removesuffix(".__main__")
        return ["duoln"] if module == "duoln" else ["python", "-m", module]
    return ["python", sys.argv[0]] if sys.argv[0].endswith(".py") else [Path(sys.argv[0]).name]
