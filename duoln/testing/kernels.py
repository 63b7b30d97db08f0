"""Proves kernels without their hardware: CUDA and Metal texts run on the CPU, C++ between guard pages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from duoln import runtime
from duoln.core import Op
from duoln.core.arguments import described
from duoln.errors import DtypeError, KernelError, UsageError
from duoln.kernels import registry, source
from duoln.kernels.registry import Case
from duoln.system import processes
from duoln.testing import nvrtc, selftest
from duoln.testing.emulation import Driver, Replacement, emulated
from duoln.testing.hostgpu import HostGpuError

ARCHITECTURES = ("sm_80", "sm_90")
_MOST_VALUES = 1 << 17
"""An emulated thread takes a microsecond for what a GPU's takes a nanosecond, so larger cases are left out."""
_OUTSIDE = "an access outside an array"
_SIGNALS = {-11: _OUTSIDE, -7: _OUTSIDE, -6: "an exception that left the text, or a write outside an array"}


def check_kernel(op: Op[..., Any], seeds: int = 3, twins: Sequence[Replacement] = ()) -> list[str]:
    """Prove the kernels of an operator by its registered cases: values and gradients against float64, and every access.

        for line in check_kernel(l2_rows, twins=[("__syncthreads();", "")]):
            print(line)

    C++ runs between pages that fault, so that each access outside an array is found. CUDA and Metal texts run on the
    CPU under several orders of their threads: accesses outside an array, races and barriers that not all threads reach
    are errors that name the thread. What no thread writes is NaN. NVIDIA's compiler takes the CUDA texts where it is
    installed (`pip install "duoln[kernels]"`). Linux and g++ are needed.

    Args:
        op: an operator that `extend.register` has been told of.
        seeds: the orders of threads, each of which must give the same bits.
        twins: changes, (piece, replacement), that break a CUDA or Metal text: each must be found.

    Returns:
        A line for each device: what was tried, and what could not be.

    Raises:
        AssertionError: a kernel is wrong, no case reaches a rule, or a broken twin passes.
        UsageError: the operator is not registered, or no text has the piece of a twin. DtypeError: it is no operator.
    """
    if not isinstance(op, Op):
        raise DtypeError(f"[check_kernel] op: expected an operator, found {described(op)}")
    known = registry.registered().get(op.name)
    if known is None or known.op is not op:
        raise UsageError(f"[check_kernel] expected an operator with cases, found {op.name}, which is not registered; "
                         f"extend.register({op.name}, cases) beside it names them")
    for twin in twins:
        if not (isinstance(twin, tuple | list) and len(twin) == 2 and all(isinstance(text, str) for text in twin)):
            raise DtypeError("[check_kernel] twins: expected pairs (piece, replacement) of texts, found "
                             f"{described(twin)}")
    runtime.backend("numpy")
    cases = [case for case in registry.registered_cases() if case.op == op.name]
    lines, noticed = [_guarded(op)], set[Replacement]()
    for name in ("cupy", "mlx"):
        with emulated(name) as (backend, driver):
            if not op.rules(name)[:-1]:
                lines.append(f"{name}: it has no rule")
                continue
            tried = _emulated(op, cases, backend, seeds)
            more = _compile_launches(driver) if name == "cupy" else ""
            lines.append(f"{name}: {tried}, {seeds} orders of threads{more}")
        noticed |= {twin for twin in twins if _twin_is_found(op, cases, name, seeds, twin)}
    for twin in twins:
        if twin not in noticed:
            raise UsageError("[check_kernel] twins: expected a piece of a CUDA or Metal text, found "
                             f"{twin[0]!r} in none")
    if all(line.endswith("it has no rule") for line in lines):
        raise UsageError(f"[check_kernel] expected an operator with kernels, found {op.name} with its composed rule "
                         "alone")
    return [*lines, *([f"broken twins found: {len(noticed)}"] if noticed else [])]


def _guarded(op: Op[..., Any]) -> str:
    """Try the cases on NumPy in a process for each side of the arrays."""
    if not op.rules("numpy")[:-1]:
        return "numpy: it has no rule"
    if op.__module__ == "__main__":
        raise UsageError(f"[check_kernel] expected {op.name} in a module that a second process can import, found it in "
                         "__main__")
    tried: list[str] = []
    for side in ("end", "start"):
        done = subprocess.run(processes.command("duoln.testing.guard_pages", op.__module__, op.name, side), text=True,
                              capture_output=True, check=False,
                              env=processes.environment({"DUOLN_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}))
        every = done.stdout.splitlines()
        tried = [line for line in every[every.index("guarded") + 1:]] if "guarded" in every else every
        if done.returncode < 0:
            what = _SIGNALS.get(done.returncode, f"the process ended by signal {-done.returncode}")
            last = tried[-1] if tried else "before the first case"
            raise AssertionError(f"[{op.name}] numpy, {last}: {what}, guarded at the {side}")
        if done.returncode:
            raise AssertionError(f"[{op.name}] numpy, guarded at the {side}: {done.stderr.strip()}")
    _check_reached(op, "numpy", {line.split("'")[1] for line in tried}, done.stderr.strip())
    return f"numpy: {len(tried)} cases and rules between guard pages"


def _outcomes(op: Op[..., Any], cases: Sequence[Case], backend: Any, seeds: int) -> Iterator[tuple[Case, str]]:
    """Each case with each rule that takes it.

    Raises:
        AssertionError: one is wrong.
    """
    for case in cases:
        if case.cpu or selftest.size_of(case) > _MOST_VALUES:
            continue
        for rule in selftest.rules(case, backend):
            where = f"[{op.name}] {backend.name}, rule '{rule.name}', case {case}"
            try:
                outcome = selftest.prove(case, backend, seeds, rule)
            except (HostGpuError, KernelError) as error:
                raise AssertionError(f"{where}: {error}") from error
            except Exception as error:  # of the rule's own functions
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
            if not outcome.right:
                raise AssertionError(f"{where}: {_words(outcome)}")
            yield case, rule.name


def _words(outcome: selftest.Outcome) -> str:
    if outcome.problem or not outcome.repeats:
        return outcome.words
    if np.isinf(outcome.error):
        return f"{outcome.worst} has another shape or values that are not finite, as those that nothing has written"
    return f"{outcome.worst} differs from float64 by {outcome.error:.3g} times what is allowed"


def _emulated(op: Op[..., Any], cases: Sequence[Case], backend: Any, seeds: int) -> str:
    tried = list(_outcomes(op, cases, backend, seeds))
    _check_reached(op, backend.name, {rule for _, rule in tried})
    left = sum(selftest.size_of(case) > _MOST_VALUES for case in cases)
    without = f" ({left} cases left out: over {_MOST_VALUES:,} values)" if left else ""
    return f"{len(tried)} cases and rules on the CPU{without}"


def _check_reached(op: Op[..., Any], name: str, tried: set[str], words: str = "") -> None:
    for rule in op.rules(name)[:-1]:
        if rule.name not in tried:
            why = f":\n{words}" if words else ""
            raise AssertionError(f"[{op.name}] {name}: no registered case reaches the rule '{rule.name}'{why}")


def _compile_launches(driver: Driver) -> str:
    """Let NVIDIA's compiler take what has been launched."""
    if nvrtc.version() is None:
        return '; not compiled by NVRTC, which is not installed: pip install "duoln[kernels]"'
    for text, macros in driver.launched:
        for architecture in ARCHITECTURES:
            nvrtc.log(source.text(text), dict(macros), architecture)
    return f"; NVRTC {nvrtc.version()} compiles {len(driver.launched)} settings for {', '.join(ARCHITECTURES)}"


def _twin_is_found(op: Op[..., Any], cases: Sequence[Case], name: str, seeds: int, twin: Replacement) -> bool:
    """True if a text of this device has the piece, and the broken text is found.

    Raises:
        AssertionError: it passes.
    """
    with emulated(name, twin=twin) as (backend, driver):
        try:
            list(_outcomes(op, cases, backend, seeds))
        except AssertionError:
            return driver.changed
    if driver.changed:
        raise AssertionError(f"[{op.name}] {name}: expected an error or wrong values of the broken twin with "
                             f"{twin[1]!r} in the place of {twin[0]!r}, found none in {len(cases)} cases")
    return False
