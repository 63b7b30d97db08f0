"""Kernels that are broken on purpose, by class: each is a sound text and a change that breaks it.

The machine of `hostgpu` has to find each of them, by an error or by a wrong result, and to find nothing in the sound text.
`python tests/tools/hostgpu_table.py` prints how many seeds find each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from duoln.kernels import source
from duoln.testing import hostgpu

Result = Iterator[tuple[np.ndarray, np.ndarray]]
"""Pairs of what a launch gave and what it should give."""


class Broken(NamedTuple):
    """A kernel and how to break it."""

    kind: str
    name: str
    text: str
    """The sound text."""
    old: str
    new: str
    """What takes the place of `old` in the broken text."""
    launch: Callable[[hostgpu.Program, int], Result]
    """Runs a program under a seed."""
    message: str
    """What the error says, as a pattern; empty where the results tell."""
    macros: Mapping[str, int] = {}
    ours: bool = False
    """Whether the text is that of a true kernel."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"

    def program(self, broken: bool) -> hostgpu.Program:
        """The compiled kernel."""
        if self.old not in self.text:
            raise ValueError(f"{self}: expected {self.old!r} in the text")
        return hostgpu.compile(self.text.replace(self.old, self.new) if broken else self.text, self.macros)

    def outcome(self, seed: int, broken: bool = True) -> str:
        """The machine's error, "wrong result", or nothing."""
        try:
            pairs = list(self.launch(self.program(broken), seed))
        except hostgpu.HostGpuError as error:
            return str(error)
        return "" if all(np.allclose(a, b, atol=1e-4) for a, b in pairs) else "wrong result"


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _apart(array: np.ndarray, bytes_behind: int) -> np.ndarray:
    """A copy at an address that many bytes behind one that 256 divides."""
    room = np.zeros(array.nbytes + 512, np.uint8)
    start = -room.ctypes.data % 256 + bytes_behind
    room[start:start + array.nbytes] = array.reshape(-1).view(np.uint8)
    return room[start:start + array.nbytes].view(array.dtype).reshape(array.shape)


# True kernels -------------------------------------------------------------------------------------------

def _layer_norm(rows: int, width: int, threads: int, behind: int = 0, in_place: bool = False) -> Callable[..., Result]:
    def launch(program: hostgpu.Program, seed: int) -> Result:
        x, gain, bias = _apart(_floats(rows, width), behind), _floats(width), _floats(width + 1)[1:].copy()
        wide = x.astype(np.float64)
        expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * gain + bias
        y, stats = x if in_place else _apart(np.full_like(x, np.nan), behind), np.full((rows, 3), np.nan, np.float32)
        at_once = max(128 // threads, 1)
        program.launch("layer_norm_forward", (-(-rows // at_once),), (threads, at_once), [
            x, None, gain, bias, None, y, stats, np.int32(rows), np.int32(width), np.float32(1e-5), np.int32(0)], seed=seed)
        yield y, expected

    return launch


def _gradient_parts(program: hostgpu.Program, seed: int) -> Result:
    rows, width = 24, 64
    x, dy = _floats(rows, width), _floats(width, rows).T.copy()
    stats = np.stack([x.mean(1), np.zeros(rows), 1 / np.sqrt(x.var(1) + 1e-5)], 1).astype(np.float32)
    dx = np.full_like(x, np.nan)
    parts = [np.full((3 * 8, width), np.nan, np.float32) for _ in range(2)]
    program.launch("layer_norm_backward", (3,), (16, 8), [x, None, stats, None, None, dy, None, dx, *parts, *map(np.int32, (
        rows, width, width, 0, 0))], seed=seed)
    xhat = (x - stats[:, :1]) * stats[:, 2:]
    yield parts[0].sum(0), (dy * xhat).sum(0)
    yield parts[1].sum(0), dy.sum(0)


def _sum_and_norm(program: hostgpu.Program, seed: int) -> Result:
    """An RMS norm of the sum of two arrays."""
    rows, width = 5, 64
    x, residual, gain = _floats(rows, width), _floats(width, rows).T.copy(), _floats(width)
    y, total, stats = np.full_like(x, np.nan), np.full_like(x, np.nan), np.full((rows, 1), np.nan, np.float32)
    program.launch("layer_norm_forward", (1,), (16, 8), [x, residual, gain, None, total, y, stats, np.int32(rows), np.int32(
        width), np.float32(1e-5), np.int32(0)], seed=seed)
    yield total, x + residual
    yield y, (x + residual) / np.sqrt(((x + residual) ** 2).mean(1, keepdims=True) + 1e-5) * gain


def _gradient_of_sum(program: hostgpu.Program, seed: int) -> Result:
    """That of an RMS norm of a sum, with the sum's own."""
    rows, width = 5, 64
    total, dy, d_total = _floats(rows, width), _floats(width, rows).T.copy(), _floats(rows, width)[::-1].copy()
    stats = (1 / np.sqrt((total ** 2).mean(1, keepdims=True) + 1e-5)).astype(np.float32)
    dx = np.full_like(total, np.nan)
    program.launch("layer_norm_backward", (1,), (16, 8), [total, None, stats, None, None, dy, d_total, dx, None, None, *map(
        np.int32, (rows, width, width, 0, 0))], seed=seed)
    xhat = total * stats
    yield dx, stats * (dy - xhat * (dy * xhat).mean(1, keepdims=True)) + d_total


def _column_sums(program: hostgpu.Program, seed: int) -> Result:
    x, sums = _floats(90, 16), np.full((1, 1, 16), np.nan, np.float32)
    program.launch("sum_columns", (2, 1, 1), (8, 64), [x, None, sums, np.int32(90), np.int32(16), np.int32(90)], seed=seed)
    yield sums[0, 0], x.sum(0)


def _taken(program: hostgpu.Program, seed: int) -> Result:
    g, indices = _floats(9, 5), np.array([2, 0, 2, 1, 3, 3, 3, 0, 2], np.int32)
    order, table = np.argsort(indices, kind="stable").astype(np.int32), np.full((4, 5), np.nan, np.float32)
    program.launch("take_backward", (4,), (32,), [g, indices[order], order, table, np.int32(9), np.int32(5), np.int32(4)], seed=seed)
    yield table, np.stack([g[indices == row].sum(0) for row in range(4)])


def _exchange(program: hostgpu.Program, seed: int) -> Result:
    """Blocks that tell each other a number by flags: three rounds, behind the flags the numbers of each block."""
    blocks, rounds = 4, 3
    flags, heard = np.zeros(2 * blocks, np.uint32), np.full((blocks, blocks), 7, np.uint32)
    program.launch("exchange_by_flags", (blocks,), (64,), [flags, np.int32(rounds), np.int32(blocks), heard], seed=seed, cooperative=True)
    yield heard, np.tile(10 * rounds + np.arange(blocks), (blocks, 1))


_EXCHANGE = source.text("device_limits/exchange.cu").replace(
    "exchange_by_flags(unsigned* __restrict__ flags, int rounds, int blocks) {",
    "exchange_by_flags(unsigned* __restrict__ flags, int rounds, int blocks, unsigned* heard) {").replace(
    """round <= rounds; ++round) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            reinterpret_cast""", """round <= rounds; ++round) {
        __syncthreads();
        if (threadIdx.x == 5 && round == rounds) flags[gridDim.x + blockIdx.x] = 10 * round + blockIdx.x;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            reinterpret_cast""").replace("""        __threadfence();
        __syncthreads();
    }
}

// Eight""", """        __threadfence();
        __syncthreads();
        if (threadIdx.x < gridDim.x && round == rounds)
            heard[blockIdx.x * gridDim.x + threadIdx.x] = flags[gridDim.x + threadIdx.x];
    }
}

// Eight""")
"""`exchange_by_flags` with something to tell: what a kernel does that stays for many time steps."""

_ROWS = source.text("norm/norm.cu")
_WIDE_ROW = {"THREADS": 128, "CHUNKS": 2, "VECTOR": 4}
_SHORT_ROW = {"THREADS": 16, "CHUNKS": 1, "VECTOR": 4}
_SUM = {**_SHORT_ROW, "CENTRED": 0, "RESIDUAL": 1}
_ALIASING = _ROWS.replace("layer_norm_forward(const storage_t* __restrict__ x,", "layer_norm_forward(const storage_t* x,").replace(
    "storage_t* __restrict__ y,", "storage_t* y,")

_OURS = [
    Broken("address", "four values at once where only four bytes are aligned", "#define VECTOR 1\n" + _ROWS,
           "#define VECTOR 1\n", "#define VECTOR 4\n", _layer_norm(3, 64, 16, behind=4), "'[xy]'.*not aligned",
           {"THREADS": 16, "CHUNKS": 1}),
    Broken("address", "four values at once in rows that four does not divide", "#define VECTOR 1\n" + _ROWS,
           "#define VECTOR 1\n", "#define VECTOR 4\n", _layer_norm(3, 62, 16), "not aligned|'[xy]': an access",
           {"THREADS": 16, "CHUNKS": 1}),
    Broken("race between blocks", "all blocks write one partial row", _ROWS,
           "(size_t(blockIdx.x) * blockDim.y + threadIdx.y) * width", "size_t(threadIdx.y) * width", _gradient_parts,
           "'d_(gain|bias)'.*of block", _SHORT_ROW),
    Broken("race in a block", "rows behind the last one write the first sum", _ROWS, "if (inside) r.store(total", "r.store(total",
           _sum_and_norm, "'total'.*race", _SUM),
    Broken("race between blocks", "columns that belong to two blocks", source.text("columns/columns.cu"),
           "blockIdx.x * COLUMNS", "blockIdx.x * (COLUMNS / 2)", _column_sums, "'sums'.*of block"),
    Broken("stale read", "layer norm in place through the read-only path", _ALIASING,
           "layer_norm_forward(const storage_t* x,", "layer_norm_forward(const storage_t* __restrict__ x,",
           _layer_norm(3, 64, 16, in_place=True), "'x' is read through the read-only path", _SHORT_ROW),
    Broken("overread", "behind the last row", _ROWS, "column(c, 0) < width ? *reinterp", "true ? *reinterp",
           _layer_norm(3, 1000, 128), "'x': an access 12", _WIDE_ROW),
    Broken("overread", "before the first row", "#define VECTOR 1\n" + _ROWS,
           "column(c, k) < width ? from[column(c, k)] : 0", "column(c, k) < width ? from[column(c, k) - 1] : 0",
           _layer_norm(3, 64, 16), "'x': an access -4 bytes", {"THREADS": 16, "CHUNKS": 1}),
    Broken("overread", "a sum's own gradient behind the last row", _ROWS, "d.add(d_total + start, width)",
           "d.add(d_total + start + width, width)", _gradient_of_sum, "'d_total': an access", _SUM),
    Broken("overread", "what is added has no end", _ROWS, "r.add(residual + start, inside ? width : 0)",
           "r.add(residual + start + (inside ? 0 : rows * width), width)", _sum_and_norm, "'residual': an access", _SUM),
    Broken("overread", "the statistics of a layer norm, which an RMS norm has not", _ROWS, "rstd = stat[STATS - 1];", "rstd = stat[2];",
           _gradient_of_sum, "'stats': an access", _SUM),
    Broken("overread", "the search behind the last index", source.text("take/take.cu"),
           "k < taken && sorted", "sorted", _taken, "'sorted': an access 36 bytes"),
    Broken("missing fence", "no fence before a block's flag", _EXCHANGE, "            __threadfence();\n            reinterpret",
           "            reinterpret", _exchange, "'flags'.*race"),
    Broken("missing fence", "no fence behind the flags of the others", _EXCHANGE,
           "        __threadfence();\n        __syncthreads();\n        if (threadIdx.x < gridDim.x && round",
           "        __syncthreads();\n        if (threadIdx.x < gridDim.x && round", _exchange, "'flags'.*race"),
    Broken("missing barrier", "the sums are read at once", _ROWS, "value[n];\n    __syncthreads();", "value[n];",
           _layer_norm(3, 1000, 128), "'shared'.*no barrier", _WIDE_ROW),
    Broken("missing barrier", "the sums are overwritten at once", _ROWS,
           "    __syncthreads();  // other threads may still read the last sums\n", "", _layer_norm(3, 1000, 128),
           "'shared'.*no barrier", _WIDE_ROW),
    Broken("missing barrier", "the columns' warps do not wait", source.text("columns/columns.cu"), "= sum;\n    __syncthreads();",
           "= sum;", _column_sums, "'shared'.*no barrier"),
    Broken("missing barrier", "a flag before all of the block have stored", _EXCHANGE,
           "blockIdx.x;\n        __syncthreads();", "blockIdx.x;", _exchange, "'flags'.*race"),
    Broken("mask of a shuffle", "half of the lanes", _ROWS, "EVERY_LANE = 0xffffffffu", "EVERY_LANE = 0x0000ffffu",
           _layer_norm(3, 64, 16), "does not name", _SHORT_ROW),
    Broken("mask of a shuffle", "all lanes but the last", _ROWS, "EVERY_LANE = 0xffffffffu", "EVERY_LANE = 0x7fffffffu",
           _layer_norm(3, 1000, 128), "does not name", _WIDE_ROW),
    Broken("shared memory", "more than 48 KB declared", source.text("columns/columns.cu"), "shared[WARPS][COLUMNS]",
           "shared[100 * WARPS][COLUMNS]", _column_sums, "'shared': expected at most 49152 bytes"),
    Broken("shared memory", "sums of four warps in one place", _ROWS, "__shared__ float shared[WARP];",
           "__shared__ float shared[1];", _layer_norm(3, 1000, 128), "'shared': an access", _WIDE_ROW),
    Broken("launch bounds", "half of the threads that a block has", _ROWS, "__launch_bounds__(BLOCK, 1)",
           "__launch_bounds__(BLOCK / 2, 1)", _layer_norm(3, 1000, 128), "too many resources", _WIDE_ROW)]


# Small kernels, of what the tests of the machine itself do not have ---------------------------------------

def _entry(parameters: str, body: str) -> str:
    return f'extern "C" __global__ void f({parameters}) {{\n{body}\n}}\n'


def _of_x(expected: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Result]:
    """A launch f(x, y) of 128 threads, each with a value of x; y is as large as what is expected."""
    def launch(program: hostgpu.Program, seed: int) -> Result:
        x = _floats(128)
        want = expected(x)
        y = np.zeros(want.shape, np.float32)
        program.launch("f", (1,), (128,), [x, y], seed=seed)
        yield y, want

    return launch


def _message(program: hostgpu.Program, seed: int) -> Result:
    data, flags, y = (np.zeros(4, kind) for kind in (np.float32, np.uint32, np.float32))
    program.launch("f", (8,), (32,), [data, flags, y], seed=seed, cooperative=True)
    yield y, np.arange(4) + 1.0


def _last_block(program: hostgpu.Program, seed: int) -> Result:
    x, parts, count, y = _floats(8 * 64), np.zeros(8, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    program.launch("f", (8,), (64,), [x, parts, count, y], seed=seed)
    yield y, x.sum(keepdims=True)


_XY = "const float* x, float* y"
_TELL = _entry("float* data, volatile unsigned* flags, float* y", """
    const unsigned pair = blockIdx.x / 2;
    if (threadIdx.x) return;
    if (blockIdx.x % 2) {
        data[pair] = pair + 1;
        __threadfence();  // of the one who tells
        flags[pair] = 1;
    } else {
        while (flags[pair] == 0) {}
        __threadfence();  // of the one who listens
        y[pair] = data[pair];
    }""")
_LAST = _entry("const float* x, float* parts, unsigned* count, float* y", """
    __shared__ bool last;
    float sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 64; ++i) sum += x[blockIdx.x * 64 + i];
        parts[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(count, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    sum = 0;
    for (int i = 0; i < int(gridDim.x); ++i) sum += parts[i];
    y[0] = sum;""")
_TURN = _entry(_XY, """
    __shared__ float part[128];
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = part[127 - threadIdx.x];""")
_WARPS = _entry(_XY, """
    float sum = x[threadIdx.x];
    for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = sum;""")

_SMALL = [
    Broken("stale read", "__ldg of what the kernel writes", _entry(
        _XY, "y[threadIdx.x] = x[threadIdx.x];\n__syncthreads();\ny[threadIdx.x] = 2 * y[threadIdx.x];"), "2 * y[threadIdx.x]",
        "2 * __ldg(y + threadIdx.x)", _of_x(lambda x: 2 * x), "'y': __ldg reads"),
    Broken("missing fence", "the one who tells has none", _TELL, "__threadfence();  // of the one who tells", "",
           _message, "'data'.*race"),
    Broken("missing fence", "the one who listens has none", _TELL,
           "__threadfence();  // of the one who listens", "", _message, "'data'.*race"),
    Broken("missing fence", "the last block adds up what it has not seen", _LAST, "sum;\n        __threadfence();", "sum;", _last_block,
           "'parts'.*race"),
    Broken("missing barrier", "a warp's barrier for four warps", _TURN, "__syncthreads();", "__syncwarp();",
           _of_x(lambda x: x[::-1]), "'part'.*no barrier"),
    Broken("mask of a shuffle", "two shuffles at once", _WARPS, "sum += __shfl_xor_sync(0xffffffffu, sum, by);",
           "sum += threadIdx.x & 1 ? __shfl_xor_sync(0xffffffffu, sum, by) : __shfl_down_sync(0xffffffffu, sum, by);",
           _of_x(lambda x: x.reshape(-1, 32).sum(1)), "while other lanes")]

BROKEN = [*(b._replace(ours=True) for b in _OURS), *_SMALL]
"""All of them."""
