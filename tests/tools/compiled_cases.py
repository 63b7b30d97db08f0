"""The whole table of cases through every compiled kernel, made for one CPU or with sanitizers, by one compiler.

    python tests/tools/compiled_cases.py                                    for this CPU, by the compiler that duoln takes
    python tests/tools/compiled_cases.py --march x86-64 --compiler g++      without AVX
    python tests/tools/compiled_cases.py --sanitize                         with AddressSanitizer and UndefinedBehaviorSanitizer

Every kernel that exists is compiled; a kernel that no case reaches is an error, so a new one joins by itself. Each case runs
in float32 against float64, and in float64 against the composed rule, in one thread and in three.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duoln import ops, runtime
from duoln.core import Factors, Rule
from duoln.kernels import host, native
from duoln.kernels.native import loading, storage, toolchain
from duoln.kernels.registry import Case, every_case
from duoln.testing import check_rule, selftest

SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fsanitize=float-cast-overflow",
              "-fno-sanitize-recover=all")
OPTIONS = "detect_leaks=0:detect_stack_use_after_return={}"
"""The interpreter does not free all that it has at its end. GCC 12 aligns the stack that the second option gives to functions
for vectors of 256 bits (its bug 110027): wider ones end the process there."""
THREADS = 3
def set_flags(sanitize: bool, compiler: str) -> None:
    """Let kernels be compiled with the sanitizers."""
    if sanitize:
        shared = ("-shared-libasan",) if "clang" in compiler else ()
        toolchain.FLAGS = (*(flag for flag in toolchain.FLAGS if flag != "-O3"), *SANITIZERS, *shared)


def runtime_library(compiler: toolchain.Compiler) -> str:
    """The library of AddressSanitizer, which must be loaded before the interpreter."""
    name = f"libclang_rt.asan-{os.uname().machine}.so" if "clang" in compiler.version else "libasan.so"
    done = subprocess.run([*compiler.command, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip())
    if not path.is_absolute() or not path.exists():
        raise SystemExit(f"expected {name} of {compiler.version}, found {path}: install the compiler's sanitizers")
    return str(path.resolve())


def compiled_rules(case: Case) -> dict[str, Rule]:
    """The compiled rules of a case's operator, by their names."""
    rules = getattr(ops, case.op).rules("numpy")
    return {rule.name: rule for rule in rules if rule.name.startswith("compiled")}


def factored_failures(rule: Rule, inputs: Sequence[Any], attrs: Mapping[str, Any], rows: int) -> Iterator[str]:
    """An update whose gradients are factors, as if each of its tensors were a matrix, against that with their products."""
    n, rng = len(inputs[3:]) // 4, np.random.default_rng(0)

    def factors(g: np.ndarray) -> Factors:
        height = next(k for k in (*range(2, g.size), 1) if g.size % k == 0)
        return Factors(*(rng.standard_normal((rows, size)) for size in (height, g.size // height)))

    gradients = [factors(g) if g.size else g for g in inputs[3 + n:3 + 2 * n]]
    updated, expected = (rule.forward(runtime.backend("numpy"), *(a if a is None else a.copy() for a in inputs[:3 + n]),
                                      *of_update, *(a.copy() for a in inputs[3 + 2 * n:]), **attrs)[0]
                         for of_update in (gradients, [np.asarray(g) for g in gradients]))
    for k, (actual, wanted) in enumerate(zip(updated, expected, strict=True)):
        if not np.allclose(actual, wanted, rtol=1e-12, atol=1e-12, equal_nan=True):
            yield f"result {k}: {np.max(np.abs(actual - wanted))}"


def failures(op: str) -> Iterator[str]:
    """Run every case of every compiled rule, or of one operator's; a line for each that is wrong."""
    backend = runtime.backend("numpy")
    count = 0
    for case in every_case():
        rules = compiled_rules(case)
        if not rules or op not in ("", case.op):
            continue
        print(f"\r{count} {case}", end="\x1b[K", file=sys.stderr, flush=True)  # the last one ended the process
        for parallel in (1 << 60, 1):
            host.PARALLEL_BYTES = parallel
            outcome = selftest.prove(case, backend)
            rule = rules.get(outcome.rule)
            if rule is None:
                continue  # the compiled rules leave this case to another
            count += 1
            if not outcome.passed:
                yield f"{case}, float32: {outcome.worst}, {outcome.error:.3g} of what is allowed, repeats: {outcome.repeats}"
            wide = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in case.inputs]
            try:
                check_rule(getattr(ops, case.op), rule, wide, backend, case.attrs, case.length)
            except AssertionError as error:
                yield f"{case}, float64: {error}"
            if rule.takes_factors:
                yield from (f"{case}, gradients in {rows} rows: {error}" for rows in (1, 3, 8)
                            for error in factored_failures(rule, wide, case.attrs, rows))
    unused = [] if op else [unit for unit in storage.units() if unit not in loading._state.libraries]
    yield from (f"no case reaches {unit}: {native.refusal(unit.file, np.dtype(unit.real)) or 'it compiles'}" for unit in unused)
    print(f"\n{count} cases of {len(native.sources())} kernels, {native.summary()}", flush=True)


def main() -> int:
    """Compile everything, then run the cases in a process of their own; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--march", default="native")
    parser.add_argument("--compiler", default="")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--op", default="", help="the cases of this operator alone")
    parser.add_argument("--folder", type=Path, help="where they were compiled; without it they are compiled first")
    args = parser.parse_args()
    if args.compiler:
        os.environ["DUOLN_CXX"] = args.compiler
    compiler = native.compiler()
    if compiler is None:
        raise SystemExit(f"expected a compiler, found that {toolchain.missing()}")
    set_flags(args.sanitize, compiler.version)
    if args.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            runtime.compile_kernels(args.march, Path(folder))
            narrow = toolchain.target(compiler, args.march).vector_bits <= 256
            before = {"LD_PRELOAD": runtime_library(compiler),
                      "ASAN_OPTIONS": OPTIONS.format(int(narrow))} if args.sanitize else {}
            return subprocess.run([sys.executable, __file__, *sys.argv[1:], "--folder", folder], check=False, env={
                **os.environ, **before, "DUOLN_KERNELS": folder, "DUOLN_THREADS": str(THREADS),
                "OPENBLAS_NUM_THREADS": "1"}).returncode
    lines = list(failures(args.op))
    print(*lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
