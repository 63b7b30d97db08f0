"""Python processes that duoln starts. They get the module path of this process, without the working folder.

`python -m` puts the working folder before all others, so that a file `numpy.py` in it would be executed in place of
NumPy. A child is started with `-P`, which leaves that folder out, and takes the rest of the path from its parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_OURS = Path(__file__).resolve().parents[2]
"""The folder from which duoln is imported."""


def command(module: str, *words: str) -> list[str]:
    """The command that runs a module of duoln as a program; to be started in `environment()`."""
    return [sys.executable, "-P", "-m", module, *words]


@contextlib.contextmanager
def exit_codes_kept() -> Iterator[None]:
    """Let the system keep how children end, also where SIGCHLD was ignored when this process started, as some
    supervisors do: `subprocess` would report exit code 0 for a child that was killed.
    """
    ignored = (hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread()
               and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)
    if ignored:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a child: ours, our module path, and `more`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(module_path(sys.path, Path.cwd())), **(more or {})}


def module_path(path: Sequence[str], here: Path) -> list[str]:
    """A module path without what Python put at its front because of where it was started.

    The working folder stays if duoln itself is imported from it, and if it stands in the path once more: then the user
    put it there.

    Args:
        path: such as `sys.path`.
        here: the working folder.
    """
    first = list(path[:1])
    unasked = not sys.flags.safe_path and bool(first) and _same(first[0] or here, here) and not _same(here, _OURS)
    return [entry or str(here) for entry in path[1 if unasked else 0:]]


def _same(one: str | Path, two: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(two)
