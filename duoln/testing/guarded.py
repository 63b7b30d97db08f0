"""The cases of a registered operator on NumPy between guard pages, in a process that an access outside an array ends.

    python -m duoln.testing.guarded MODULE OPERATOR end

It names each rule and case before it runs, so that the last name is that of what ended the process.
"""

from __future__ import annotations

import importlib
import os
import sys

import numpy as np

from duoln import runtime
from duoln.core import Rule
from duoln.kernels import host, registry
from duoln.testing import guard_pages, selftest

allocators: list[object] = []
"""The allocator outlives every array."""


def main(module: str, name: str, side: guard_pages.Side) -> int:
    """Try each case by each rule; the exit code."""
    importlib.import_module(module)
    backend = runtime.backend("numpy")
    known = registry.registered()[name]
    cases = [case for case in known.cases() if not case.gpu]

    def begin(case: registry.Case, rule: Rule) -> None:
        os.write(1, f"rule '{rule.name}', case {case}\n".encode())

    for case in cases:
        list(selftest.run(backend, [case], 1, begin))  # what is made once lies in ordinary memory
    host.empty = np.empty  # without what it adds for cache lines
    allocators.append(guard_pages.install(side))
    os.write(1, b"guarded\n")
    wrong = [f"rule '{o.rule}', case {o.case}: {o.words}"
             for case in cases for o in selftest.run(backend, [case._replace()], 2, begin) if not o.right]
    os.write(2, "\n".join(wrong).encode())
    return 1 if wrong else 0


if __name__ == "__main__":
    code = 1
    try:
        code = main(*sys.argv[1:])  # type: ignore[arg-type]
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(code)  # what is left of the arrays outlives the interpreter's ability to call their allocator
