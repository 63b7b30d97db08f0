"""Launches of CUDA kernels, and the source loader: arguments that do not fit a declaration never reach the GPU."""

import numpy as np
import pytest

from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import columns, source
from duoln.kernels.launch import Launch
from duoln.kernels.launch.declared import Layout
from duoln.testing import check_error

SCALE = "x: own[rows, width], bias: real[rows, width]?, by: float32, blocks: int32, threads: int32"
TEXT = """
ENTRY(scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * width) x[i] = x[i] * by + (bias ? bias[i] : 0);
}
"""


def plan(blocks, threads):
    return Layout((blocks,), (threads,), {"A": threads % 3})


@pytest.fixture
def launch(gpu, tmp_path, monkeypatch):
    """The launcher's module, reading kernels from a folder of this test."""
    from duoln.kernels.launch import cuda as launch

    monkeypatch.setattr(source, "FOLDER", tmp_path)
    source.with_headers.cache_clear()
    yield launch
    source.with_headers.cache_clear()


@pytest.fixture
def scale(gpu, tmp_path):
    (tmp_path / "scale.cu").write_text(TEXT)
    return Launch(str(tmp_path / "scale"), "scale", SCALE, plan)


def test_a_launch(scale, gpu):
    x = gpu.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    scale["cupy"](x, None, 2.0, 1, 32)
    scale["cupy"](*scale.named({"x": x, "bias": gpu.asarray(np.ones((2, 3), np.float32)), "by": 1, "blocks": 1, "threads": 32, "unused": ""}))
    np.testing.assert_array_equal(gpu.to_numpy(x).reshape(-1), 2 * np.arange(6) + 1)


def test_a_bound_launch_is_repeated(scale, gpu):
    x = gpu.asarray(np.ones((2, 3), np.float32))
    again = scale.bind({"x": x, "bias": None, "by": 2.0, "blocks": 1, "threads": 32})
    for _ in range(3):
        again()
    np.testing.assert_array_equal(gpu.to_numpy(x), 8)


def test_a_bound_launch_is_repeated_with_another_number(gpu, tmp_path):
    (tmp_path / "add.cu").write_text("ENTRY(add) { x[time_step] += by; }\n")
    add, x = Launch(str(tmp_path / "add"), "add", "x: own[n], time_step: int32, by: float32", lambda: Layout((1,), (1,))), gpu.zeros((4,), "float32")
    again = add.bind({"x": x, "time_step": 0, "by": 3}, varying="time_step")
    for time_step in (3, 1, 3):
        again(time_step)
    assert gpu.to_numpy(x).tolist() == [0, 3, 0, 6]


@pytest.mark.parametrize(("bias", "kind", "words"), [(np.zeros((2, 3)), DtypeError, "bias: expected float32, found float64"),
                                                     (np.zeros((3, 2), np.float32), ShapeError, "bias: expected shape (2, 3), found (3, 2)")])
def test_an_argument_that_does_not_fit(bias, kind, words, scale, gpu):
    x = gpu.asarray(np.zeros((2, 3), np.float32))
    check_error(kind, lambda: scale["cupy"](x, gpu.asarray(bias), 1.0, 1, 32), "[scale]", words)


def test_a_number_too_large_for_its_parameter(scale, gpu):
    with pytest.raises((KernelError, OverflowError)):
        scale["cupy"](gpu.asarray(np.zeros((2, 3), np.float32)), None, 2.0, 1, 1 << 40)


def test_a_kernel_that_does_not_compile_says_which_and_why(gpu, tmp_path):
    (tmp_path / "bad.cu").write_text('#include "part.cuh"\nENTRY(bad) { part(); }\n')
    (tmp_path / "part.cuh").write_text("inline void part() {\n    nonsense();\n}\n")
    bad = Launch(str(tmp_path / "bad"), "bad", "n: int32", lambda: Layout((1,), (1,), {"SIZE": 3}))
    check_error(KernelError, lambda: bad["cupy"](1), "[bad]", "bad.cu", "'SIZE': 3", "part.cuh:2", "nonsense")


def test_an_entry_that_is_not_there(scale, gpu, tmp_path):
    check_error(KernelError, lambda: Launch(str(tmp_path / "scale"), "shrink", SCALE, plan), "[shrink] expected ENTRY(shrink)")


def test_a_launch_that_the_driver_refuses(scale, gpu):
    x = gpu.asarray(np.zeros((2, 3), np.float32))
    for call in (lambda: scale["cupy"](x, None, 2.0, 1, 2048), scale.bind({"x": x, "bias": None, "by": 2.0, "blocks": 1, "threads": 2048})):
        check_error(KernelError, call, "[scale]", "scale.cu", "block (2048,)")


def test_one_compilation_for_each_set_of_macros(scale, gpu, monkeypatch):
    from duoln.kernels.launch import cuda as launch

    made = []
    real = launch.cupy.RawModule
    monkeypatch.setattr(launch.cupy, "RawModule", lambda **k: (made.append(k["options"]), real(**k))[1])
    x = gpu.asarray(np.zeros((2, 3), np.float32))
    for threads in (33, 34, 64, 67, 66):
        scale["cupy"](x, None, 2.0, 1, threads)
    assert [[o for o in options if o.startswith("-D")] for options in made] == [["-DA=0"], ["-DA=1"]]


def test_headers_are_pasted_once_and_lines_keep_their_numbers(launch, tmp_path):
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n#include "c.cuh"\n#include <math.h>\nint last;\n')
    (tmp_path / "b.cuh").write_text('#include "c.cuh"\nint b;\n')
    (tmp_path / "c.cuh").write_text("int c;\n")
    text = source.text("a.cu")
    assert text.count("int c;") == 1 and "#include <math.h>" in text and '#include "' not in text
    assert text.index("int c;") < text.index("int b;") < text.index("int last;")
    assert text.splitlines()[-3:] == ['#line 3 "a.cu"', "#include <math.h>", "int last;"]


def test_a_missing_header(launch, tmp_path):
    (tmp_path / "a.cu").write_text('#include "none.cuh"\n')
    assert "#error none.cuh is neither beside a.cu nor one of duoln's" in source.text("a.cu")


@pytest.mark.parametrize("rows", [0, 1, 2048, 2049, 1 << 24, (1 << 24) + 1, 65_536 << 10, (1 << 31) - 1])
def test_groups_of_rows_fit_a_grid(rows):
    group, groups = columns.groups_of(rows)
    assert 1 <= groups <= 65_535 and group * (groups - 1) <= rows <= group * groups
    assert group == 1024 or rows <= 2048 or rows > 1 << 24


@pytest.mark.parametrize("width", [1, 9])
def test_sums_of_so_many_rows_that_groups_grow(gpu, monkeypatch, rng, width):
    from duoln.kernels.launch import cuda as launch

    monkeypatch.setattr(columns, "_MOST_GROUPS", 3)
    columns.SUM_COLUMNS.pop("cupy", None)  # its layouts are kept
    x, y = (rng.integers(-8, 8, (10_001, width)).astype(np.float32) for _ in range(2))  # their sums are exact
    for total, values in zip(launch.sum_columns(gpu.asarray(x), gpu.asarray(y)), (x, y), strict=True):
        np.testing.assert_array_equal(gpu.to_numpy(total), values.sum(axis=0))
    columns.SUM_COLUMNS.pop("cupy")
