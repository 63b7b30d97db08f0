"""Kernels that are broken on purpose, by class: each is a sound text and a change that breaks it.

The machine of `hostgpu` has to find each of them, by an error or by a wrong result, and to find nothing in the sound text.
`python tests/tools/hostgpu_table.py` prints how many seeds find each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import hostgpu
import numpy as np

from duoln.kernels import source

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
    program.launch("exchange_by_flags", (blocks,), (64,), [flags, np.int32(rounds), heard], seed=seed, cooperative=True)
    yield heard, np.tile(10 * rounds + np.arange(blocks), (blocks, 1))


_EXCHANGE = source.text("device_limits/exchange.cu").replace(
    "exchange_by_flags(unsigned* flags, int rounds) {",
    "exchange_by_flags(unsigned* flags, int rounds, unsigned* heard) {").replace(
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
    Broken("race between blocks", "columns that belong to two blocks", source.text("columns.cu"),
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
    Broken("missing barrier", "the columns' warps do not wait", source.text("columns.cu"), "= sum;\n    __syncthreads();",
           "= sum;", _column_sums, "'shared'.*no barrier"),
    Broken("missing barrier", "a flag before all of the block have stored", _EXCHANGE,
           "blockIdx.x;\n        __syncthreads();", "blockIdx.x;", _exchange, "'flags'.*race"),
    Broken("mask of a shuffle", "half of the lanes", _ROWS, "EVERY_LANE = 0xffffffffu", "EVERY_LANE = 0x0000ffffu",
           _layer_norm(3, 64, 16), "does not name", _SHORT_ROW),
    Broken("mask of a shuffle", "all lanes but the last", _ROWS, "EVERY_LANE = 0xffffffffu", "EVERY_LANE = 0x7fffffffu",
           _layer_norm(3, 1000, 128), "does not name", _WIDE_ROW),
    Broken("shared memory", "more than 48 KB declared", source.text("columns.cu"), "shared[WARPS][COLUMNS]",
           "shared[100 * WARPS][COLUMNS]", _column_sums, "'shared': expected at most 49152 bytes"),
    Broken("shared memory", "sums of four warps in one place", _ROWS, "__shared__ float shared[WARP];",
           "__shared__ float shared[1];", _layer_norm(3, 1000, 128), "'shared': an access", _WIDE_ROW),
    Broken("launch bounds", "half of the threads that a block has", _ROWS, "__launch_bounds__(BLOCK, 1)",
           "__launch_bounds__(BLOCK / 2, 1)", _layer_norm(3, 1000, 128), "too many resources", _WIDE_ROW)]


# Small kernels ------------------------------------------------------------------------------------------

def _entry(parameters: str, body: str, before: str = "") -> str:
    return f'extern "C" __global__ void {before} f({parameters}) {{\n{body}\n}}\n'


def _of_x(expected: Callable[[np.ndarray], np.ndarray], grid: int = 1, block: int = 128, values: int = 0,
          ) -> Callable[..., Result]:
    """A launch f(x, y, n), with `values` of x or one for each thread; y is as large as what is expected."""
    def launch(program: hostgpu.Program, seed: int) -> Result:
        x = _floats(values or grid * block)
        want = expected(x)
        y = np.zeros(want.shape, np.float32)
        program.launch("f", (grid,), (block,), [x, y, np.int32(x.size)], seed=seed)
        yield y, want

    return launch


def _in_place(program: hostgpu.Program, seed: int) -> Result:
    x = _floats(256)
    want = 2 * x
    program.launch("f", (2,), (128,), [x, x, np.int32(256)], seed=seed)
    yield x, want


def _much_shared(program: hostgpu.Program, seed: int) -> Result:
    """50 KB of dynamic shared memory, for which the caller asks if the program has an entry of that name."""
    x, y, much = _floats(128), np.zeros(128, np.float32), 50 << 10
    asked = much if "asks" in program.entries else None
    program.launch("f", (1,), (128,), [x, y, np.int32(128)], much, seed, most_shared=asked)
    yield y, x


def _message(cells: int, cooperative: bool = True) -> Callable[..., Result]:
    def launch(program: hostgpu.Program, seed: int) -> Result:
        data, flags, y = (np.zeros(cells, kind) for kind in (np.float32, np.uint32, np.float32))
        program.launch("f", (2 * cells,), (32,), [data, flags, y], seed=seed, cooperative=cooperative)
        yield y, np.arange(cells) + 1.0

    return launch


def _last_block(program: hostgpu.Program, seed: int) -> Result:
    x, parts, count, y = _floats(8 * 64), np.zeros(8, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    program.launch("f", (8,), (64,), [x, parts, count, y], seed=seed)
    yield y, x.sum(keepdims=True)


_XY = "const float* x, float* y, int n"
_TELL = _entry("{v} float* data, volatile unsigned* flags, float* y", """
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
_FOUR = _entry(_XY, """
    __shared__ float first[4], a[4], last[4];
    if (threadIdx.x < 4) first[threadIdx.x] = last[threadIdx.x] = 1, a[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 4) y[threadIdx.x] = a[threadIdx.x] * first[threadIdx.x] * last[threadIdx.x];""")
_WARPS = _entry(_XY, """
    float sum = x[threadIdx.x];
    for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = sum;""")
_GIVEN = _entry(_XY, "extern __shared__ float s[];\ns[threadIdx.x] = x[threadIdx.x];\ny[threadIdx.x] = s[threadIdx.x];")

_ASKS = 'extern "C" __global__ void asks() {}\n'


def _warp_sums(x: np.ndarray) -> np.ndarray:
    sums: np.ndarray = x.reshape(-1, 32).sum(1)
    return sums


_SMALL = [
    Broken("address", "a vector load at the second value", _entry(
        _XY, "const float4 v = *reinterpret_cast<const float4*>(x + 4);\ny[0] = v.x + v.y + v.z + v.w;"), "(x + 4)", "(x + 5)",
        _of_x(lambda x: x[4:8].sum(keepdims=True), block=1, values=12), "'x' at byte 20.*not aligned"),
    Broken("race in a block", "two threads store in one place", _entry(_XY, "y[threadIdx.x] = x[threadIdx.x];"), "y[threadIdx.x]",
           "y[threadIdx.x / 2]", _of_x(lambda x: x), "'y'.*race"),
    Broken("race between blocks", "eight blocks add to one float", _entry(_XY, "if (threadIdx.x == 0) atomicAdd(y, x[blockIdx.x]);"),
           "atomicAdd(y, x[blockIdx.x])", "y[0] += x[blockIdx.x]", _of_x(lambda x: x.sum(keepdims=True), 8, 32, 8),
           "'y' at byte 0.*of block"),
    Broken("race between blocks", "the last block wins", _entry(_XY, "y[blockIdx.x] = x[blockIdx.x];"), "y[blockIdx.x]",
           "y[0]", _of_x(lambda x: x, 8, 1), "'y' at byte 0.*of block"),
    Broken("race between blocks", "a block reads what its neighbour writes", _entry(
        _XY, "y[blockIdx.x] = x[blockIdx.x] + x[(blockIdx.x + 1) % n];"), "x[(blockIdx.x + 1) % n]",
        "(y[(blockIdx.x + 1) % n] == 0 ? x[(blockIdx.x + 1) % n] : 0)", _of_x(lambda x: x + np.roll(x, -1), 8, 1),
        "'y'.*of block"),
    Broken("stale read", "scaled in place through the read-only path", _entry(
        "const float* x, float* y, int n", "const int i = blockIdx.x * 128 + threadIdx.x;\nif (i < n) y[i] = 2 * x[i];"),
        "const float* x", "const float* __restrict__ x", _in_place, "'x' is read through the read-only path"),
    Broken("stale read", "__ldg of what the kernel writes", _entry(
        _XY, "y[threadIdx.x] = x[threadIdx.x];\n__syncthreads();\ny[threadIdx.x] = 2 * y[threadIdx.x];"), "2 * y[threadIdx.x]",
        "2 * __ldg(y + threadIdx.x)", _of_x(lambda x: 2 * x), "'y': __ldg reads"),
    Broken("overread", "one value behind the end, multiplied by nothing", _entry(
        _XY, "const int i = threadIdx.x;\ny[i] = x[i] + (i + 1 < n ? x[i + 1] : 0) * 0.0f;"), "(i + 1 < n ? x[i + 1] : 0)",
        "x[i + 1]", _of_x(lambda x: x), "'x': an access 512 bytes"),
    Broken("overread", "one value before the start, never used", _entry(
        _XY, "const int i = threadIdx.x;\nconst float b = i ? x[i - 1] : 0;\ny[i] = i ? x[i] + b : x[i];"), "i ? x[i - 1] : 0",
        "x[i - 1]", _of_x(lambda x: x + np.append(0, x[:-1])), "'x': an access -4 bytes"),
    Broken("missing fence", "the one who tells has none", _TELL.replace("{v} ", ""), "__threadfence();  // of the one who tells", "",
           _message(4), "'data'.*race"),
    Broken("missing fence", "the one who listens has none", _TELL.replace("{v} ", ""),
           "__threadfence();  // of the one who listens", "", _message(4), "'data'.*race"),
    Broken("missing fence", "volatile stores become visible in another order", _TELL.replace("{v}", "volatile"),
           "__threadfence();  // of the one who tells", "", _message(32), ""),
    Broken("missing fence", "the last block adds up what it has not seen", _LAST, "sum;\n        __threadfence();", "sum;", _last_block,
           "'parts'.*race"),
    Broken("missing barrier", "values are read at once", _TURN, "__syncthreads();", "", _of_x(lambda x: x[::-1]), "'part'.*no barrier"),
    Broken("missing barrier", "a warp's barrier for four warps", _TURN, "__syncthreads();", "__syncwarp();",
           _of_x(lambda x: x[::-1]), "'part'.*no barrier"),
    Broken("mask of a shuffle", "half of the lanes", _WARPS, "0xffffffffu", "0xffffu", _of_x(_warp_sums), "does not name"),
    Broken("mask of a shuffle", "a lane that has returned", _WARPS, "float sum", "if (threadIdx.x == 31) return;\nfloat sum",
           _of_x(_warp_sums), "returned|waits for ever"),
    Broken("mask of a shuffle", "two shuffles at once", _WARPS, "sum += __shfl_xor_sync(0xffffffffu, sum, by);",
           "sum += threadIdx.x & 1 ? __shfl_xor_sync(0xffffffffu, sum, by) : __shfl_down_sync(0xffffffffu, sum, by);",
           _of_x(_warp_sums), "while other lanes"),
    Broken("shared memory", "more than 48 KB without asking", _GIVEN + _ASKS, "asks(", "does_not(", _much_shared,
           "expected at most 49152 bytes of dynamic"),
    Broken("shared memory", "a store 40 values behind four", _FOUR, "a[threadIdx.x] = x", "a[threadIdx.x + 40] = x",
           _of_x(lambda x: x[:4]), "'a': an access"),
    Broken("shared memory", "a store 100 values behind four", _FOUR, "a[threadIdx.x] = x", "a[threadIdx.x + 100] = x",
           _of_x(lambda x: x[:4]), "'a': an access"),
    Broken("launch bounds", "64 threads promised, 128 launched", _entry(_XY, "y[threadIdx.x] = x[threadIdx.x];",
                                                                        "__launch_bounds__(128)"),
           "__launch_bounds__(128)", "__launch_bounds__(64)", _of_x(lambda x: x), "too many resources")]

BROKEN = [*(b._replace(ours=True) for b in _OURS), *_SMALL]
"""All of them."""
