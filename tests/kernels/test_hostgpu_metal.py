"""Metal's words on the machine: a barrier orders the memory that it names, and nothing else."""

import sys

import hostgpu
import numpy as np
import pytest
from hostgpu import HostGpuError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")

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
