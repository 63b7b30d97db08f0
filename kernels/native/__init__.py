"""Compiles the C++ text of a kernel with this machine's own compiler, keeps the result, and calls it.

    softmax = native.launch("softmax/softmax.cpp", "softmax_forward",
                            "x: real[*rows, width], logarithm: int32 -> y: like x")
    y = softmax(x, 0)

`declared` has the language of launches, `function` the calls of kernels whose point is another layout. `real` is
float32 or float64, the same for all arrays of a call; the text has an entry for each, `NAME_float32` and
`NAME_float64`, in a library of its own. A library is kept in DUOLN_KERNELS, else in the folder of caches, with a record
of what it was made from and of what the CPU must have. A library of another text, or for a CPU that this machine is
not, is never loaded. `duoln compile` makes all of them ahead, also for other CPUs. Where there is neither a library nor
a compiler, or DUOLN_NATIVE=0 is set, `machine_refusal()` says so and NumPy's rules run.

The order to read in: `toolchain` (the compiler), `processor` (the CPU), `storage` (the folder), `building`, `loading`,
`declared`, `function`; `remarks` writes what is said.
"""

from duoln.kernels.host import address, threads_for
from duoln.kernels.native.building import compile_ahead
from duoln.kernels.native.declared import launch
from duoln.kernels.native.function import Function
from duoln.kernels.native.loading import facts, library, machine_refusal, refusal, summary
from duoln.kernels.native.storage import sources
from duoln.kernels.native.toolchain import compiler

__all__ = ["Function", "address", "compile_ahead", "compiler", "facts", "launch", "library", "machine_refusal",
           "refusal", "sources", "summary", "threads_for"]
