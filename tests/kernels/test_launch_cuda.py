"""The launcher and the source loader: arguments that do not fit a kernel's declaration never reach the GPU."""

import numpy as np
import pytest

from duoln.errors import KernelError
from duoln.kernels import source
from duoln.testing import check_error

SCALE = "x: float32[2], bias: float32[1]?, n: int32, by: float32"
TEXT = """
extern "C" __global__ void scale(float* x, const float* bias, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * by + (bias ? bias[i] : 0);
}
"""


@pytest.fixture
def launch(gpu, tmp_path, monkeypatch):
    """The launcher's module, reading kernels from a folder of this test."""
    from duoln.kernels.launch import cuda as launch

    (tmp_path / "scale.cu").write_text(TEXT)
    monkeypatch.setattr(source, "FOLDER", tmp_path)
    source.text.cache_clear()
    yield launch
    source.text.cache_clear()


def test_a_launch(launch, gpu):
    kernel = launch.Kernel("scale.cu", "scale", SCALE)
    x = gpu.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    kernel((1,), (32,), (x, None, 6, 2.0))
    kernel((1,), (32,), (x, gpu.asarray(np.ones(6, np.float32)), np.int32(6), 1))
    np.testing.assert_array_equal(gpu.to_numpy(x).reshape(-1), 2 * np.arange(6) + 1)


@pytest.mark.parametrize(("change", "words"), [
    ({0: lambda be, x: be.asarray(np.zeros((2, 3)))}, ("x: expected a contiguous float32 array of 2", "float64")),
    ({0: lambda be, x: be.asarray(np.zeros(6, np.float32))}, ("x: expected", "1 dimensions")),
    ({0: lambda be, x: x[:, :2]}, ("x: expected", "a strided float32")),
    ({0: lambda be, x: np.zeros((2, 3), np.float32)}, ("x: expected", "found ndarray")),
    ({0: lambda be, x: None}, ("x: expected", "NoneType")),
    ({2: lambda be, x: 6.5}, ("n: expected int32", "6.5")),
    ({2: lambda be, x: True}, ("n: expected int32", "True")),
    ({3: lambda be, x: "2"}, ("by: expected float32", "'2'"))])
def test_an_argument_that_does_not_fit(change, words, launch, gpu):
    if any(w == "found ndarray" for w in words) and "stand_in" in type(gpu.zeros((1,))).__module__:
        words = words[:1]  # the stand-in's own arrays are called ndarray, too
    kernel = launch.Kernel("scale.cu", "scale", SCALE)
    arguments = [gpu.asarray(np.zeros((2, 3), np.float32)), None, 6, 2.0]
    for place, make in change.items():
        arguments[place] = make(gpu, arguments[place])
    check_error(KernelError, lambda: kernel((1,), (32,), arguments), "[scale]", *words)


def test_a_number_too_large_for_its_parameter(launch, gpu):
    kernel = launch.Kernel("scale.cu", "scale", SCALE)
    with pytest.raises((KernelError, OverflowError)):
        kernel((1,), (32,), (gpu.asarray(np.zeros((2, 3), np.float32)), None, 1 << 40, 2.0))


def test_the_number_of_arguments(launch, gpu):
    kernel = launch.Kernel("scale.cu", "scale", SCALE)
    check_error(KernelError, lambda: kernel((1,), (32,), (1,)), "[scale]", "expected 4 arguments", "found 1")


def test_a_kernel_that_does_not_compile_says_which_and_why(launch, gpu, tmp_path):
    (tmp_path / "bad.cu").write_text('#include "part.cuh"\nextern "C" __global__ void bad() { part(); }\n')
    (tmp_path / "part.cuh").write_text("inline void part() {\n    nonsense();\n}\n")
    check_error(KernelError, lambda: launch.Kernel("bad.cu", "bad", "n: int32")((1,), (1,), (1,), {"SIZE": 3}),
                "[bad]", "bad.cu", "'SIZE': 3", "part.cuh:2", "nonsense")


def test_an_entry_that_is_not_there(launch, gpu):
    check_error(KernelError, lambda: launch.Kernel("scale.cu", "shrink", "n: int32")((1,), (1,), (1,)), "shrink")


def test_a_launch_that_the_driver_refuses(launch, gpu):
    kernel = launch.Kernel("scale.cu", "scale", SCALE)
    check_error(KernelError, lambda: kernel((1,), (2048,), (gpu.asarray(np.zeros((2, 3), np.float32)), None, 6, 2.0)),
                "[scale]", "scale.cu", "block (2048,)")


def test_one_compilation_for_each_set_of_macros(launch, gpu, monkeypatch):
    made = []
    real = launch.cupy.RawModule
    monkeypatch.setattr(launch.cupy, "RawModule", lambda **k: (made.append(k["options"]), real(**k))[1])
    kernel = launch.Kernel("scale.cu", "scale", SCALE)
    x = gpu.asarray(np.zeros((2, 3), np.float32))
    for macros in ({}, {"A": 1}, {"A": 1}, {"A": 2}, None):
        kernel((1,), (32,), (x, None, 6, 2.0), macros)
    assert [[o for o in options if o.startswith("-D")] for options in made] == [[], ["-DA=1"], ["-DA=2"]]


def test_a_signature_that_is_not_one(launch):
    with pytest.raises(ValueError, match="expected 'name: dtype'"):
        launch.Kernel("scale.cu", "scale", "x float32")


def test_headers_are_pasted_once_and_lines_keep_their_numbers(launch, tmp_path):
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n#include "c.cuh"\n#include <math.h>\nint last;\n')
    (tmp_path / "b.cuh").write_text('#include "c.cuh"\nint b;\n')
    (tmp_path / "c.cuh").write_text("int c;\n")
    text = source.text("a.cu")
    assert text.count("int c;") == 1 and "#include <math.h>" in text and '#include "' not in text
    assert text.index("int c;") < text.index("int b;") < text.index("int last;")
    assert len(source.digest("a.cu")) == 64
    assert text.splitlines()[-3:] == ['#line 3 "a.cu"', "#include <math.h>", "int last;"]


def test_a_missing_header(launch, tmp_path):
    (tmp_path / "a.cu").write_text('#include "none.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r"none\.cuh"):
        source.text("a.cu")


@pytest.mark.parametrize("rows", [0, 1, 2048, 2049, 1 << 24, (1 << 24) + 1, 65_536 << 10, (1 << 31) - 1])
def test_groups_of_rows_fit_a_grid(launch, rows):
    group, groups = launch.groups_of(rows)
    assert 1 <= groups <= 65_535 and group * (groups - 1) <= rows <= group * groups
    assert group == 1024 or rows <= 2048 or rows > 1 << 24


@pytest.mark.parametrize("width", [1, 9])
def test_sums_of_so_many_rows_that_groups_grow(gpu, monkeypatch, rng, width):
    from duoln.kernels.launch import cuda as launch

    monkeypatch.setattr(launch, "_MOST_GROUPS", 3)
    x, y = (rng.integers(-8, 8, (10_001, width)).astype(np.float32) for _ in range(2))  # their sums are exact
    for total, values in zip(launch.sum_columns(gpu.asarray(x), gpu.asarray(y)), (x, y), strict=True):
        np.testing.assert_array_equal(gpu.to_numpy(total), values.sum(axis=0))
