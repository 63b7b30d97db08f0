"""Prints the registers and the occupancy of every CUDA kernel, from the logs of NVIDIA's compiler.

    python tests/tools/registers_table.py

A cell says: registers a thread: blocks / warps that a multiprocessor holds at once, over all settings of a kernel. The last
column names the setting that leaves the fewest warps.

How many blocks a multiprocessor holds follows from what the compiler says and from what a multiprocessor has: the table
"Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide, which NVIDIA's libcu++ has as
`cuda/__device/arch_traits.h` (CuPy brings it). The units in which registers and shared memory are given out, and the limit on
blocks, are those of NVIDIA's occupancy calculator, `cuda_occupancy.h` of the CUDA Toolkit. `blocks_of` gave what that header
of CUDA 13.0 gives for all three architectures, 15 sizes of a block, all numbers of registers and 13 sizes of shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import nvrtc_logs
from nvrtc_logs import Use

from duoln.kernels import source
from duoln.kernels.settings import WALK_DEVICES, walks
from duoln.plugins.draw.ops.cuda import dynamic_shared
from duoln.testing import hostgpu

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_SHARED_BYTES = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10}
"""Shared memory of a multiprocessor. All three have 65,536 registers, 64 warps and 32 blocks."""
_REGISTERS, _WARPS, _BLOCKS, _LANES = 65_536, 64, 32, 32
_PARTS = 4
"""The registers lie in so many parts, and a warp's are all in one."""
_REGISTER_UNIT, _SHARED_UNIT, _RESERVED_SHARED = 256, 128, 1024
"""A warp gets registers by the first, a block shared memory by the second, and the system keeps the third for each block."""
_WITHOUT_BOUNDS = {"take_backward": 256, "adam_rates": 1}
"""Threads of the kernels whose text does not say it: at most, and always."""
_CONSTANT = re.compile(r"constexpr int ([^;{}()]+);")


class Row(NamedTuple):
    """A kernel with one setting on one architecture."""

    kernel: str
    macros: Mapping[str, int]
    threads: int
    use: Use
    blocks: int
    """That a multiprocessor holds at once."""
    asked: int = 0
    """Bytes of shared memory that a walk asks for."""

    @property
    def warps(self) -> int:
        """That a multiprocessor holds at once."""
        return self.blocks * -(-self.threads // _LANES)


def blocks_of(architecture: str, threads: int, use: Use, dynamic: int = 0) -> int:
    """How many blocks a multiprocessor holds at once."""
    warps = -(-threads // _LANES)
    of_warp = _up(use.registers * _LANES, _REGISTER_UNIT)
    by_registers = _REGISTERS // _PARTS // of_warp * _PARTS // warps
    by_shared = _SHARED_BYTES[architecture] // _up(use.shared + dynamic + _RESERVED_SHARED, _SHARED_UNIT)
    return min(_WARPS // warps, _BLOCKS, by_registers, by_shared)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def settings(architecture: str) -> list[tuple[str, Mapping[str, int], int]]:
    """Every file with every setting, and the bytes that a walk asks for. Files that measure a device are left out."""
    of_files = [(file, macros, 0) for file, macros in nvrtc_logs.every_setting() if not file.startswith("device_limits")]
    return [*of_files, *(walks(WALK_DEVICES[architecture]) if architecture in WALK_DEVICES else [])]


def rows(architecture: str, wanted: Sequence[tuple[str, Mapping[str, int], int]]) -> list[Row]:
    """Every kernel of these files and settings."""
    with ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda pair: nvrtc_logs.log(source.text(pair[0]), pair[1], architecture), wanted))
    made = []
    for (file, macros, shared), log in zip(wanted, logs, strict=True):
        bounds = {name: entry.most_threads for name, entry in hostgpu.text.entries(source.text(file)).items()}
        for kernel, use in nvrtc_logs.used(log).items():
            threads = _WITHOUT_BOUNDS.get(kernel) or _value(bounds[kernel], source.text(file), macros)
            made.append(Row(kernel, macros, threads, use,
                            blocks_of(architecture, threads, use, shared or dynamic_shared(kernel)), shared))
    return made


def _value(expression: str, text: str, macros: Mapping[str, int]) -> int:
    """The value of a launch bound: numbers, macros and constants of the text."""
    known = dict(macros)
    if "THREADS" in known:
        known["BLOCK"] = max(known["THREADS"], 128)  # as common.cuh has it
    for declaration in _CONSTANT.findall(text):
        for name, value in re.findall(r"(\w+) = (\d+)(?=\s*(?:,|$))", declaration):
            known.setdefault(name, int(value))
    product = 1
    for number in expression.split("*"):
        product *= int(number) if number.strip().isdigit() else known[number.strip()]
    return product


def cells(made: Sequence[Row]) -> dict[str, str]:
    """Of each kernel on one architecture: registers, and the blocks and warps of a multiprocessor, over all settings."""
    of_kernel: dict[str, list[Row]] = {}
    for row in made:
        of_kernel.setdefault(row.kernel, []).append(row)
    return {kernel: f"{_range(r.use.registers for r in some)}: {_range(r.blocks for r in some)} / "
                    f"{_range(r.warps for r in some)}" for kernel, some in sorted(of_kernel.items())}


def _range(values: Iterable[int]) -> str:
    every = sorted(set(values))
    return f"{every[0]:,}" if len(every) == 1 else f"{every[0]:,}-{every[-1]:,}"


def _worst(some: Sequence[Row]) -> str:
    row = min(some, key=lambda r: (r.warps, -r.use.registers))
    if len({r.warps for r in some}) == 1:
        return "-"
    return " ".join(f"{name} {value}" for name, value in row.macros.items())


def table() -> str:
    """The table, for Markdown."""
    every = {architecture: rows(architecture, settings(architecture)) for architecture in ARCHITECTURES}
    columns = {architecture: cells(made) for architecture, made in every.items()}
    spilled = sum(row.use.spilled for made in every.values() for row in made)
    middle: dict[str, list[Row]] = {}
    for row in every["sm_90"]:
        middle.setdefault(row.kernel, []).append(row)
    lines = [f"| kernel (settings) | threads | shared bytes | {' | '.join(ARCHITECTURES)} | fewest warps (sm_90) |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for kernel, some in sorted(middle.items()):
        shared = _range(r.use.shared + (r.asked or dynamic_shared(kernel)) for r in some)
        lines.append(f"| `{kernel}` ({len(some)}) | {_range(r.threads for r in some)} | {shared} | "
                     f"{' | '.join(columns[a].get(kernel, '-') for a in ARCHITECTURES)} | {_worst(some)} |")
    count = sum(len(made) for made in every.values())
    lines += ["", f"{count} kernels, settings and architectures; {spilled} bytes spilled. NVRTC {nvrtc_logs.version()}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
