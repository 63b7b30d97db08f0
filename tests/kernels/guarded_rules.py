"""The table of layouts in memory between guard pages: a program, since an access outside an array ends it.

    python guarded_rules.py SIDE short|every|long|broken

`short` puts all arrays of a case into three layouts, `every` each array into each layout; `long` does so with the cases
of the long run. It names every case before it runs it, so that the last name is the case that ended the process, and says
at last how many there were. `broken` lets a rule read one value that is not its own.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "tools"), str(_TESTS / "plugins"), str(_TESTS)]

import operator_cases
from layout_table import Placing, Subject, layout_cases, long_layout_cases
from layouts import FAR, PLAIN
from numpy.lib.stride_tricks import as_strided

from duoln import ops, runtime
from duoln.backends.protocol import Backend
from duoln.core import Rule
from duoln.kernels import host
from duoln.testing import guard_pages

_TIGHT = replace(PLAIN, name="tight")


def placings(subject: Subject, every: bool) -> Iterator[Placing]:
    """Those of the table with nothing between the arrays and the guard pages; three of all arrays at once, or every one."""
    yield _tight(Placing(f"{subject.case}: all tight", (_TIGHT,) * len(subject.arrays), (_TIGHT,) * len(subject.gouts)))
    if any(a is not None and 1 in a.shape for a in (*subject.arrays, *subject.gouts)):
        yield _tight(Placing(f"{subject.case}: all {FAR}", (FAR,) * len(subject.arrays), (FAR,) * len(subject.gouts)))
    for placing in subject.placings():
        if every or placing.name.endswith(": all every third, turned"):
            yield _tight(placing)


def _tight(placing: Placing) -> Placing:
    arrays, gouts = (tuple(replace(layout, margin=0) for layout in layouts) for layouts in (placing.arrays, placing.gouts))
    return placing._replace(arrays=arrays, gouts=gouts)


def _outside(side: guard_pages.Side, be: Backend, x: np.ndarray) -> tuple[np.ndarray, None]:
    """Reads the value beside an array."""
    flat = as_strided(x, (2,), (-x.itemsize if side == "start" else x.nbytes,))
    return x * x + 0 * flat[1], None


def main(side: guard_pages.Side, which: str) -> int:
    """Run the cases; how many there were."""
    backend = runtime.backend("numpy")
    rule_cases = long_layout_cases() if which == "long" else list(layout_cases())
    subjects = [Subject(rule_case, backend) for rule_case in rule_cases]  # before the guards: these run the composed rules
    subjects += [Subject(rule_case, backend, module) for rule_case, module in operator_cases.layout_cases()]
    if which == "broken":
        ops.square._rules["numpy"] = [Rule("outside", functools.partial(_outside, side))]
        subjects = [subject for subject in subjects if subject.case.op == "square"]
    # The rules' own buffers lie between the guards without what they add for cache lines.
    host.empty = lambda shape, dtype: np.empty(shape, dtype)
    guarded = guard_pages.install(side)
    count = 0
    for subject in subjects:
        for placing in placings(subject, every=which in ("every", "long")):
            os.write(1, f"{placing.name}\n".encode())
            subject.check(placing)
            count += 1
    os.write(1, f"cases {count} blocks {guarded.blocks}\n".encode())
    return count


if __name__ == "__main__":
    faulthandler.enable()
    try:
        main(sys.argv[1], sys.argv[2])
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # what is left of the arrays outlives the interpreter's ability to call their allocator
