"""The numerical tests under OpenBLAS's kernels for several CPUs and with several threads: `python tests/tools/cores.py`.

What a sum rounds to depends on the order of adding, and that on the kernels. A test that passes on one CPU alone compares
what rounding decides. Other arguments are pytest's: `python tests/tools/cores.py -x tests/ops`. Kernels for AVX-512
(`SkylakeX`) are tried where the CPU has it.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from duoln.system.openblas import AVX512

CORES = ("Prescott", "Sandybridge", "Haswell", "Zen", "SkylakeX")
THREADS = (1, 2, 4)


def _run(core: str, threads: int, arguments: list[str]) -> int:
    count = str(threads)
    env = {**os.environ, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count}
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pytest", "-m", "numerical", *arguments], env=env, check=False,
                          capture_output=True, text=True, cwd=Path(__file__).parents[2])
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    print(f"{core}, {threads} threads: {(done.stdout or done.stderr).splitlines()[-1]} ({time.monotonic() - started:.0f} s)",
          *lines, sep="\n  ", flush=True)
    return done.returncode


def main() -> int:
    """Run them all; 1 if a test failed under any."""
    flags = Path("/proc/cpuinfo").read_text().split()
    cores = [core for core in CORES if core != "SkylakeX" or AVX512.issubset(flags)]
    codes = [_run(core, threads, sys.argv[1:]) for core in cores for threads in THREADS]
    return int(any(codes))


if __name__ == "__main__":
    raise SystemExit(main())
