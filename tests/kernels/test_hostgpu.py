"""The machine that runs kernels on the CPU: it computes what a GPU computes, with barriers, shuffles, clusters and memory as a GPU has
them, and refuses what hangs, races, reaches outside of an array or does not fit a device.
"""

import sys

import numpy as np
import pytest

from duoln.kernels import source
from duoln.testing import hostgpu
from duoln.testing.hostgpu import HostGpuError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
SEEDS, MANY = range(10), range(20)
CLUSTER, BLOCKS = 4, 8


def kernel(parameters, body):
    return f'extern "C" __global__ void f({parameters}) {{ {body} }}'


def run(text, *arrays, grid=(1,), block=(1,), defines=None, prelude="cuda.h", **options):
    """Launch the entry `f`; the first array as it is afterwards."""
    hostgpu.compile(text, defines, prelude).launch("f", grid, block, list(arrays), **options)
    return arrays[0] if arrays else None


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def ramp(count):
    return np.arange(count, dtype=np.float32)


TOTAL = kernel("const float* __restrict__ x, float* y, int n", """
    __shared__ float part[4];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = part[0] + part[1] + part[2] + part[3];""")
TURN = kernel("const float* x, float* y, float* z", """
    __shared__ float part[64];
    const int t = thread_index_in_threadgroup;
    part[t] = x[t];
    y[t] = x[t];
    metal::threadgroup_barrier(FLAGS);
    z[t] = part[63 - t] + (BOTH ? y[63 - t] : 0);""")
"""In Metal's words a barrier orders the memory that it names, and nothing else."""
GIVEN = kernel("float* y", "extern __shared__ float s[]; s[threadIdx.x] = threadIdx.x; y[threadIdx.x] = s[threadIdx.x];")
VECTOR = kernel("const float* x, float* y", "const float4 v = *reinterpret_cast<const float4*>(x); y[0] = v.x + v.y + v.z + v.w;")
SCALE = kernel("const float* x, float* y, int n",
               "const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i];")
TABLE = kernel("const unsigned long long* table, int n",
               "float* x = reinterpret_cast<float*>(table[blockIdx.x]); if (threadIdx.x < n) x[threadIdx.x] += 1 + blockIdx.x;")
WARP = "y[threadIdx.x] = threadIdx.x; {} const float v = y[31 - threadIdx.x]; __syncwarp(); y[threadIdx.x] = v;"
TURNED = kernel("float* y, float* total", "const int i = blockIdx.x * 32 + threadIdx.x; y[i] = i; __syncthreads(); total[i] = y[127 - i];")
AT_ONCE = kernel("unsigned* count", "if (threadIdx.x) return; atomicAdd(count, 1u); while (*(volatile unsigned*)count < gridDim.x) {}")
TWO_BLOCKS = ["y[0] += 1;", "y[0] = 1;", "if (blockIdx.x == 0) y[0] = 1; else y[1 + blockIdx.x] = y[0];",
              "if (blockIdx.x == 0) y[0] = 1; else y[1 + blockIdx.x] = *(volatile float*)y;",
              "if (blockIdx.x == 0) *(volatile float*)y = 1; else y[1 + blockIdx.x] = y[0];",
              "if (blockIdx.x == 0) atomicAdd(y, 1.0f); else y[1 + blockIdx.x] = y[0];"]


TELL = kernel("float* data, volatile unsigned* flags, float* y", """
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


def declared(floats):
    return kernel("float* y", f"__shared__ float s[{floats}]; s[0] = 1; y[0] = s[0];")


def turn(flags, both):
    return TURN.replace("FLAGS", " | ".join(f"metal::mem_flags::mem_{f}" for f in flags.split("+"))).replace("BOTH", str(both))


def given_total():
    return np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32), np.full(2, np.nan,
                                                                                           np.float32), np.int32(4096)


def aligned(first, count=8):
    """So many floats that begin so many behind an address that 16 divides."""
    x = zeros(64)
    start = -x.ctypes.data % 16 // 4 + first
    return x[start:start + count]


def overlapping():
    x = np.random.default_rng(0).standard_normal(129).astype(np.float32)
    return x[1:], x[:-1], np.int32(128)


def twice(x):
    return x, x, np.int32(64)


# Each is a message, a text, a function that makes its arrays, and how it is launched, under some seeds.
REFUSED = {
    "no barrier": (r"shared memory 'part' at byte .* race, no barrier between them",
                   TOTAL.replace("__syncthreads();", ""), given_total,
                   {"grid": (2,), "block": (128,), "seeds": SEEDS}),
    **{f"outside, {new}": (message, TOTAL.replace(old, new), given_total,
                           {"grid": (2,), "block": (128,), "seeds": range(2)}) for old, new, message in (
        ("i < n;", "i < n + 2048;", r"argument 'x': an access \d+ bytes from its start; it has 32768"),
        ("y[blockIdx.x]", "y[blockIdx.x + 2]", "argument 'y'"), ("y[blockIdx.x]", "y[int(blockIdx.x) - 2]", "argument 'y'"))},
    **{body: (message, kernel("float* y", body), lambda: [zeros(64)], {"block": (64,)}) for body, message in (
        ("if (threadIdx.x < 32) __syncthreads();", "barrier"), ("if (threadIdx.x < 7) return; __syncthreads();", "barrier"),
        ("if (threadIdx.x < 7) return; __shfl_xor_sync(0xffffffffu, 1, 1);", "returned|waits for ever"),
        ("if (threadIdx.x < 7) __shfl_xor_sync(0xffffffffu, 1, 1); else __syncthreads();", "waits for ever"),
        ("__shfl_xor_sync(0xffu, 1, 1);", "does not name"))},
    "no text": ("nonsense", kernel("", "nonsense();"), lambda: [], {}),
    # Metal
    **{f"Metal, {flags} {both}": (f"'{name}' at byte .* race, no barrier", turn(flags, both),
                                  lambda: [ramp(64), zeros(64), zeros(64)],
                                  {"block": (64,), "prelude": "metal.h", "seeds": [1]})
       for flags, both, name in (("none", 0, "part"), ("device", 0, "part"), ("threadgroup", 1, "y"))},
    "half a SIMD group": (r"returned|waits for ever",
                          kernel("float* y", "if (thread_index_in_threadgroup < 16) y[0] = metal::simd_sum(1.0f);"),
                          lambda: [zeros(1)], {"block": (32,), "prelude": "metal.h"}),
    "more than 32 KB in Metal": ("expected at most 32768 bytes declared", declared(8200), lambda: [zeros(1)],
                                 {"prelude": "metal.h"}),
    # What a launch may have
    "48 KB without asking": ("expected at most 49152 bytes of dynamic shared memory without asking", GIVEN, lambda: [zeros(32)],
                             {"block": (32,), "shared": (48 << 10) + 16}),
    "48 KB declared": ("'s': expected at most 49152 bytes declared in a block, found 49156", declared((12 << 10) + 1),
                       lambda: [zeros(1)], {}),
    "48 KB of both kinds": ("'s': expected at most 49152 bytes in a block without asking", declared(12 << 10),
                            lambda: [zeros(1)], {"shared": 16}),
    **{f"shared array at {at}": (f"shared memory 'a': an access {4 * at} bytes from its start; it has 16",
                                 kernel("float* y",
                                        f"__shared__ float a[4], b[4]; a[{at}] = 1; b[0] = 1; y[0] = b[0];"),
                                        lambda: [zeros(1)], {})
       for at in (-1, 4, 40, 100, 5000)},
    "behind dynamic memory": (r"'extern __shared__': an access [0-9]+ bytes from its start; it has 64", GIVEN,
                              lambda: [zeros(32)],
                              {"block": (32,), "shared": 64}),
    "launch bounds": ("too many resources requested for launch: expected at most 64 threads",
                      '#define MOST 64\nextern "C" __global__ void __launch_bounds__(MOST) f(float* y) { y[threadIdx.x] = 1; }', lambda: [zeros(128)],
                      {"block": (65,)}),
    **{f"grid {grid}, block {block}": ("expected at most", GIVEN, lambda: [zeros(2048)],
                                       {"grid": grid, "block": block, "shared": 16 << 10})
       for grid, block in (((1,), (1025,)), ((1,), (1, 1, 65)), ((1, 65_536), (1,)), ((1,), (32, 33)))},
    # Memory
    **{f"vector at {first}": ("argument 'x' at byte 0: expected an address that 16 divides", VECTOR,
                              lambda first=first: [aligned(first), zeros(1)], {})
       for first in (1, 2, 3)},
    "one thread reads what its neighbour writes": (r"'[xy]' at byte .* race", SCALE, overlapping,
                                                   {"grid": (2,), "block": (64,), "seeds": SEEDS}),
    **{f"{x} x, {y} y": (message, SCALE.replace("const float* x, float* y", f"{x} x, {y} y"), lambda: twice(ramp(64)),
                         {"block": (64,), "seeds": SEEDS})
       for x, y, message in (
           ("const float* __restrict__", "float*",
            "'x' is read through the read-only path .* 'y', which overlaps it, is written"),
           ("const float*", "float* __restrict__", r"'x' is accessed \(__restrict__\) while argument 'y', which overlaps it"),
           ("float* __restrict__", "float* __restrict__", "'x' is accessed"))},
    "a store to const": ("'x': a store through a pointer to const",
                         kernel("const float* x", "const_cast<float*>(x)[0] = 1;"), lambda: [zeros(4)], {}),
    **{f"array at {at}": (f"'x': an access {4 * at} bytes from its start; it has 132",
                          kernel("const float* x, float* y", f"y[0] = x[{at}];"),
                          lambda: [zeros(33), zeros(1)], {"seeds": SEEDS}) for at in (-2000, -1, 33, 5000)},
    **{f"argument {message}": (message, kernel("float* x, int n", "x[0] = n;"), make, {}) for message, make in (
        ("contiguous", lambda: [zeros(4, 4)[:, 1], np.int32(1)]), ("float32", lambda: [np.float32(1), np.int32(1)]),
        ("NoneType", lambda: [zeros(1), None]), ("expected 2 arguments, found 1", lambda: [zeros(1)]),
        (r"null pointer|0, which belongs to no array", lambda: [None, np.int32(1)]))},
    # Order
    "a flag that nobody writes": ("waits for ever at a flag that nobody writes",
                                  kernel("unsigned* flag", "while (*(volatile unsigned*)flag < 2) {}"),
                                  lambda: [zeros(1, dtype=np.uint32)], {"grid": (2,), "block": (32,), "seeds": SEEDS}),
    "blocks that are not there at once": ("a block that has not begun cannot", AT_ONCE, lambda: [zeros(1, dtype=np.uint32)],
                                          {"grid": (16,), "block": (32,), "seeds": SEEDS}),
    **{f"two blocks, {body}": (r"'y' at byte 0: .* race", kernel("float* y", f"if (threadIdx.x == 0) {{ {body} }}"),
                               lambda: [zeros(16)],
                               {"grid": (8,), "block": (32,), "seeds": SEEDS}) for body in TWO_BLOCKS},
    **{f"a warp, {between}": (r"'y' at byte .* of its own block", kernel("float* y", WARP.format(between)), lambda: [zeros(32)],
                              {"block": (32,), "seeds": SEEDS}) for between in ("", "__shfl_xor_sync(0xffffffffu, 1, 1);")},
    **{f"no fence {of}": (r"argument 'data'.*race", TELL.replace(f"__threadfence();  // {of}", ""),
                          lambda: [zeros(4), zeros(4, dtype=np.uint32), zeros(4)],
                          {"grid": (8,), "block": (32,), "seeds": SEEDS, "cooperative": True})
       for of in ("of the one who tells", "of the one who listens")},
    "__ldg of what the kernel writes": ("'y': __ldg reads", kernel("float* y", "y[threadIdx.x] = 1; __syncthreads(); y[threadIdx.x] = __ldg(y + threadIdx.x);"),
                                        lambda: [zeros(64)], {"block": (64,), "seeds": SEEDS}),
    "a warp's barrier for four warps": ("'part'.*no barrier", TURN.replace("metal::threadgroup_barrier(FLAGS);", "__syncwarp();").replace(
        "thread_index_in_threadgroup", "threadIdx.x").replace("BOTH", "0"), lambda: [ramp(64), zeros(64), zeros(64)], {"block": (64,), "seeds": SEEDS}),
    "two shuffles at once": ("while other lanes", kernel("float* y", "y[threadIdx.x] = threadIdx.x & 1 ? __shfl_xor_sync(0xffffffffu, 1.0f, 1) : "
                                                         "__shfl_down_sync(0xffffffffu, 1.0f, 1);"), lambda: [zeros(32)], {"block": (32,)}),
    "a barrier of blocks alone": (r"'y' at byte .* of block", TURNED, lambda: [zeros(128), zeros(128)],
                                  {"grid": (4,), "block": (32,), "seeds": SEEDS, "cooperative": True}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused(name):
    message, text, make, options = REFUSED[name]
    options = dict(options)
    for seed in options.pop("seeds", [0]):
        with pytest.raises(HostGpuError, match=message):
            run(text, *make(), seed=seed, **options)


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_tell_each_other_with_fences(seed):
    data, flags, y = zeros(4), zeros(4, dtype=np.uint32), zeros(4)
    run(TELL, data, flags, y, grid=(8,), block=(32,), seed=seed, cooperative=True)
    np.testing.assert_array_equal(y, ramp(4) + 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_shuffles_shared_memory_and_barriers(seed, rng):
    x, y = rng.standard_normal((9, 1000)).astype(np.float32), np.full(9, np.nan, np.float32)
    run(TOTAL, x, y, np.int32(1000), grid=(9,), block=(128,), seed=seed)
    np.testing.assert_allclose(y, x.sum(1), atol=1e-4)


def test_a_seed_repeats_and_seeds_differ(rng):
    """Blocks add their floats atomically: their order is the seed's, and so is the last bit of the sum."""
    text, x = kernel("float* y, const float* x",
                     "if (threadIdx.x == 0) atomicAdd(y, x[blockIdx.x]);"), rng.standard_normal(64).astype(np.float32)
    sums = [float(run(text, zeros(1), x, grid=(64,), block=(32,), seed=seed)[0]) for seed in (*MANY, *MANY)]
    assert sums[:20] == sums[20:] and len(set(sums)) > 1


def test_uninitialised_shared_memory_is_nan():
    for _ in range(2):  # every block, not only the first that this process runs
        assert np.isnan(run(kernel("float* y", "__shared__ float s[32]; y[threadIdx.x] = s[threadIdx.x];"), zeros(32),
                            block=(32,))).all()


def test_shared_memory_belongs_to_a_block_and_to_an_instance_of_a_template():
    body = "if (threadIdx.x == 0) {}; __syncthreads(); y[blockIdx.x * blockDim.x + threadIdx.x] = {};"
    dynamic = kernel("float* y", f"extern __shared__ float s[]; {body.format('s[5] = blockIdx.x', 's[5]')}")
    np.testing.assert_array_equal(run(dynamic, zeros(3, 64), grid=(3,), block=(64,), shared=64),
                                  np.repeat([[0], [1], [2]], 64, axis=1))
    text = "template <int N> __device__ float* mine() { __shared__ float s[N]; return s; }\n" + kernel(
        "float* y", body.format("mine<2>()[0] = blockIdx.x, mine<3>()[0] = 100", "mine<2>()[0] + mine<3>()[0]"))
    np.testing.assert_array_equal(run(text, zeros(5, 64), grid=(5,), block=(64,), seed=3),
                                  100 + np.repeat(np.arange(5)[:, None], 64, axis=1))


def test_votes_and_segments_of_a_warp():
    text = kernel("unsigned* votes, int* down, int* up, int* from", """
        int lane = threadIdx.x;
        votes[lane] = __ballot_sync(0xffffffffu, lane % 3 == 0);
        down[lane] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
        up[lane] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
        from[lane] = __shfl_sync(0xffffffffu, lane, 2, 16);""")
    votes, lanes = zeros(32, dtype=np.uint32), np.arange(32)
    down, up, from_lane = (zeros(32, dtype=np.int32) for _ in range(3))
    run(text, votes, down, up, from_lane, block=(32,))
    assert set(votes) == {sum(1 << k for k in range(0, 32, 3))}
    np.testing.assert_array_equal(down, np.where(lanes % 8 + 3 < 8, lanes + 3, lanes))
    np.testing.assert_array_equal(up, np.where(lanes % 8 >= 3, lanes - 3, lanes))
    np.testing.assert_array_equal(from_lane, lanes // 16 * 16 + 2)


@pytest.mark.parametrize(("flags", "both"), [("threadgroup", 0), ("threadgroup+device", 1)])
def test_a_barrier_of_metal_orders_what_it_names(flags, both):
    z = zeros(64)
    run(turn(flags, both), ramp(64), zeros(64), z, block=(64,), prelude="metal.h", seed=1)
    np.testing.assert_array_equal(z, (1 + both) * ramp(64)[::-1])


def test_what_may_be_launched():
    """The most that is allowed, and what was asked for."""
    run(GIVEN, zeros(32), block=(32,), shared=48 << 10)
    run(GIVEN, zeros(32), block=(32,), shared=(48 << 10) + 16, most_shared=(48 << 10) + 16)
    run(declared(12 << 10), zeros(1))
    run(REFUSED["launch bounds"][1], zeros(128), block=(64,))
    run(VECTOR, aligned(0), zeros(1))
    for kinds in [name for name in REFUSED if name.endswith(" y")]:
        run(REFUSED[kinds][1], ramp(64), zeros(64), np.int32(64), block=(64,))
    for seed in SEEDS:
        run(AT_ONCE, zeros(1, dtype=np.uint32), grid=(16,), block=(32,), seed=seed, cooperative=True)


# Memory -----------------------------------------------------------------------------------------------------

def _device_address(x, seed):
    return int(run(kernel("unsigned long long* at, const float* x", "*at = reinterpret_cast<unsigned long long>(x);"),
                   zeros(1, dtype=np.int64), x, seed=seed)[0])


@pytest.mark.parametrize("first", [0, 1, 3, 4, 63])
def test_an_array_keeps_its_address_modulo_256(first):
    x = zeros(1000)[first:]
    assert all(_device_address(x, seed) % 256 == x.ctypes.data % 256 for seed in range(8))


def test_the_seed_decides_on_which_side_of_its_pages_an_array_lies():
    x = zeros(100)
    assert len({_device_address(x, seed) % 4096 for seed in range(40)}) == 2


def test_arguments_that_overlap_share_their_memory(rng):
    whole = rng.standard_normal(300).astype(np.float32)
    expected = whole.copy()
    expected[100:228] = 2 * whole[100:228]
    run(SCALE, whole[100:228], whole[100:228], np.int32(128), block=(128,))
    np.testing.assert_array_equal(whole, expected)
    a, y = ramp(32), zeros(32)
    text = kernel("float* __restrict__ y, const float* __restrict__ a, const float* __restrict__ b",
                  "y[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];")
    np.testing.assert_array_equal(run(text, y, a, a, block=(32,)), 2 * a)


def test_what_lies_beside_an_array_is_nan_where_no_access_is_seen():
    """Assembly is not seen: what it reads beside an array is NaN, and what it writes there is found."""
    text = kernel("float* x, float* y, int at, int store", """
        float v;
        if (store) asm volatile("movl $1065353216, (%0)" :: "r"(x + at) : "memory");
        else asm volatile("movss (%1), %0" : "=x"(v) : "r"(x + at));
        y[0] = v;""")
    room = zeros(512)
    start = -room.ctypes.data % 256 // 4
    x = room[start + 8:start + 41]
    for at in (-1, 33):
        y = zeros(1)
        run(text, x, y, np.int32(at), np.int32(0))
        assert np.isnan(y[0])
        with pytest.raises(HostGpuError, match=f"'x': something was written {'before' if at < 0 else 'behind'} the array"):
            run(text, x, y, np.int32(at), np.int32(1))


def test_a_table_of_addresses():
    arrays = [zeros(5), zeros(7)]
    table = np.array([a.ctypes.data for a in arrays], np.uint64)
    run(TABLE, table, np.int32(5), grid=(2,), block=(32,), reachable=arrays)
    np.testing.assert_array_equal(table, [a.ctypes.data for a in arrays])
    np.testing.assert_array_equal(np.concatenate(arrays), [1] * 5 + [2] * 5 + [0] * 2)
    for count, reachable, message in ((6, arrays, "'an array of the table': an access 20 bytes from its start; it has 20"),
                                      (5, arrays[:1], r"'table': expected addresses of arrays, found .* at 1")):
        with pytest.raises(HostGpuError, match=message):
            run(TABLE, table, np.int32(count), grid=(2,), block=(32,), reachable=reachable)


# The order of accesses --------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_wait_for_each_other_by_flags(seed):
    """Our own exchange, of blocks that are there at once."""
    flags, blocks, rounds = zeros(6, dtype=np.uint32), 6, 4
    hostgpu.compile(source.text("device_limits/exchange.cu")).launch(
        "exchange_by_flags", (blocks,), (64,), [flags, np.int32(rounds), np.int32(blocks)], seed=seed, cooperative=True)
    np.testing.assert_array_equal(flags, [rounds] * 6)


@pytest.mark.few
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("body", ["atomicAdd(y, 1.0f);", "*(volatile float*)y = 1;", "y[blockIdx.x] = 1;",
                                  "reinterpret_cast<unsigned char*>(y)[blockIdx.x] = 1;"])
def test_what_is_no_race_between_blocks(body, seed):
    run(kernel("float* y", f"if (threadIdx.x == 0) {{ {body} }}"), zeros(16), grid=(8,), block=(32,), seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("between", ["__syncthreads();", "__syncwarp();"])
def test_within_a_warp(between, seed):
    """A shuffle exchanges values, but orders no memory."""
    np.testing.assert_array_equal(run(kernel("float* y", WARP.format(between)), zeros(32), block=(32,), seed=seed),
                                  ramp(32)[::-1])


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_take_turns_between_accesses(seed):
    """A thread that waits for a store of its neighbour, in a loop without a barrier, does not wait for ever."""
    body = "volatile float* v = y; if (threadIdx.x == 0) { while (v[1] == 0) {} v[0] = 2; } else { v[1] = 1; while (v[0] == 0) {} }"
    np.testing.assert_array_equal(run(kernel("float* y", body), zeros(2), block=(2,), seed=seed), [2, 1])


# Clusters of blocks that push into each other's shared memory -----------------------------------------------

BEGIN = """
    __shared__ float slot[2][CLUSTER];
    __shared__ Signal signals[2];
    const int rank = cluster_rank();
    if (threadIdx.x == 0) make_signal(signals[0]), make_signal(signals[1]);
    cluster_barrier();
"""
ROUND = """
    float sum = rank + 1;
    for (int round = 0; round < 4; ++round) {
        const int s = round & 1;
        if (threadIdx.x == 0) expect_at(signals[s], CLUSTER * 4);
        if (threadIdx.x < CLUSTER) push(&slot[s][rank], sum, int(threadIdx.x), signals[s]);
        wait_at(signals[s], round >> 1 & 1);
        sum = 0;
        for (int k = 0; k < CLUSTER; ++k) sum += slot[s][k];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
"""
TO_THE_NEXT = "if (threadIdx.x == 0) { y[(blockIdx.x + 1) % CLUSTER + blockIdx.x / CLUSTER * CLUSTER] = blockIdx.x; BARRIER y[blockIdx.x] += 1; }"
BROKEN_CLUSTERS = {  # a body, and what the machine says of it
    **{f"{new} for {old}": ((BEGIN + ROUND).replace(old, new), message) for old, new, message in (
        ("wait_at(signals[s], round >> 1 & 1);", "", "without a wait|a push over"),
        ("round >> 1 & 1", "~round >> 1 & 1", "without a wait|a push over"),
        ("cluster_barrier();", "__syncthreads();", "no barrier of the cluster|has not made|has not reached"),
        ("        __syncthreads();\n    }", "    }", "a push over what is read"),
        ("const int s = round & 1;", "const int s = 0;", "waits for ever|without a wait|a push over|expected twice|too few"),
        ("expect_at(signals[s], CLUSTER * 4)", "expect_at(signals[s], CLUSTER * 4 - 4)", "too few bytes"),
        ("expect_at(signals[s], CLUSTER * 4)", "expect_at(signals[s], CLUSTER * 4 + 4)", "waits for ever"),
        ("if (threadIdx.x == 0) expect_at", "expect_at", "expected twice"),
        ("if (threadIdx.x < CLUSTER) push", "if (threadIdx.x <= CLUSTER) push", "a push to block 4 of a cluster of 4"),
        ("if (threadIdx.x == 0) make_signal(signals[0])",
         "if (threadIdx.x == 0) make_signal(signals[0]), make_signal(signals[0])", "made twice"),
        ("make_signal(signals[1]);", "0;", "has not made"),
        ("push(&slot[s][rank]", "push(&slot[s][rank] + 2 * CLUSTER", "'slot': an access|not in shared memory"),
        ("push(&slot[s][rank]", "push(y + rank", "not in shared memory"),
        ("    if (threadIdx.x == 0) y", "    push(&slot[0][rank], sum, (rank + 1) % CLUSTER, signals[0]);\n    if (threadIdx.x == 0) y", "has ended|a push over"))},
    "a push over one that nobody reads": (BEGIN + """
        if (threadIdx.x == 0) expect_at(signals[0], CLUSTER * 8);
        for (int k = 0; k < 2; ++k)
            if (threadIdx.x < CLUSTER) push(&slot[0][rank], 1.0f, int(threadIdx.x), signals[0]);
        wait_at(signals[0], 0);""", "a push over one of which nobody has read anything"),
    "not aligned": (BEGIN + "push(reinterpret_cast<float2*>(&slot[0][1]), make_float2(1, 2), rank, signals[0]);",
                    "not aligned"),
    "one leaves": (BEGIN + "if (rank == 1) return; cluster_barrier();", "waits for ever at a barrier|returned while"),
    "no barrier": (TO_THE_NEXT.replace("BARRIER", ""), "race"),
}


def in_clusters(body, seed, blocks=BLOCKS, cluster=CLUSTER, **options):
    text = '#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)\n' + kernel("float* y",
        body).replace(" f(", " CLUSTERED f(", 1)
    return run(text, zeros(blocks), grid=(blocks,), block=(32,), defines={"CLUSTER": cluster, "THREADS": 32},
               seed=seed, **options)


@pytest.mark.long
def test_blocks_of_a_cluster_tell_each_other():
    for seed in MANY:
        np.testing.assert_array_equal(in_clusters(BEGIN + ROUND, seed),
                                      np.full(BLOCKS, sum(range(1, CLUSTER + 1)) * CLUSTER ** 3))


@pytest.mark.parametrize("name", BROKEN_CLUSTERS)
def test_what_is_broken_in_a_cluster(name):
    body, message = BROKEN_CLUSTERS[name]
    assert body != BEGIN + ROUND
    for seed in MANY:
        with pytest.raises(HostGpuError, match=message):
            in_clusters(body, seed)


def test_stores_before_a_barrier_of_the_cluster_are_seen_behind_it():
    before = (np.arange(BLOCKS) - 1) % CLUSTER + np.arange(BLOCKS) // CLUSTER * CLUSTER
    for seed in MANY:
        np.testing.assert_array_equal(in_clusters(TO_THE_NEXT.replace("BARRIER",
            "cluster_barrier();") + " else cluster_barrier();", seed), before + 1)


def test_grids_of_whole_clusters_of_a_size_that_was_asked_for():
    for options, message in (({"blocks": 6}, "expected a grid of whole clusters of 4 blocks"),
                             ({"cluster": 16, "blocks": 16},
                              "at most 8 blocks of a cluster without asking for more, found 16")):
        with pytest.raises(HostGpuError, match=message):
            in_clusters(BEGIN, 0, **options)
    in_clusters(BEGIN, 0, cluster=16, blocks=16, most_cluster=16)
