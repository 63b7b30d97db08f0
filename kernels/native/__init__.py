"""Compiles the C++ text of a kernel with this machine's own compiler, keeps the result, and calls it.

`kernels.launch` declares the calls. `real` is float32 or float64, the same for all arrays of a call; a text has an
entry for each, `NAME_float32` and `NAME_float64`, in a library of its own. A library is kept in DUOLN_KERNELS, else in
the folder of caches, with a record of what it was made from and of what the CPU must have. A library of another text,
or for a CPU that this machine is not, is never loaded. `duoln compile` makes all of them ahead, also for other CPUs.
Where there is neither a library nor a compiler, or DUOLN_NATIVE=0 is set, `machine_refusal()` says so and NumPy's rules
run.

The first kernel that is missing is compiled together with those that the function around it will need, see `foresight`;
the program goes on as soon as the one is there that it asked for.

The order to read in: `toolchain` (the compiler), `processor` (the CPU), `storage` (the folder), `building`,
`background`, `foresight`, `loading`, `entries`.
"""

from duoln.kernels.host import address, threads_for
from duoln.kernels.native.building import compile_ahead
from duoln.kernels.native.loading import facts, foresee, library, machine_refusal, refusal, summary
from duoln.kernels.native.storage import sources
from duoln.kernels.native.toolchain import compiler

__all__ = ["address", "compile_ahead", "compiler", "facts", "foresee", "library", "machine_refusal",
           "refusal", "sources", "summary", "threads_for"]
