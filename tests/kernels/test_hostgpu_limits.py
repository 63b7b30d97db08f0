"""What a launch may have: shared memory, threads; and what CuPy's stand-in hands over."""

import os
import sys
import warnings

import numpy as np
import pytest
import stand_in_cupy
from conftest import GPU, STAND_IN

from duoln.errors import KernelError
from duoln.kernels import source
from duoln.kernels.registry import every_case
from duoln.testing import check_error, hostgpu, selftest
from duoln.testing.hostgpu import HostGpuError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")

GIVEN = """extern "C" __global__ void f(float* y) {
    extern __shared__ float s[];
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[threadIdx.x];
}"""


def _declared(floats):
    return f'extern "C" __global__ void f(float* y) {{ __shared__ float s[{floats}]; s[0] = 1; y[0] = s[0]; }}'


def test_dynamic_shared_memory_of_more_than_48_kb_has_to_be_asked_for():
    program, y, much = hostgpu.compile(GIVEN), np.zeros(32, np.float32), (48 << 10) + 16
    program.launch("f", (1,), (32,), [y], shared=48 << 10)
    with pytest.raises(HostGpuError, match="expected at most 49152 bytes of dynamic shared memory without asking"):
        program.launch("f", (1,), (32,), [y], shared=much)
    program.launch("f", (1,), (32,), [y], shared=much, most_shared=much)


def test_declared_shared_memory_of_more_than_48_kb():
    y = np.zeros(1, np.float32)
    hostgpu.compile(_declared(12 << 10)).launch("f", (1,), (1,), [y])
    with pytest.raises(HostGpuError, match="'s': expected at most 49152 bytes declared in a block, found 49156"):
        hostgpu.compile(_declared((12 << 10) + 1)).launch("f", (1,), (1,), [y])
    with pytest.raises(HostGpuError, match="'s': expected at most 49152 bytes in a block without asking"):
        hostgpu.compile(_declared(12 << 10)).launch("f", (1,), (1,), [y], shared=16)


@pytest.mark.parametrize("at", [-1, 4, 40, 100, 5000])
def test_a_store_beside_a_shared_array(at):
    text = f'extern "C" __global__ void f(float* y) {{ __shared__ float a[4], b[4]; a[{at}] = 1; b[0] = 1; y[0] = b[0]; }}'
    with pytest.raises(HostGpuError, match=f"shared memory 'a': an access {4 * at} bytes from its start; it has 16"):
        hostgpu.compile(text).launch("f", (1,), (1,), [np.zeros(1, np.float32)])


def test_an_access_behind_dynamic_shared_memory():
    with pytest.raises(HostGpuError, match=r"'extern __shared__': an access [0-9]+ bytes from its start; it has 64"):
        hostgpu.compile(GIVEN).launch("f", (1,), (32,), [np.zeros(32, np.float32)], shared=64)


def test_each_instance_of_a_template_and_each_block_has_its_own():
    text = """template <int N> __device__ float* mine() { __shared__ float s[N]; return s; }
    extern "C" __global__ void f(float* y) {
        if (threadIdx.x == 0) mine<2>()[0] = blockIdx.x, mine<3>()[0] = 100;
        __syncthreads();
        y[blockIdx.x * blockDim.x + threadIdx.x] = mine<2>()[0] + mine<3>()[0];
    }"""
    y = np.zeros((5, 64), np.float32)
    hostgpu.compile(text).launch("f", (5,), (64,), [y], seed=3)
    np.testing.assert_array_equal(y, 100 + np.repeat(np.arange(5)[:, None], 64, axis=1))


def test_launch_bounds():
    text = '#define MOST 64\nextern "C" __global__ void __launch_bounds__(MOST) f(float* y) { y[threadIdx.x] = 1; }'
    y = np.zeros(128, np.float32)
    hostgpu.compile(text).launch("f", (1,), (64,), [y])
    with pytest.raises(HostGpuError, match="too many resources requested for launch: expected at most 64 threads"):
        hostgpu.compile(text).launch("f", (1,), (65,), [y])


@pytest.mark.parametrize(("grid", "block"), [((1,), (1025,)), ((1,), (1, 1, 65)), ((1, 65_536), (1,)), ((1,), (32, 33))])
def test_sizes_that_no_device_has(grid, block):
    with pytest.raises(HostGpuError, match="expected at most"):
        hostgpu.compile(GIVEN).launch("f", grid, block, [np.zeros(2048, np.float32)], shared=16 << 10)


# Through the stand-in -------------------------------------------------------------------------------------

MISALIGNED = next(c for c in every_case() if "5 x 128, mean 10, no bias, misaligned" in str(c))


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN, reason="a kernel that reads at a wrong address could take a real device with it")
def test_a_rule_that_ignores_addresses_fails(gpu, monkeypatch):
    from duoln.kernels import norm
    from duoln.kernels.launch import cuda

    assert selftest.prove(MISALIGNED, gpu).passed
    monkeypatch.setattr(norm, "_vector", lambda width, aligned: 4 if width % 4 == 0 else 1)
    for layouts in cuda.Layouts.every:
        monkeypatch.setattr(layouts, "known", {})
    check_error(KernelError, lambda: selftest.prove(MISALIGNED, gpu), "argument 'x'", "an address that 16 divides")


@pytest.mark.skipif(GPU != STAND_IN, reason="only the stand-in refuses an address that it did not give")
def test_a_table_with_an_address_of_no_array(gpu, monkeypatch):
    from duoln.kernels.tensors import Tensors

    class Moved(Tensors):
        def __init__(self, roles, first):
            super().__init__(roles, first)
            self.by_value["at"][0, :, :len(roles[0])] += np.uint64(4)

    case = next(c for c in every_case() if c.op == "adam_update")
    assert selftest.prove(case, gpu).passed
    monkeypatch.setattr("duoln.kernels.adam.cupy.Tensors", Moved)
    check_error(KernelError, lambda: selftest.prove(case, gpu), "argument 'tensors'", "expected addresses of arrays")


def test_blocks_of_a_cooperative_launch_are_there_at_once():
    """As CuPy has it: `enable_cooperative_groups` of the module."""
    cupy, flags = stand_in_cupy.make(), np.zeros(12, np.uint32).view(stand_in_cupy.ndarray)
    text = source.text("device_limits/exchange.cu")
    cupy.RawModule(code=text, enable_cooperative_groups=True).get_function("exchange_by_flags")(
        (12,), (32,), (flags, np.int32(2), np.int32(12)))
    np.testing.assert_array_equal(flags.view(np.ndarray), [2] * 12)
    with pytest.raises(HostGpuError, match="a block that has not begun cannot"):
        cupy.RawModule(code=text).get_function("exchange_by_flags")((12,), (32,), (flags, np.int32(4), np.int32(12)))


def test_a_forked_process_launches_by_itself():
    """It shares no memory with its parent, whose next launch finds its own."""
    text = 'extern "C" __global__ void f(float* y) { y[threadIdx.x] += 1; }'
    program, y = hostgpu.compile(text), np.zeros(64, np.float32)
    program.launch("f", (1,), (64,), [y])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # BLAS has threads, which the child does not need
        child = os.fork()
    if not child:
        program.launch("f", (1,), (64,), [y])
        os._exit(0 if (y == 2).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    program.launch("f", (1,), (64,), [y])
    np.testing.assert_array_equal(y, np.full(64, 2))
