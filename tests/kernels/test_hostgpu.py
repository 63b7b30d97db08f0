"""The machine that runs kernels on the CPU: it computes what a GPU computes, with barriers and shuffles as a GPU has them."""

import sys

import numpy as np
import pytest

from duoln.testing import hostgpu
from duoln.testing.hostgpu import HostGpuError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")

TOTAL = """
extern "C" __global__ void total(const float* __restrict__ x, float* y, int n) {
    __shared__ float part[4];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    for (int by = 16; by; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = part[0] + part[1] + part[2] + part[3];
}
"""
SEEDS = range(6)


def _total(text, x, seed):
    y = np.full(len(x), np.nan, np.float32)
    hostgpu.compile(text).launch("total", (len(x),), (128,), [x, y, np.int32(x.shape[1])], seed=seed)
    return y


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_shuffles_shared_memory_and_barriers(seed, rng):
    x = rng.standard_normal((9, 1000)).astype(np.float32)
    np.testing.assert_allclose(_total(TOTAL, x, seed), x.sum(1), atol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_barrier_is_an_error(seed, rng):
    x = rng.standard_normal((9, 1000)).astype(np.float32)
    with pytest.raises(HostGpuError, match=r"shared memory 'part' at byte .* race, no barrier between them"):
        _total(TOTAL.replace("__syncthreads();", ""), x, seed)


def test_a_seed_repeats_and_seeds_differ(rng):
    """Blocks add their floats atomically: their order is the seed's, and so is the last bit of the sum."""
    text = 'extern "C" __global__ void f(const float* x, float* y) { if (threadIdx.x == 0) atomicAdd(y, x[blockIdx.x]); }'
    program, x = hostgpu.compile(text), rng.standard_normal(64).astype(np.float32)
    sums = []
    for seed in (*range(20), *range(20)):
        y = np.zeros(1, np.float32)
        program.launch("f", (64,), (32,), [x, y], seed=seed)
        sums.append(float(y[0]))
    assert sums[:20] == sums[20:]
    assert len(set(sums)) > 1


@pytest.mark.parametrize("seed", [0, 1])
def test_reads_and_writes_outside_an_array(seed, rng):
    x = rng.standard_normal((2, 4096)).astype(np.float32)
    with pytest.raises(HostGpuError, match=r"argument 'x': an access \d+ bytes from its start; it has 32768"):
        _total(TOTAL.replace("i < n;", "i < n + 2048;"), x, seed)
    with pytest.raises(HostGpuError, match="argument 'y'"):
        _total(TOTAL.replace("y[blockIdx.x]", "y[blockIdx.x + 2]"), x, seed)
    with pytest.raises(HostGpuError, match="argument 'y'"):
        _total(TOTAL.replace("y[blockIdx.x]", "y[int(blockIdx.x) - 2]"), x, seed)


def test_uninitialised_shared_memory_is_nan():
    text = 'extern "C" __global__ void f(float* y) { __shared__ float s[32]; y[threadIdx.x] = s[threadIdx.x]; }'
    for _ in range(2):  # every block, not only the first that this process runs
        y = np.zeros(32, np.float32)
        hostgpu.compile(text).launch("f", (1,), (32,), [y])
        assert np.isnan(y).all()


def test_dynamic_shared_memory_belongs_to_a_block():
    text = """
    extern "C" __global__ void f(float* y) {
        extern __shared__ float s[];
        if (threadIdx.x == 0) s[5] = blockIdx.x;
        __syncthreads();
        y[blockIdx.x * blockDim.x + threadIdx.x] = s[5];
    }"""
    y = np.zeros((3, 64), np.float32)
    hostgpu.compile(text).launch("f", (3,), (64,), [y], shared=64)
    np.testing.assert_array_equal(y, np.repeat([[0], [1], [2]], 64, axis=1))


@pytest.mark.parametrize(("body", "message"), [
    ("if (threadIdx.x < 32) __syncthreads();", "barrier"),
    ("if (threadIdx.x < 7) return; __syncthreads();", "barrier"),
    ("if (threadIdx.x < 7) return; __shfl_xor_sync(0xffffffffu, 1, 1);", "returned|waits for ever"),
    ("if (threadIdx.x < 7) __shfl_xor_sync(0xffffffffu, 1, 1); else __syncthreads();", "waits for ever"),
    ("__shfl_xor_sync(0xffu, 1, 1);", "does not name"),
    ("cooperative_groups::this_grid().sync();", "not cooperative")])
def test_what_hangs_on_a_gpu_is_an_error_here(body, message):
    text = f'extern "C" __global__ void f(float* y) {{ {body} }}'
    with pytest.raises(HostGpuError, match=message):
        hostgpu.compile(text).launch("f", (1,), (64,), [np.zeros(64, np.float32)])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_of_the_whole_grid(seed):
    text = """
    #include <cooperative_groups.h>
    extern "C" __global__ void f(int* counts, int* y) {
        __shared__ int own;
        if (threadIdx.x == 0) own = blockIdx.x;
        atomicAdd(&counts[0], 1);
        cooperative_groups::this_grid().sync();
        y[blockIdx.x * blockDim.x + threadIdx.x] = counts[0] * 100 + own;
    }"""
    counts, y = np.zeros(1, np.int32), np.zeros((4, 64), np.int32)
    program = hostgpu.compile(text)
    with pytest.raises(HostGpuError, match="not cooperative"):
        program.launch("f", (4,), (64,), [counts, y], seed=seed, cooperative=False)
    counts[:] = 0
    program.launch("f", (4,), (64,), [counts, y], seed=seed, cooperative=True)
    np.testing.assert_array_equal(y, 25600 + np.repeat(np.arange(4)[:, None], 64, axis=1))


def test_votes_and_segments_of_a_warp():
    text = """
    extern "C" __global__ void f(unsigned* votes, int* down, int* up, int* from) {
        int lane = threadIdx.x;
        votes[lane] = __ballot_sync(0xffffffffu, lane % 3 == 0);
        down[lane] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
        up[lane] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
        from[lane] = __shfl_sync(0xffffffffu, lane, 2, 16);
    }"""
    votes, lanes = np.zeros(32, np.uint32), np.arange(32)
    down, up, source = (np.zeros(32, np.int32) for _ in range(3))
    hostgpu.compile(text).launch("f", (1,), (32,), [votes, down, up, source])
    assert set(votes) == {sum(1 << k for k in range(0, 32, 3))}
    np.testing.assert_array_equal(down, np.where(lanes % 8 + 3 < 8, lanes + 3, lanes))
    np.testing.assert_array_equal(up, np.where(lanes % 8 >= 3, lanes - 3, lanes))
    np.testing.assert_array_equal(source, lanes // 16 * 16 + 2)


def test_a_kernel_that_does_not_compile():
    with pytest.raises(HostGpuError, match="nonsense"):
        hostgpu.compile('extern "C" __global__ void f() { nonsense(); }')


# Metal's words: a barrier orders the memory that it names, and nothing else ---------------------------

TURN = """extern "C" __global__ void f(const float* x, float* y, float* z) {
    __shared__ float part[64];
    const int t = thread_index_in_threadgroup;
    part[t] = x[t];
    y[t] = x[t];
    metal::threadgroup_barrier(FLAGS);
    z[t] = part[63 - t] + (BOTH ? y[63 - t] : 0);
}"""


def _turn(flags, both):
    x, y, z = np.arange(64, dtype=np.float32), np.zeros(64, np.float32), np.zeros(64, np.float32)
    text = TURN.replace("FLAGS", " | ".join(f"metal::mem_flags::mem_{f}" for f in flags)).replace("BOTH", str(int(both)))
    hostgpu.compile(text, prelude="metal.h").launch("f", (1,), (64,), [x, y, z], seed=1)
    return z


def test_a_barrier_orders_what_it_names():
    np.testing.assert_array_equal(_turn(["threadgroup"], False), np.arange(63, -1, -1))
    np.testing.assert_array_equal(_turn(["threadgroup", "device"], True), 2 * np.arange(63, -1, -1))


@pytest.mark.parametrize(("flags", "both", "name"), [(["none"], False, "part"), (["device"], False, "part"),
                                                     (["threadgroup"], True, "y")])
def test_a_barrier_does_not_order_the_rest(flags, both, name):
    with pytest.raises(HostGpuError, match=f"'{name}' at byte .* race, no barrier"):
        _turn(flags, both)


def test_a_simd_group_needs_all_its_lanes():
    text = 'extern "C" __global__ void f(float* y) { if (thread_index_in_threadgroup < 16) y[0] = metal::simd_sum(1.0f); }'
    with pytest.raises(HostGpuError, match=r"returned|waits for ever"):
        hostgpu.compile(text, prelude="metal.h").launch("f", (1,), (32,), [np.zeros(1, np.float32)])


def test_a_threadgroup_has_32_kb():
    text = 'extern "C" __global__ void f(float* y) { __shared__ float s[8200]; s[0] = 1; y[0] = s[0]; }'
    with pytest.raises(HostGpuError, match="expected at most 32768 bytes declared"):
        hostgpu.compile(text, prelude="metal.h").launch("f", (1,), (1,), [np.zeros(1, np.float32)])
