"""The table of layouts in memory between guard pages: a program, since an access outside an array ends it.

    python guarded_rules.py SIDE short|every|long|BROKEN

`short` puts all arrays of a case into three layouts, `every` each array into each layout; `long` does so with the cases
of the long run. It names every case before it runs it, so that the last name is the case that ended the process, and says
at last how many there were. A name of `BROKEN` breaks the convolution first.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / "tools"), str(_TESTS / "plugins"), str(_TESTS)]

import operator_cases
import windowed_conv
from layout_table import Placing, Subject, layout_cases, long_layout_cases
from layouts import FAR, PLAIN, Layout
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from duoln import ops, runtime
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
    arrays, gouts = (tuple(_without_margin(layout) for layout in layouts) for layouts in (placing.arrays, placing.gouts))
    return placing._replace(arrays=arrays, gouts=gouts)


def _without_margin(layout: Layout) -> Layout:
    return replace(layout, margin=0)


def _shifted(values: int) -> Callable[[np.ndarray, tuple[int, int], tuple[int, int]], np.ndarray]:
    """Windows that begin so many values away from where they should."""

    def windows(padded: np.ndarray, kernel: tuple[int, int], axes: tuple[int, int]) -> np.ndarray:
        right = sliding_window_view(padded, kernel, axes)
        two = as_strided(padded.reshape(-1), (2,), (values * padded.itemsize,))
        return as_strided(two[1:], right.shape, right.strides)

    return windows


def _unit_steps(padded: np.ndarray, kernel: tuple[int, int], axes: tuple[int, int]) -> np.ndarray:
    """Windows that end with the strides of the images, also along axes of length 1, which may have any."""
    right = sliding_window_view(padded, kernel, axes)
    width = padded.shape[2]
    return as_strided(padded, right.shape, (padded.strides[0], padded.strides[1], padded.strides[2], padded.strides[3],
                                            width * padded.strides[2], padded.strides[2]))


BROKEN = {"too-late": _shifted(1), "too-early": _shifted(-1), "unit-steps": _unit_steps}
"""Windows of the convolution that lie one value too far on, one too far back, and where no stride leads."""


def main(side: guard_pages.Side, which: str) -> int:
    """Run the cases; how many there were."""
    backend = runtime.backend("numpy")
    rule_cases = long_layout_cases() if which == "long" else list(layout_cases())
    if which in BROKEN:
        ops.conv2d._rules["numpy"] = [windowed_conv.RULE]
        windowed_conv.sliding_window_view = BROKEN[which]
        rule_cases = [rule_case for rule_case in rule_cases if rule_case.op == "conv2d"]
    subjects = [Subject(rule_case, backend) for rule_case in rule_cases]  # before the guards: these run the composed rules
    if which not in BROKEN:
        subjects += [Subject(rule_case, backend, module) for rule_case, module in operator_cases.layout_cases()]
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
