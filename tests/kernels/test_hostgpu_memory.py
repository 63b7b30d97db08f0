"""Where the machine puts arrays: at their address modulo 256, together where they overlap, with NaN on both sides."""

import sys

import numpy as np
import pytest

from duoln.testing import hostgpu
from duoln.testing.hostgpu import HostGpuError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")

SEEDS = range(8)
ADDRESS = """extern "C" __global__ void f(const float* x, unsigned long long* at) {
    *at = reinterpret_cast<unsigned long long>(x);
}"""
VECTOR = """extern "C" __global__ void f(const float* x, float* y) {
    const float4 v = *reinterpret_cast<const float4*>(x);
    y[0] = v.x + v.y + v.z + v.w;
}"""
SCALE = """extern "C" __global__ void f(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}"""


def _device_address(x, seed):
    at = np.zeros(1, np.int64)
    hostgpu.compile(ADDRESS).launch("f", (1,), (1,), [x, at], seed=seed)
    return int(at[0])


@pytest.mark.parametrize("first", [0, 1, 3, 4, 63])
def test_an_array_keeps_its_address_modulo_256(first):
    x = np.zeros(1000, np.float32)[first:]
    for seed in SEEDS:
        assert _device_address(x, seed) % 256 == x.ctypes.data % 256


def test_the_seed_decides_on_which_side_of_its_pages_an_array_lies():
    x = np.zeros(100, np.float32)
    assert len({_device_address(x, seed) % 4096 for seed in range(40)}) == 2


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_vector_access_that_is_not_aligned(first):
    x = np.zeros(64, np.float32)
    start = -x.ctypes.data % 16 // 4
    y = np.zeros(1, np.float32)
    hostgpu.compile(VECTOR).launch("f", (1,), (1,), [x[start:start + 8], y])
    with pytest.raises(HostGpuError, match="argument 'x' at byte 0: expected an address that 16 divides"):
        hostgpu.compile(VECTOR).launch("f", (1,), (1,), [x[start + first:start + first + 8], y])


def test_arguments_that_overlap_share_their_memory(rng):
    x = rng.standard_normal(300).astype(np.float32)
    whole, expected = x.copy(), x.copy()
    expected[100:228] = 2 * x[100:228]
    hostgpu.compile(SCALE).launch("f", (1,), (128,), [whole[100:228], whole[100:228], np.int32(128)])
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_overlapping_arguments_race_as_one_array_does(seed, rng):
    """x[i + 1] is read by one thread and written by its neighbour."""
    x = rng.standard_normal(129).astype(np.float32)
    with pytest.raises(HostGpuError, match=r"'[xy]' at byte .* race"):
        hostgpu.compile(SCALE).launch("f", (2,), (64,), [x[1:], x[:-1], np.int32(128)], seed=seed)


@pytest.mark.parametrize(("kinds", "message"), [
    (("const float* __restrict__", "float*"), "'x' is read through the read-only path .* 'y', which overlaps it, is written"),
    (("const float*", "float* __restrict__"), r"'x' is accessed \(__restrict__\) while argument 'y', which overlaps it"),
    (("float* __restrict__", "float* __restrict__"), "'x' is accessed")])
def test_a_promise_not_to_overlap_is_kept(kinds, message, rng):
    text = SCALE.replace("const float* x, float* y", f"{kinds[0]} x, {kinds[1]} y")
    x = rng.standard_normal(64).astype(np.float32)
    hostgpu.compile(text).launch("f", (1,), (64,), [x, np.zeros_like(x), np.int32(64)])
    for seed in SEEDS:
        with pytest.raises(HostGpuError, match=message):
            hostgpu.compile(text).launch("f", (1,), (64,), [x, x, np.int32(64)], seed=seed)


def test_read_only_arguments_may_be_one_array():
    text = """extern "C" __global__ void f(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ y) {
        y[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x];
    }"""
    a, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    hostgpu.compile(text).launch("f", (1,), (32,), [a, a, y])
    np.testing.assert_array_equal(y, 2 * a)


def test_a_store_through_a_pointer_to_const():
    text = 'extern "C" __global__ void f(const float* x) { const_cast<float*>(x)[0] = 1; }'
    with pytest.raises(HostGpuError, match="'x': a store through a pointer to const"):
        hostgpu.compile(text).launch("f", (1,), (1,), [np.zeros(4, np.float32)])


@pytest.mark.parametrize("at", [-2000, -1, 33, 5000])
def test_an_access_on_either_side(at):
    text = f'extern "C" __global__ void f(const float* x, float* y) {{ y[0] = x[{at}]; }}'
    for seed in SEEDS:
        with pytest.raises(HostGpuError, match=f"'x': an access {4 * at} bytes from its start; it has 132"):
            hostgpu.compile(text).launch("f", (1,), (1,), [np.zeros(33, np.float32), np.zeros(1, np.float32)], seed=seed)


def test_what_lies_beside_an_array_is_nan_where_no_access_is_seen():
    """Assembly is not seen: what it reads beside an array is NaN, and what it writes there is found."""
    text = """extern "C" __global__ void f(float* x, float* y, int at, int store) {
        float v;
        if (store) asm volatile("movl $1065353216, (%0)" :: "r"(x + at) : "memory");
        else asm volatile("movss (%1), %0" : "=x"(v) : "r"(x + at));
        y[0] = v;
    }"""
    program, room = hostgpu.compile(text), np.zeros(512, np.float32)
    start = -room.ctypes.data % 256 // 4
    x = room[start + 8:start + 41]
    for at in (-1, 33):
        y = np.zeros(1, np.float32)
        program.launch("f", (1,), (1,), [x, y, np.int32(at), np.int32(0)])
        assert np.isnan(y[0])
        with pytest.raises(HostGpuError, match=f"'x': something was written {'before' if at < 0 else 'behind'} the array"):
            program.launch("f", (1,), (1,), [x, y, np.int32(at), np.int32(1)])


TABLE = """extern "C" __global__ void f(const unsigned long long* table, int n) {
    float* x = reinterpret_cast<float*>(table[blockIdx.x]);
    if (threadIdx.x < n) x[threadIdx.x] += 1 + blockIdx.x;
}"""


def test_a_table_of_addresses():
    arrays = [np.zeros(5, np.float32), np.zeros(7, np.float32)]
    table = np.array([a.ctypes.data for a in arrays], np.uint64)
    program = hostgpu.compile(TABLE)
    program.launch("f", (2,), (32,), [table, np.int32(5)], reachable=arrays)
    np.testing.assert_array_equal(table, [a.ctypes.data for a in arrays])
    np.testing.assert_array_equal(arrays[0], np.ones(5))
    np.testing.assert_array_equal(arrays[1], [2] * 5 + [0] * 2)
    with pytest.raises(HostGpuError, match="'an array of the table': an access 20 bytes from its start; it has 20"):
        program.launch("f", (2,), (32,), [table, np.int32(6)], reachable=arrays)
    with pytest.raises(HostGpuError, match=r"'table': expected addresses of arrays, found .* at 1"):
        program.launch("f", (2,), (32,), [table, np.int32(5)], reachable=arrays[:1])


def test_arguments_that_are_none():
    text = 'extern "C" __global__ void f(float* x, int n) { x[0] = n; }'
    program = hostgpu.compile(text)
    for wrong, message in (([np.zeros((4, 4), np.float32)[:, 1], np.int32(1)], "contiguous"),
                           ([np.float32(1), np.int32(1)], "float32"), ([np.zeros(1, np.float32), None], "NoneType"),
                           ([np.zeros(1, np.float32)], "expected 2 arguments, found 1")):
        with pytest.raises(HostGpuError, match=message):
            program.launch("f", (1,), (1,), wrong)
    with pytest.raises(HostGpuError, match=r"null pointer|0, which belongs to no array"):
        program.launch("f", (1,), (1,), [None, np.int32(1)])
