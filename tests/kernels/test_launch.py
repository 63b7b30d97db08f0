"""Launches that are declared once: they are what their texts say, on every device, and refuse what does not fit; CUDA's, and the source loader."""

import re

import numpy as np
import pytest

from duoln.core.spec import Spec
from duoln.errors import DtypeError, KernelError, ShapeError
from duoln.kernels import columns, native, registry, source
from duoln.kernels.launch import Launch, declared
from duoln.kernels.launch.declared import Layout
from duoln.testing import check_error

registry.modules("cases")  # imports every folder
EVERY = [launch for launch in Launch.every if (source.FOLDER / f"{launch.file}.cpp").is_relative_to(source.FOLDER)]


@pytest.mark.parametrize("file", sorted({launch.cpp_file for launch in EVERY if launch.runs_on("numpy")}))
def test_the_entries_of_a_cpp_text_are_those_that_are_declared(file):
    assert sorted(source.entries_in(file)) == sorted({launch.entry for launch in EVERY if launch.cpp_file == file})


def test_the_prototypes_of_a_declaration():
    spec = Spec.of(SPEC)
    assert declared.cpp_prototype("f", spec) == (
        'extern "C" void NAMED(f)(const T* x, const T* gain, const int32_t* labels, const T* g, T* y, T* sums, T* made, '
        "int64_t rows, int64_t width, int64_t g_step, int32_t n, int32_t threads)")
    assert declared.cuda_prototype("f", spec) == (
        "f(const storage_t* __restrict__ x, const float* __restrict__ gain, const int* __restrict__ labels, "
        "const float* __restrict__ g, storage_t* __restrict__ y, float* __restrict__ sums, float* __restrict__ made, "
        "int rows, int width, int g_step, int n)")
    own = Spec.of("out: own, at: own uint32[n], eps: float64, tensors: struct")
    assert declared.cuda_prototype("f", own) == "f(float* __restrict__ out, unsigned* __restrict__ at, int n, float eps, const Tensors tensors)"


def test_no_prototype_is_typed_by_hand():
    """But those of the engine, which takes a plan, of the runner of steps and of the library's own functions."""
    typed = {path.relative_to(source.FOLDER).as_posix(): re.findall(r'extern "C" (?:__global__ )?\w+ NAMED\((\w+)\)', path.read_text(encoding="utf-8"))
             for path in source.FOLDER.rglob("*") if path.suffix in (".cpp", ".h", ".cu", ".cuh")}
    assert {file: names for file, names in typed.items() if names} == {
        "elementwise/engine.cpp": ["elementwise", "run_one", "reduce_rows", "reduce_columns"],
        "elementwise/formula.h": ["NAME"], "step/run.cpp": ["run_lines", "take_addresses"]}


def test_an_entry_without_a_declaration(tmp_path):
    (tmp_path / "a.cpp").write_text("ENTRY(f) {}\n")
    check_error(KernelError, lambda: source.text(str(tmp_path / "a.cpp")), "a.cpp: expected a declaration of f, found none")


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    if native.machine_refusal() is not None:
        pytest.skip("there is no C++ compiler")
    file = tmp_path_factory.mktemp("own") / "mix.cpp"
    file.write_text('#include "common.h"\nENTRY(mix) {\n'
                    "    for (index_t k = 0; k < n; ++k) out[2 * k] = x[k] * T(by) + (more ? more[k] : 0) + T(places[1]) + T(threads);\n}\n")
    return Launch(str(file.with_suffix("")), "mix", "out: own, x: real[n], more: own?, places: own int64, by: float64, threads: int32")


def test_own_memory_is_written_as_it_lies(mix):
    out = np.zeros(8, np.float32)
    given = np.arange(8, dtype=np.float32)[::2], np.ones(4, np.float32), np.array([0, 7], np.int64)
    mix["numpy"](out[1::1], *given, 0.5, 3)
    assert out.tolist() == [0, 11, 0, 12, 0, 13, 0, 14]


def test_values_by_name(mix):
    out = np.zeros(2, np.float64)
    mix["numpy"](*mix.named({"unused": "", "threads": 1, "by": 2, "places": np.zeros(2, np.int64), "more": None, "x": np.ones(1), "out": out}))
    assert out.tolist() == [3, 0]


@pytest.mark.parametrize(("by", "threads", "words"), [("a", 1, "by: expected float64, found str 'a'"), (1.0, 2.0, "threads: expected int32, found float 2.0")])
def test_a_number_of_another_kind(by, threads, words, mix):
    x = np.ones(1, np.float32)
    check_error(DtypeError, lambda: mix["numpy"](x, x, None, np.zeros(2, np.int64), by, threads), "[mix]", words)


SPEC = "x: stored[*rows, width], gain: real[width]?, labels: int32[*rows], g: real[*rows] or one, n: int32 " \
       "-> y: like x, sums: sum[width]?, made: real[n, 2]"


@pytest.mark.parametrize("text", ["x: real[*rows] -> y: like z", "x: real[*rows], dy: like z -> y: like x", "x: real[*rows] -> y: real[n]"])
def test_a_declaration_that_names_what_is_not_there(text):
    with pytest.raises(ValueError, match="expected a result in axes"):
        Spec.of(text)


CUDA = """#include "storage.cuh"
ENTRY(scale) {
    for (int row = threadIdx.x; row < rows; row += blockDim.x)
        for (int k = 0; k < width; ++k) y[row * width + k] = x[row * width + k] * (gain ? gain[k] : 1) * g[row * g_step];
    if (threadIdx.x) return;
    for (int k = 0; sums && k < width; ++k)
        for (int part = 0; part < 2; ++part) sums[part * width + k] = k + part;
    for (int k = 0; k < 2 * n; ++k) made[k] = k;
}
"""
SCALE = "x: real[*rows, width], gain: real[width]?, g: real[*rows] or one, n: int32 -> y: like x, sums: sum[width]?, made: real[n, 2]"


@pytest.fixture
def scale(gpu, tmp_path):
    (tmp_path / "scale.cu").write_text(CUDA)
    plans = []

    def plan(rows, width, aligned, has_gain):
        plans.append((rows, width, aligned, has_gain))
        return Layout((1,), (32,), parts=2)

    run = Launch(str(tmp_path / "scale"), "scale", SCALE, plan)["cupy"]
    run.plans = plans
    return run


def test_a_launch_on_cuda(scale, gpu, rng):
    x, g = rng.standard_normal((2, 3, 5)).astype(np.float32), rng.standard_normal((2, 3)).astype(np.float32)
    gain = np.arange(5, dtype=np.float32)
    y, sums, made = scale(gpu.asarray(x), gpu.asarray(gain), gpu.asarray(g), 3)
    np.testing.assert_array_equal(gpu.to_numpy(y), x * gain * g[..., None])
    np.testing.assert_array_equal(gpu.to_numpy(sums), 2 * gain + 1)
    np.testing.assert_array_equal(gpu.to_numpy(made), np.arange(6).reshape(3, 2))
    one = gpu.xp.broadcast_to(gpu.asarray(np.float32([2])), (2, 3)) if hasattr(gpu, "xp") else gpu.broadcast_to(gpu.asarray(np.float32([2])), (2, 3))
    y, sums, made = scale(gpu.asarray(x)[:, ::2], None, one[:, ::2], 1, sums=False)
    np.testing.assert_array_equal(gpu.to_numpy(y), 2 * x[:, ::2])
    assert sums is None and made.shape == (1, 2)
    assert [(rows, width, has_gain) for rows, width, _, has_gain in scale.plans] == [(6, 5, True), (4, 5, False)]


def test_a_layout_is_planned_once(scale, gpu):
    x = gpu.asarray(np.ones((4, 5), np.float32))
    for _ in range(3):
        scale(x, None, gpu.asarray(np.ones(4, np.float32)), 1)
    assert len(scale.plans) == 1


@pytest.mark.parametrize(("place", "value", "kind", "words"), [
    (0, np.ones((4, 5)), DtypeError, ("x: expected float32", "float64")),
    (1, np.ones(4, np.float32), ShapeError, ("gain: expected shape (5,)", "found (4,)")),
    (2, np.ones((4, 1), np.float32), ShapeError, ("g: expected shape (4,)", "found (4, 1)"))])
def test_an_argument_that_does_not_fit(place, value, kind, words, scale, gpu):
    arguments = [gpu.asarray(np.ones((4, 5), np.float32)), None, gpu.asarray(np.ones(4, np.float32)), 1]
    arguments[place] = gpu.asarray(value)
    check_error(kind, lambda: scale(*arguments), "[scale]", *words)


def test_the_settings_of_a_plan():
    """Each set of macros once, for sizes on both sides of a boundary."""
    spec = Spec.of("x: stored[*rows, width] -> y: like x")
    made = declared.settings(lambda rows, width: Layout((rows,), (32,), {"WIDE": int(width > 1024)}), "a.cu", spec)
    assert made == [("a.cu", {"WIDE": wide, **({"STORAGE": storage} if storage else {})}) for storage in range(3) for wide in (0, 1)]


IN_PLACE = "x: own[rows, width], bias: real[rows, width]?, by: float32, blocks: int32, threads: int32"
IN_PLACE_TEXT = """
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
def in_place(gpu, tmp_path):
    (tmp_path / "scale.cu").write_text(IN_PLACE_TEXT)
    return Launch(str(tmp_path / "scale"), "scale", IN_PLACE, plan)


def test_a_launch(in_place, gpu):
    x = gpu.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    in_place["cupy"](x, None, 2.0, 1, 32)
    in_place["cupy"](*in_place.named({"x": x, "bias": gpu.asarray(np.ones((2, 3), np.float32)), "by": 1, "blocks": 1, "threads": 32, "unused": ""}))
    np.testing.assert_array_equal(gpu.to_numpy(x).reshape(-1), 2 * np.arange(6) + 1)


def test_a_bound_launch_is_repeated_with_another_number(gpu, tmp_path):
    (tmp_path / "add.cu").write_text("ENTRY(add) { x[time_step] += by; }\n")
    add, x = Launch(str(tmp_path / "add"), "add", "x: own[n], time_step: int32, by: float32", lambda: Layout((1,), (1,))), gpu.zeros((4,), "float32")
    again = add.bind({"x": x, "time_step": 0, "by": 3}, varying="time_step")
    for time_step in (3, 1, 3):
        again(time_step)
    assert gpu.to_numpy(x).tolist() == [0, 3, 0, 6]


def test_a_number_too_large_for_its_parameter(in_place, gpu):
    with pytest.raises((KernelError, OverflowError)):
        in_place["cupy"](gpu.asarray(np.zeros((2, 3), np.float32)), None, 2.0, 1, 1 << 40)


def test_a_kernel_that_does_not_compile_says_which_and_why(gpu, tmp_path):
    (tmp_path / "bad.cu").write_text('#include "part.cuh"\nENTRY(bad) { part(); }\n')
    (tmp_path / "part.cuh").write_text("inline void part() {\n    nonsense();\n}\n")
    bad = Launch(str(tmp_path / "bad"), "bad", "n: int32", lambda: Layout((1,), (1,), {"SIZE": 3}))
    check_error(KernelError, lambda: bad["cupy"](1), "[bad]", "bad.cu", "'SIZE': 3", "part.cuh:2", "nonsense")


def test_an_entry_that_is_not_there(in_place, gpu, tmp_path):
    check_error(KernelError, lambda: Launch(str(tmp_path / "scale"), "shrink", IN_PLACE, plan), "[shrink] expected ENTRY(shrink)")


def test_a_bound_launch_that_the_driver_refuses(in_place, gpu):
    x = gpu.asarray(np.zeros((2, 3), np.float32))
    for call in (lambda: in_place["cupy"](x, None, 2.0, 1, 2048), in_place.bind({"x": x, "bias": None, "by": 2.0, "blocks": 1, "threads": 2048})):
        check_error(KernelError, call, "[scale]", "scale.cu", "block (2048,)")


def test_one_compilation_for_each_set_of_macros(in_place, gpu, monkeypatch):
    from duoln.kernels.launch import cuda as launch

    made = []
    real = launch.cupy.RawModule
    monkeypatch.setattr(launch.cupy, "RawModule", lambda **k: (made.append(k["options"]), real(**k))[1])
    x = gpu.asarray(np.zeros((2, 3), np.float32))
    for threads in (33, 34, 64, 67, 66):
        in_place["cupy"](x, None, 2.0, 1, threads)
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
