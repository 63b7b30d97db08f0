"""What the machine takes for an order between two accesses: barriers, and a fence, a flag and a fence."""

import sys

import numpy as np
import pytest

from duoln.kernels import source
from duoln.testing import hostgpu
from duoln.testing.hostgpu import HostGpuError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")

SEEDS = range(10)


def _launch(body, arrays, grid, block, seed, **options):
    names = ", ".join(f"{'unsigned' if a.dtype == np.uint32 else 'float'}* {name}" for name, a in arrays.items())
    program = hostgpu.compile(f'extern "C" __global__ void f({names}) {{ {body} }}')
    program.launch("f", (grid,), (block,), list(arrays.values()), seed=seed, **options)


@pytest.mark.few
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("entry", ["exchange_by_counter", "exchange_by_flags"])
def test_blocks_wait_for_each_other_by_flags(entry, seed):
    """Our own exchanges, of blocks that are there at once."""
    flags, blocks, rounds = np.zeros(6, np.uint32), 6, 4
    program = hostgpu.compile(source.text("device_limits/exchange.cu"))
    program.launch(entry, (blocks,), (64,), [flags[:1] if "counter" in entry else flags, np.int32(rounds), np.int32(blocks)], seed=seed,
                   cooperative=True)
    np.testing.assert_array_equal(flags, [blocks * rounds] + [0] * 5 if "counter" in entry else [rounds] * 6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flag_that_nobody_writes(seed):
    with pytest.raises(HostGpuError, match="waits for ever at a flag that nobody writes"):
        _launch("while (*(volatile unsigned*)flag < 2) {} ", {"flag": np.zeros(1, np.uint32)}, 2, 32, seed)


def test_blocks_that_are_not_there_at_once_cannot_wait_for_each_other():
    """Sixteen blocks wait for the last: no seed has all of them at once."""
    body = "if (threadIdx.x) return; atomicAdd(count, 1u); while (*(volatile unsigned*)count < gridDim.x) {}"
    for seed in SEEDS:
        with pytest.raises(HostGpuError, match="a block that has not begun cannot"):
            _launch(body, {"count": np.zeros(1, np.uint32)}, 16, 32, seed)
        _launch(body, {"count": np.zeros(1, np.uint32)}, 16, 32, seed, cooperative=True)


@pytest.mark.few
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("body", [
    "y[0] += 1;", "y[0] = 1;", "if (blockIdx.x == 0) y[0] = 1; else y[1 + blockIdx.x] = y[0];",
    "if (blockIdx.x == 0) y[0] = 1; else y[1 + blockIdx.x] = *(volatile float*)y;",
    "if (blockIdx.x == 0) *(volatile float*)y = 1; else y[1 + blockIdx.x] = y[0];",
    "if (blockIdx.x == 0) atomicAdd(y, 1.0f); else y[1 + blockIdx.x] = y[0];"])
def test_two_blocks_at_one_address(body, seed):
    with pytest.raises(HostGpuError, match=r"'y' at byte 0: .* race"):
        _launch(f"if (threadIdx.x == 0) {{ {body} }}", {"y": np.zeros(16, np.float32)}, 8, 32, seed)


@pytest.mark.few
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("body", ["atomicAdd(y, 1.0f);", "*(volatile float*)y = 1;", "y[blockIdx.x] = 1;",
                                  "reinterpret_cast<unsigned char*>(y)[blockIdx.x] = 1;"])
def test_what_is_no_race_between_blocks(body, seed):
    _launch(f"if (threadIdx.x == 0) {{ {body} }}", {"y": np.zeros(16, np.float32)}, 8, 32, seed)


@pytest.mark.few
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("between", "ordered"), [("__syncthreads();", True), ("__syncwarp();", True), ("", False),
                                                  ("__shfl_xor_sync(0xffffffffu, 1, 1);", False)])
def test_within_a_warp(between, ordered, seed):
    """A shuffle exchanges values, but orders no memory."""
    y = np.zeros(32, np.float32)
    body = f"y[threadIdx.x] = threadIdx.x; {between} const float v = y[31 - threadIdx.x]; __syncwarp(); y[threadIdx.x] = v;"
    if not ordered:
        with pytest.raises(HostGpuError, match=r"'y' at byte .* of its own block"):
            _launch(body, {"y": y}, 1, 32, seed)
        return
    _launch(body, {"y": y}, 1, 32, seed)
    np.testing.assert_array_equal(y, np.arange(31, -1, -1))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_of_the_grid_orders_all(seed):
    y, total = np.zeros(4 * 32, np.float32), np.zeros(4 * 32, np.float32)
    body = """const int i = blockIdx.x * 32 + threadIdx.x; y[i] = i; {} total[i] = y[127 - i];"""
    _launch(body.format("cooperative_groups::this_grid().sync();"), {"y": y, "total": total}, 4, 32, seed, cooperative=True)
    np.testing.assert_array_equal(total, np.arange(127, -1, -1))
    with pytest.raises(HostGpuError, match=r"'y' at byte .* of block"):
        _launch(body.format("__syncthreads();"), {"y": np.zeros_like(y), "total": total}, 4, 32, seed, cooperative=True)


def test_a_store_without_a_fence_is_seen_late():
    """Two volatile stores: with a fence between them no block sees the second without the first."""
    body = """volatile float* v = y; if (threadIdx.x) return;
        if (blockIdx.x == 0) {{ v[0] = 1; {} v[1] = 1; }}
        else {{ const float second = v[1], first = v[0]; seen[blockIdx.x] = second - first; }}"""
    turned = {"": 0, "__threadfence();": 0}
    for fence in turned:
        for seed in range(60):
            arrays = {"y": np.zeros(2, np.float32), "seen": np.zeros(9, np.float32)}
            _launch(body.format(fence), arrays, 9, 32, seed, cooperative=True)
            turned[fence] += bool((arrays["seen"] > 0).any())
    assert turned[""] > 0 and turned["__threadfence();"] == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_take_turns_between_accesses(seed):
    """A thread that waits for a store of its neighbour, in a loop without a barrier, does not wait for ever."""
    body = """volatile float* v = y;
        if (threadIdx.x == 0) { while (v[1] == 0) {} v[0] = 2; } else { v[1] = 1; while (v[0] == 0) {} }"""
    y = np.zeros(2, np.float32)
    _launch(body, {"y": y}, 1, 2, seed)
    np.testing.assert_array_equal(y, [2, 1])


def test_different_seeds_give_racing_blocks_different_turns():
    """Eight blocks that ask, by volatile accesses, who was there before them."""
    orders = set()
    for seed in range(20):
        y = np.zeros(9, np.float32)
        _launch("volatile float* v = y; if (threadIdx.x == 0) { const float n = v[0]; v[0] = n + 1; y[1 + blockIdx.x] = n; }",
                {"y": y}, 8, 32, seed)
        orders.add(tuple(y))
    assert len(orders) > 5
