"""Runs the text of a GPU kernel on the CPU: compiles it with the C++ compiler over `hostgpu.h` and launches it.

    program = hostgpu.compile(text, {"THREADS": 32})
    program.launch("layer_norm_forward", grid=(4,), block=(128,), arguments=[x, y, np.int32(7)], seed=1)

Every array goes into memory of its own between pages that nobody may touch, once close to the one behind it and
once to the one before it, with a pattern in what is left over: an access outside an array is an error that names
the argument. The seed decides the order in which threads run.
"""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import mmap
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
CACHE = Path(tempfile.gettempdir()) / f"duoln-hostgpu-{getpass.getuser()}"
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-fno-strict-aliasing", "-ffp-contract=off",
          "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error")
_PATTERN = 0xA5
_LINE = 16
"""Arrays begin on a line of this many bytes, as vector loads need it."""

_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:(?:__launch_bounds__\([^)]*\)|CLUSTER)\s*)?(\w+)\s*\(([^)]*)\)')
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s*)?(\w+)\s+(\w+)\[\s*\]\s*;")
_SYSTEM = re.compile(r"^\s*#\s*include\s*<[^>]*>.*$", re.M)


class HostGpuError(Exception):
    """A kernel does not compile, or does what no kernel may."""


class Parameter(NamedTuple):
    """One parameter of a kernel: its C type and name."""

    kind: str
    name: str


def kernels(text: str) -> dict[str, list[Parameter]]:
    """The entry points of a source text, with their parameters."""
    entries = {}
    for name, inside in _KERNEL.findall(text):
        parameters = []
        for piece in filter(None, (" ".join(p.split()) for p in inside.split(","))):
            kind, _, last = piece.replace("__restrict__", " ").rpartition(" ")
            stars = last.count("*") + kind.count("*")
            parameters.append(Parameter(kind.replace("*", "").strip() + "*" * stars, last.strip("* ")))
        entries[name] = parameters
    return entries


def compile(text: str, defines: Mapping[str, object] | None = None, prelude: str = "cuda.h") -> Program:
    """A program of all entry points in a text. Compiled once for each text, prelude and set of macros.

    Raises:
        HostGpuError: the compiler's log.
    """
    macros = [f"-D{k}={v}" for k, v in sorted((defines or {}).items())]
    headers = "".join((HERE / name).read_text() for name in ("hostgpu.h", prelude))
    whole = _host_text(text, prelude)
    key = hashlib.sha256("\0".join((whole, headers, *macros, *_FLAGS)).encode()).hexdigest()[:24]
    library = CACHE / f"{key}.so"
    if not library.exists():
        CACHE.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            source = Path(folder) / "kernel.cpp"
            source.write_text(whole)
            made = Path(folder) / "kernel.so"
            if shutil.which("g++") is None:
                raise HostGpuError("expected a C++ compiler to run kernels with, found no g++")
            done = subprocess.run(["g++", *_FLAGS, *macros, "-I", str(HERE), str(source), "-o", str(made)],
                                  capture_output=True, text=True, check=False)
            if done.returncode:
                raise HostGpuError(f"the C++ compiler refuses the kernel:\n{done.stderr[:4000]}")
            made.replace(library)
    return Program(ctypes.CDLL(str(library)), kernels(text))


def _host_text(text: str, prelude: str) -> str:
    body = _SYSTEM.sub("", text)
    body = _DYNAMIC.sub(r"\1* \2 = reinterpret_cast<\1*>(hostgpu::dynamic_shared());", body)
    parts = [f'#include "{prelude}"', body]
    for name, parameters in kernels(text).items():
        values = ", ".join(f"*static_cast<{p.kind}*>(a[{i}])" for i, p in enumerate(parameters))
        parts.append(f"""
extern "C" int hostgpu_{name}(const unsigned* sizes, size_t shared, uint64_t seed, int cooperative, void** arguments,
                              char* message, size_t message_size, uintptr_t* address) {{
    hostgpu::Launch l;
    l.grid = {{sizes[0], sizes[1], sizes[2]}};
    l.block = {{sizes[3], sizes[4], sizes[5]}};
    l.shared_bytes = shared;
    l.random = seed * 2 + 1;
    l.cooperative = cooperative;
    l.kernel = [](void** a) {{ {name}({values}); }};
    l.arguments = arguments;
    l.message = message;
    l.message_size = message_size;
    return hostgpu::start(l, address);
}}""")
    return "\n".join(parts)


class _Guarded:
    """A copy of an array's bytes between two pages that may not be touched."""

    def __init__(self, array: np.ndarray, name: str, against_the_end: bool) -> None:
        self.name, self.array, page = name, array, mmap.PAGESIZE
        self.inside = -(-max(array.nbytes, 1) // page) * page
        self.memory = mmap.mmap(-1, self.inside + 2 * page)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.bytes = np.frombuffer(self.memory, np.uint8)[page:page + self.inside]
        self.bytes[:] = _PATTERN
        room = (self.inside - array.nbytes) // _LINE * _LINE
        self.offset = room if against_the_end else 0
        self.bytes[self.offset:self.offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        self.address = self.start + page + self.offset
        for edge in (self.start, self.start + page + self.inside):
            _protect(edge, page, 0)

    def close(self) -> None:
        for edge in (self.start, self.start + mmap.PAGESIZE + self.inside):
            _protect(edge, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)

    def hit_by(self, address: int) -> bool:
        return self.start <= address < self.start + self.inside + 2 * mmap.PAGESIZE

    def check_edges(self) -> None:
        end = self.offset + self.array.nbytes
        for what, edge in (("before", self.bytes[:self.offset]), ("behind", self.bytes[end:])):
            if (edge != _PATTERN).any():
                raise HostGpuError(f"argument '{self.name}': something was written {what} the array")

    def take_back(self) -> None:
        self.array.reshape(-1).view(np.uint8)[:] = self.bytes[self.offset:self.offset + self.array.nbytes]


def _protect(address: int, size: int, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), flags):
        raise OSError(ctypes.get_errno(), "mprotect")


class Program:
    """Compiled entry points."""

    def __init__(self, library: ctypes.CDLL, entries: dict[str, list[Parameter]]) -> None:
        self._library, self.entries = library, entries

    def launch(self, entry: str, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any],
               shared: int = 0, seed: int = 0, cooperative: bool = False) -> None:
        """Run a kernel; what it writes into arrays is there afterwards.

        Args:
            entry: the kernel's name.
            grid: blocks, one to three numbers.
            block: threads a block, one to three numbers.
            arguments: contiguous NumPy arrays, None for a null pointer, NumPy scalars of the parameter's own type.
            shared: bytes of dynamic shared memory.
            seed: decides who runs first, and on which side of each array the forbidden page lies.
            cooperative: whether all blocks are there at once and may wait for each other.

        Raises:
            HostGpuError: the kernel reached outside an array, hangs, or breaks a rule of the machine.
        """
        parameters = self.entries[entry]
        if len(parameters) != len(arguments):
            raise HostGpuError(f"{entry}: expected {len(parameters)} arguments, found {len(arguments)}")
        guarded: list[_Guarded] = []
        values: list[Any] = []
        for parameter, given in zip(parameters, arguments, strict=True):
            if isinstance(given, np.ndarray) and parameter.kind.endswith("*"):
                guarded.append(_Guarded(given, parameter.name, bool((seed + len(guarded)) % 2)))
                values.append(ctypes.c_void_p(guarded[-1].address))
            elif given is None:
                values.append(ctypes.c_void_p(0))
            else:
                values.append((ctypes.c_char * given.nbytes).from_buffer_copy(given.tobytes()))
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(v) for v in values))
        sizes = (ctypes.c_uint * 6)(*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3])
        message, address = ctypes.create_string_buffer(1024), ctypes.c_size_t(0)
        try:
            outcome = getattr(self._library, f"hostgpu_{entry}")(
                sizes, ctypes.c_size_t(shared), ctypes.c_uint64(seed), int(cooperative), pointers, message,
                ctypes.c_size_t(len(message)), ctypes.byref(address))
            if outcome:
                reasons = {1: message.value.decode(), 2: _bad_access(address.value, guarded),
                           3: "a vector access at an address that is not aligned"}
                raise HostGpuError(f"{entry} (seed {seed}): {reasons[outcome]}")
            for g in guarded:
                g.check_edges()
                g.take_back()
        finally:
            for g in guarded:
                g.close()


def _bad_access(address: int, guarded: Sequence[_Guarded]) -> str:
    for g in guarded:
        if g.hit_by(address):
            return (f"argument '{g.name}': an access {address - g.address} bytes from its start; "
                    f"it has {g.array.nbytes}")
    return f"an access at {address:#x}, which belongs to no argument"
