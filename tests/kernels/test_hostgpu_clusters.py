"""What the machine finds where blocks of a cluster push into each other's shared memory, in small kernels."""

import sys

import numpy as np
import pytest

from duoln.kernels import source
from duoln.testing import hostgpu
from duoln.testing.hostgpu import HostGpuError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")

SEEDS = range(20)
CLUSTER, BLOCKS = 4, 8
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


def _launch(body, seed, threads=32, blocks=BLOCKS, **options):
    program = hostgpu.compile('#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)\n'
                              f'extern "C" __global__ void CLUSTERED f(float* y) {{ {body} }}',
                              {"CLUSTER": options.pop("cluster", CLUSTER), "THREADS": threads})
    y = np.zeros(blocks, np.float32)
    program.launch("f", (blocks,), (threads,), [y], seed=seed, **options)
    return y


def _fails(body, message, **options):
    for seed in SEEDS:
        with pytest.raises(HostGpuError, match=message):
            _launch(body, seed, **options)


@pytest.mark.long
def test_blocks_tell_each_other():
    first = sum(range(1, CLUSTER + 1))
    for seed in SEEDS:
        np.testing.assert_array_equal(_launch(BEGIN + ROUND, seed), np.full(BLOCKS, first * CLUSTER ** 3))


@pytest.mark.parametrize(("old", "new", "message"), [
    ("wait_at(signals[s], round >> 1 & 1);", "", "without a wait|a push over"),
    ("round >> 1 & 1", "~round >> 1 & 1", "without a wait|a push over"),
    ("cluster_barrier();", "__syncthreads();", "no barrier of the cluster|has not made|has not reached"),
    ("        __syncthreads();\n    }", "    }", "a push over what is read"),
    ("const int s = round & 1;", "const int s = 0;", "waits for ever|without a wait|a push over|expected twice|too few"),
    ("expect_at(signals[s], CLUSTER * 4)", "expect_at(signals[s], CLUSTER * 4 - 4)", "too few bytes"),
    ("expect_at(signals[s], CLUSTER * 4)", "expect_at(signals[s], CLUSTER * 4 + 4)", "waits for ever"),
    ("if (threadIdx.x == 0) expect_at", "expect_at", "expected twice"),
    ("if (threadIdx.x < CLUSTER) push", "if (threadIdx.x <= CLUSTER) push", "a push to block 4 of a cluster of 4"),
    ("if (threadIdx.x == 0) make_signal(signals[0])", "if (threadIdx.x == 0) make_signal(signals[0]), make_signal(signals[0])",
     "made twice"),
    ("make_signal(signals[1]);", "0;", "has not made"),
    ("push(&slot[s][rank]", "push(&slot[s][rank] + 2 * CLUSTER", "'slot': an access|not in shared memory"),
    ("push(&slot[s][rank]", "push(y + rank", "not in shared memory"),
    ("    if (threadIdx.x == 0) y", "    push(&slot[0][rank], sum, (rank + 1) % CLUSTER, signals[0]);\n    if (threadIdx.x == 0) y",
     "has ended|a push over")])
def test_what_is_broken(old, new, message):
    text = BEGIN + ROUND
    assert old in text
    _fails(text.replace(old, new), message)


def test_a_push_that_nobody_reads_and_one_over_it():
    _fails(BEGIN + """
        if (threadIdx.x == 0) expect_at(signals[0], CLUSTER * 8);
        for (int k = 0; k < 2; ++k)
            if (threadIdx.x < CLUSTER) push(&slot[0][rank], 1.0f, int(threadIdx.x), signals[0]);
        wait_at(signals[0], 0);""", "a push over one of which nobody has read anything")


def test_a_push_that_is_not_aligned():
    _fails(BEGIN + "push(reinterpret_cast<float2*>(&slot[0][1]), make_float2(1, 2), rank, signals[0]);", "not aligned")


def test_one_that_leaves_before_the_barrier():
    _fails(BEGIN + "if (rank == 1) return; cluster_barrier();", "waits for ever at a barrier|returned while")


def test_stores_before_a_barrier_of_the_cluster_are_seen_behind_it():
    body = "y[(blockIdx.x + 1) % CLUSTER + blockIdx.x / CLUSTER * CLUSTER] = blockIdx.x; cluster_barrier(); y[blockIdx.x] += 1;"
    for seed in SEEDS:
        before = (np.arange(BLOCKS) - 1) % CLUSTER + np.arange(BLOCKS) // CLUSTER * CLUSTER
        np.testing.assert_array_equal(_launch(f"if (threadIdx.x == 0) {{ {body} }} else cluster_barrier();", seed), before + 1)
    _fails(f"if (threadIdx.x == 0) {{ {body} }}".replace("cluster_barrier();", ""), "race")


@pytest.mark.long
@pytest.mark.parametrize("width", [4, 8, 16, 1024])
def test_what_measures_pushes(width):
    program = hostgpu.compile(source.text("device_limits/push.cu"), {"CLUSTER": CLUSTER, "THREADS": 256, "WIDTH": width})
    for seed in range(3):
        heard = np.zeros(CLUSTER, np.uint32)
        program.launch("push_in_cluster", (CLUSTER,), (256,), [heard, np.int32(5)], seed=seed)
        np.testing.assert_array_equal(heard, 5)


def test_grids_of_whole_clusters_of_a_size_that_was_asked_for():
    _fails(BEGIN, "expected a grid of whole clusters of 4 blocks", blocks=6)
    _fails(BEGIN, "at most 8 blocks of a cluster without asking for more, found 16", cluster=16, blocks=16)
    _launch(BEGIN, 0, cluster=16, blocks=16, most_cluster=16)
