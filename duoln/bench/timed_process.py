"""One side of a comparison, in a process of its own, so that it shares no threads and no allocator with the others.

    python -m duoln.bench.timed_process '{"peer": null, "backend": "numpy"}' [WORK]

prints a line when its libraries are loaded. For a line like '{"group": "rnn", "row": {...}, "peer": null, ...}' it
prepares that work, and prints its facts; that of WORK before it reads lines. For a line `N` it pauses, and makes runs
that are not timed, so that threads and caches are as in a loop. Then it makes N runs and prints as JSON the seconds of
a call of each, and the device's own seconds of a call in a graph, or null. If an error ends it, the last line is
{"error": its class, "message": its words}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from typing import Any

from duoln.bench import machine
from duoln.bench.clock import Timer, Work
from duoln.bench.groups import row_of
from duoln.errors import words_of

_PAUSE = 0.02
"""Threads of the other side may spin for so many seconds after its last run, on cores that this one needs."""
_WARM, _LONG = 0.02, 1.0
"""Seconds of the runs that are not timed, and of a run that needs none before it."""


def main() -> None:
    """Answer requests until stdin ends, or until an error, which is told in the other process."""
    try:
        _answer()
    except Exception as error:
        print(json.dumps({"error": type(error).__name__, "message": words_of(error)}), flush=True)
        raise


def _answer() -> None:
    asked, *work = map(json.loads, sys.argv[1:])
    _load_libraries(asked)
    print(json.dumps("imported"), flush=True)
    timer = None
    for request in chain(work, map(json.loads, sys.stdin)):
        if isinstance(request, dict):
            timer = None  # its memory
            timer = _begin(request)
            continue
        assert timer is not None
        time.sleep(_PAUSE)
        timer.warm(_WARM, _LONG)
        seconds = [timer.run() for _ in range(request)]
        print(json.dumps([seconds, timer.device_seconds and timer.device_seconds()]), flush=True)


def _begin(asked: dict[str, Any]) -> Timer:
    """Prepare the work, and print its facts."""
    work = prepare(asked)
    timer = Timer(work)
    facts = {"side": asked["peer"] or "duoln", **work.facts, **machine.process_facts(), "calls": timer.calls,
             "warmups": timer.warmups, "checks": work.checks, "is_training": work.is_training,
             "no_graph": timer.no_graph}
    print(json.dumps(facts), flush=True)
    return timer


def prepare(asked: Mapping[str, Any]) -> Work:
    """The work of a request, by the module of its row or of its library."""
    row = row_of(asked)
    module = row.own or ("in_torch" if asked["peer"] else "in_duoln")
    work: Work = import_module(f"duoln.bench.{module}").prepare(row, asked)
    return work


def _load_libraries(asked: dict[str, Any]) -> None:
    """Load what takes seconds, PyTorch for its sides and the arrays' library with its device for ours."""
    from duoln import runtime

    if (asked["peer"] or "").startswith("torch"):
        import_module("torch")
    else:
        runtime.choose(asked["backend"])


if __name__ == "__main__":
    main()
