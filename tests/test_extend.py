"""`duoln.extend`: its example, what authors of operators and kernels write wrongly, and an operator of another package, whose import
brings its rules: `selftest`, `doctor`, `bench` and the identity of a run know it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import duoln
from duoln import extend, ops
from duoln.bench import groups, records
from duoln.errors import (
    CallError,
    DtypeError,
    DuolnError,
    GradientError,
    KernelError,
    PluginError,
    ShapeError,
    UsageError,
)
from duoln.kernels import native, registry
from duoln.kernels.native import loading, storage
from duoln.testing import check_error, check_op, check_rule, hostgpu
from duoln.testing.emulation import emulated


def _example():
    """The names that the example of the docstring defines, which stands below its first line."""
    lines = extend.__doc__.splitlines()[1:]
    code = []
    for line in lines:
        if line and not line.startswith("    "):
            break
        code.append(line)
    names = {"np": np}
    exec(dedent("\n".join(code)), names)
    return names


def test_the_example_is_an_operator_with_a_right_gradient(be):
    softsign = _example()["softsign"]
    check_op(softsign, [np.random.default_rng(0).standard_normal((3, 5))], lambda x: x / (1 + np.abs(x)), be)


def test_the_fast_rule_of_the_example_agrees_with_the_composed_one(numpy_backend):
    names = _example()
    softsign, rule = names["softsign"], names["fast"]
    assert softsign.rules("numpy") == [rule, softsign.rules("mlx")[-1]]
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    check_rule(softsign, rule, [x], numpy_backend)
    assert rule.supports(numpy_backend, x[:0]) == "there are no values"


def test_its_page_names_all_that_it_lists():
    assert [name for name in extend.__all__ if f"`{name}`" not in extend.__doc__] == []


def test_it_loads_no_device_library():
    code = "import duoln; duoln.extend.Op, duoln.extend.host, duoln.extend.Rule; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[1])
    loaded = set(done.stdout.split())
    assert "duoln.kernels.host" in loaded
    assert sorted(loaded & {"cupy", "mlx", "mlx.core", "torch", "pluggy", "duoln.kernels.launch.cuda", "duoln.kernels.launch.metal",
                            "duoln.testing"}) == []


@pytest.mark.skipif(extend.native.compiler() is None, reason="there is no C++ compiler")
def test_an_author_compiles_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_outside", set())
    (tmp_path / "factor.h").write_text("static const int FACTOR = 2;\n")
    file = tmp_path / "twice.cpp"
    file.write_text('#include "factor.h"\n#include "common.h"\n'
                    "ENTRY(twice) {\n"
                    "    for (index_t k = 0; k < size; ++k) y[k] = FACTOR * x[k];\n}\n")
    twice = extend.Launch(str(file.with_suffix("")), "twice", "x: real[*size] -> y: like x")
    assert extend.native.sources()[-1] == str(file)
    assert extend.native.refusal(str(file), np.dtype(np.float16)) == "it is for float32 and float64"
    for dtype in (np.float32, np.float64):
        assert extend.native.refusal(str(file), np.dtype(dtype)) is None
        x = np.arange(5, dtype=dtype)
        assert twice["numpy"](x).tolist() == [0, 2, 4, 6, 8]


compiles = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")
X = [np.linspace(-2, 2, 6).reshape(2, 3)]


def operator(forward=lambda be, x: (x * x, x), vjp=lambda be, x, gout, needs: (2 * x * gout,), declaration="x: real[*shape] -> like x", fast=None):
    @extend.op(declaration)
    def square(x: extend.Tensor) -> extend.Tensor:
        """x^2."""

    square.add(extend.Rule("composed", forward, vjp))
    if fast is not None:
        square.add(fast, backend="numpy")
    return square


def gradient(op):
    return duoln.value_and_grad(lambda x: ops.sum(op(x)))(duoln.tensor(X[0].astype(np.float32), "numpy"))


GRADIENTS = {  # by the gradient of a composed rule
    "another shape": (lambda x, g: (2 * x * g)[:, :1], "expected as gradient 0 one like its array, float32 of shape (2, 3); found float32 of shape (2, 1)"),
    "one axis more": (lambda x, g: (2 * x * g)[None], "found float32 of shape (1, 2, 3)"),
    "another dtype": (lambda x, g: (2 * x * g).astype(np.float64), "found float64 of shape (2, 3)"),
    "a number": (lambda x, g: 1.0, "found 1.0 (float)"),
    "a list": (lambda x, g: [1.0], "found list"),
    "a tensor": (lambda x, g: duoln.tensor(x, "numpy"), "one like its array, float32 of shape (2, 3); found duoln.Tensor"),
}


@pytest.mark.parametrize(("made", "words"), GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient_unlike_its_array(made, words):
    check_error(GradientError, lambda: gradient(operator(vjp=lambda be, x, g, needs: (made(x, g),))), "[square] rule 'composed'", words)


NUMBERS = {"none for two": ((), "a tuple of 0"), "two for one": ((1, 2), "a tuple of 2"), "no tuple": (3.0, "3.0")}


@pytest.mark.parametrize(("given", "words"), NUMBERS.values(), ids=NUMBERS)
def test_a_wrong_number_of_gradients(given, words):
    check_error(GradientError, lambda: gradient(operator(vjp=lambda be, x, g, needs: given)), "expected a tuple of 1 gradients", words)


RESULTS = {
    "no pair": (lambda be, x: x * x, UsageError, "expected the pair (value, what the gradient needs) of forward"),
    "another shape": (lambda be, x: ((x * x)[:1], x), ShapeError, "expected output 0 like array 0, float32 of shape (2, 3); found float32 of shape (1, 3)"),
    "another dtype": (lambda be, x: ((x * x).astype(np.float64), x), ShapeError, "found float64 of shape (2, 3)"),
    "a function that the backend has not": (lambda be, x: (be.square(x), x), AttributeError, "has no attribute 'square'"),
}


@pytest.mark.parametrize(("forward", "kind", "words"), RESULTS.values(), ids=RESULTS)
def test_a_wrong_result_of_forward(forward, kind, words):
    with pytest.raises(kind) as caught:
        operator(forward)(duoln.tensor(X[0].astype(np.float32), "numpy"))
    assert words in str(caught.value)


def test_check_op_tries_arrays_that_are_not_contiguous():
    read_as_bytes = operator(lambda be, x: (np.frombuffer(x.tobytes("A"), x.dtype).reshape(x.shape) ** 2, x))
    check_op(operator(), X, lambda x: x * x, "numpy", dtype="float64")
    check_error(AssertionError, lambda: check_op(read_as_bytes, X, lambda x: x * x, "numpy", dtype="float64"), "arrays in Fortran's order")


@pytest.mark.parametrize("reason", [True, False, 0, ["no"]])
def test_supports_gives_a_reason_or_none(reason):
    fast = extend.Rule("fast", lambda be, x: (x * x, x), supports=lambda be, x: reason)
    op, x = operator(fast=fast), duoln.tensor(X[0], "numpy")
    for call in (op, op.explain):
        check_error(DtypeError, lambda call=call: call(x), "rule 'fast': expected of supports None, or a text", "found list" if reason == ["no"] else repr(reason))


def test_check_rule_names_a_gradient_that_is_none():
    fast = extend.Rule("fast", lambda be, x: (x * x, x), lambda be, x, g, needs: (None,))
    with pytest.raises(AssertionError, match=r"gradient 0: expected an array, found None"):
        check_rule(operator(fast=fast), fast, [X[0].astype(np.float32)], "numpy")


ADDED = {
    "no rule": (lambda op: op.add(lambda be, x: x), DtypeError, "[square] add: expected a Rule"),
    "an unknown backend": (lambda op: op.add(extend.Rule("a", abs), backend="cuda"), UsageError, "expected a backend of numpy"),
    "a name that is none": (lambda op: extend.Rule(3, abs), DtypeError, "[Rule] name: expected a text"),
    "a forward that is none": (lambda op: extend.Rule("a", 3), DtypeError, "[Rule] forward: expected a function"),
    "a vjp that is none": (lambda op: extend.Rule("a", abs, 3), DtypeError, "[Rule] vjp: expected a function"),
    "a supports that is none": (lambda op: extend.Rule("a", abs, None, True), DtypeError, "[Rule] supports: expected a function"),
    "a call with an array": (lambda op: op(X[0]), DtypeError, "expected a duoln.Tensor"),
    "a call with two": (lambda op: op(1, 2), TypeError, "square()"),
    "no composed rule": (lambda op: extend.op("x: real[n] -> like x")(op.function)(duoln.tensor([1.0], "numpy")), DuolnError, "[square] has no composed rule"),
    "an attribute that there is not": (lambda op: check_op(op, X, lambda x: x * x, "numpy", attrs={"slope": 1}), (CallError, TypeError), "slope"),
    "an unknown device of check_op": (lambda op: check_op(op, X, lambda x: x, "cuda"), UsageError, "expected one of"),
    "a wrong formula": (lambda op: check_op(op, X, lambda x: x, "numpy"), AssertionError, "output 0 on numpy"),
}


@pytest.mark.parametrize(("act", "kind", "words"), ADDED.values(), ids=ADDED)
def test_a_wrong_call(act, kind, words):
    with pytest.raises(kind) as caught:
        act(operator())
    assert words in str(caught.value)


TEXT = '#include "common.h"\nENTRY(twice) {\n    for (index_t k = 0; k < size; ++k) y[k] = 2 * x[k];\n}\n'
DECLARED = "x: real[*size] -> y: like x"


@pytest.fixture(autouse=True)
def _own_texts(monkeypatch):
    """A run's identity has the texts that other packages compile; those of one test are no other's."""
    monkeypatch.setattr(storage, "_outside", set())
    monkeypatch.setattr(loading._state, "failures", {})


def launch(folder, text=TEXT, declaration=DECLARED, entry="twice", dtype=np.float32, name="twice", x=None):
    file = folder / f"{name}.cpp"
    file.write_text(text)
    made = extend.Launch(file.with_suffix(""), entry, declaration)  # a path, too
    return made["numpy"](np.ones(3, dtype) if x is None else x)


LAUNCHES = {
    "a missing entry": ({"entry": "thrice"}, "[thrice] expected ENTRY(thrice) in a text"),
    "a header that there is not": ({"text": '#include "gone.h"\n' + TEXT}, "gone.h is neither beside twice.cpp nor one of duoln"),
    "a text that does not compile": ({"text": TEXT.replace("2 * x", "2 ** x")}, "twice.cpp:3"),
    "a name that is not declared": ({"text": TEXT.replace("< size", "< count")}, "count"),
    "an array of another dtype": ({"declaration": "x: real[*size], m: int32[*size] -> y: like x", "x": None}, "m"),
}


@compiles
@pytest.mark.parametrize(("given", "words"), LAUNCHES.values(), ids=LAUNCHES)
def test_a_wrong_kernel(given, words, tmp_path, capfd):
    """The compiler's words are on stderr as soon as there are any."""
    with pytest.raises((KernelError, TypeError)) as caught:
        launch(tmp_path, **given)
    assert words in f"{caught.value}{capfd.readouterr().err}"


@compiles
def test_a_text_that_changed_in_this_process(tmp_path):
    assert launch(tmp_path).tolist() == [2, 2, 2]
    check_error(KernelError, lambda: launch(tmp_path, TEXT.replace("2 *", "3 *")), "has changed since this process first read it", "start Python again")


@compiles
def test_statics_of_one_name_belong_to_each_library(tmp_path):
    text = '#include "common.h"\ninline T scale() { static T value = T(std::sqrt(FOUR)); return value; }\n' \
        "ENTRY(twice) {\n    for (index_t k = 0; k < size; ++k) y[k] = scale() * x[k];\n}\n"
    first = launch(tmp_path, text.replace("FOUR", "4.0"))
    assert first.tolist() == [2, 2, 2] and launch(tmp_path, text.replace("FOUR", "4.0"), dtype=np.float64).tolist() == [2, 2, 2]
    assert launch(tmp_path, text.replace("FOUR", "25.0"), name="another").tolist() == [5, 5, 5]


OF_LAUNCHES = {
    "an unknown kind": (lambda file: extend.Launch(file, "twice", "x: float[*size] -> y: like x"), "expected a kind of real, stored"),
    "an axis of no argument": (lambda file: extend.Launch(file, "twice", "x: real[*size] -> y: real[n]"), "expected a result in axes of the arguments"),
    "a plan of an unknown size": (lambda file: extend.Launch(file, "twice", DECLARED, lambda rows: extend.Layout((1,), (32,))), "[twice] plan: expected parameters of "),
    "a device in the place of a backend": (lambda file: extend.Launch(file, "twice", DECLARED)["cuda"], "expected the name of a backend, numpy, cupy, mlx; found 'cuda'"),
    "too few arguments": (lambda file: extend.Launch(file, "twice", DECLARED)["numpy"](), "missing 1 required positional argument: 'x'"),
    "too many arguments": (lambda file: extend.Launch(file, "twice", DECLARED)["numpy"](np.ones(3, np.float32), 1), "takes 1 positional argument but 2 were given"),
    "fused of no operator": (lambda file: extend.fused(3, None, None, extend.Launch(file, "twice", DECLARED)), "[fused] op: expected an extend.Op, found 3"),
    "fused of no launch": (lambda file: extend.fused(operator(), lambda be, x: (x, x), None, "twice"), "[fused] first: expected an extend.Launch"),
    "a time of no case": (lambda file: groups.of_operator(operator(), extend.Timed(lambda shape: 3, [], [], (2, 2), (1, 1)), (2, 3), True, True), "expected of Timed.case an extend.Case of it, found 3"),
    "a time of other axes": (lambda file: groups.of_operator(op := operator(), extend.Timed(lambda shape: extend.case(op, (3,)), [], [], (2, 2), (1, 1)), (2, 3), True, True),
                             "expected a first argument of (rows, width)"),
}


@compiles
@pytest.mark.parametrize(("act", "words"), OF_LAUNCHES.values(), ids=OF_LAUNCHES)
def test_a_wrong_launch_or_timing(act, words, tmp_path):
    (tmp_path / "twice.cpp").write_text(TEXT)
    with pytest.raises((DuolnError, ValueError, TypeError)) as caught:
        act(tmp_path / "twice")
    assert words in str(caught.value)


def test_what_the_emulated_device_says(tmp_path):
    (tmp_path / "same.cu").write_text("ENTRY(same) {\n  y[threadIdx.x] = x[threadIdx.x];\n}\n")
    for plan, x, kind, words in (
            (lambda size: ((1,), (32,)), np.ones(3, np.float32), KernelError, "plan: expected extend.Layout(blocks, threads) of two tuples, found"),
            (lambda size: extend.Layout((1,), (2048,)), np.ones(3, np.float32), hostgpu.HostGpuError, "blocks of 1024 threads"),
            (lambda size: extend.Layout((1,), (3,)), np.ones(3), DtypeError, "x: expected float32, found float64"),
            (lambda size: extend.Layout((1,), (32,)), np.ones(3, np.float32), hostgpu.HostGpuError, "an access ")):
        same = extend.Launch(tmp_path / "same", "same", DECLARED, plan)
        with emulated("cupy"), pytest.raises(kind) as caught:
            same["cupy"](x)
        assert words in str(caught.value)


@pytest.mark.parametrize(("declaration", "words"), [
    ("y: real[*shape] -> like y", ["arguments of the function, x, gain", "'y'"]),
    ("", ["expected arguments"]), ("x: real[n], x: real[n] -> like x", ["a name of its own"]),
    ("x: real[2.5] -> like x", ["expected axes", "2.5"]), ("x: real[n-1] -> like x", ["expected axes", "n-1"]),
    ("x: real[*a, *b] -> like x", ["at most one *rows"]), ("x: float32[n] -> like x", ["real, int32, bool, any", "'float32'"]),
    ("x: sum[n] -> like x", ["real, int32, bool, any", "'sum'"]), ("x: real[n] or one -> like x", ["'real or one'"]),
    ("x: real[n]?, gain: real[n] -> like gain", ["a first array that is never None"]),
    ("x: reel[n] -> like x", ["expected a kind", "'reel'"]), ("x: real[n] -> real[m]", ["axes of the arguments", "'m'"]),
    ("x real", ["expected 'name: kind'"])])
def test_wrong_declarations_are_named_where_they_stand(declaration, words):
    def squash(x, gain=None):
        """X / (1 + |x|)."""

    check_error(UsageError, lambda: extend.op(declaration)(squash), "[squash] declaration", *words)


def test_what_is_no_function_with_a_name_or_no_declaration():
    check_error(UsageError, lambda: extend.op("x: real -> like x")(lambda x: None), "[op] expected a function with a name", "<lambda>")
    check_error(DtypeError, lambda: extend.op("x: real -> like x")(5), "[op] function", "5 (int)")
    check_error(DtypeError, lambda: extend.op(5), "[op] expected a declaration", "5 (int)")


def test_the_error_of_a_forward_has_no_hint_for_an_argument_of_the_operator(be):
    @extend.op("x: real[*shape] -> like x")
    def scaled(x: extend.Tensor, *, scale: extend.Finite = 1.0) -> extend.Tensor:
        """X times the scale."""

    scaled.add(extend.Rule("composed", lambda be, x: (x, None)))
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'scale'$"):
        scaled(duoln.tensor([1.0], be))


OPERATOR = '''
    """l2_rows: each row divided by its Euclidean norm."""

    from pathlib import Path

    from duoln import extend, ops

    _TEXT = str(Path(__file__).with_name("l2_rows"))
    _ROWS = "x: real[rows, width]"

    @extend.op(f"{_ROWS} -> like x")
    def l2_rows(x: extend.Tensor) -> extend.Tensor:
        """x / sqrt(1e-6 + sum of x^2 over a row)."""

    l2_rows.add(extend.derived(lambda x: x * (ops.sum(x * x, axis=1, keepdims=True) + 1e-6) ** -0.5))

    _forward = extend.Launch(_TEXT, "l2_rows_forward", f"{_ROWS} -> y: like x, scale: real[rows]")
    _backward = extend.Launch(_TEXT, "l2_rows_backward", f"{_ROWS}, scale: real[rows], dy: like x -> dx: like x")

    def forward(be, x):
        y, scale = _forward[be.name](x)
        return y, (x, scale)

    def vjp(be, saved, gout, needs):
        return (_backward[be.name](*saved, gout),)

    extend.fused(l2_rows, forward, vjp, _forward)
    extend.register(
        l2_rows, lambda: [extend.case(l2_rows, shape) for shape in ((1, 7), (3, 33), (64, 1000))],
        extend.Timed(lambda shape: extend.case(l2_rows, shape), [(4096, 1024)], [(256, 256)], arrays=(2, 3), flops=(3, 5),
                     peer=lambda torch, x: torch.nn.functional.normalize(x, dim=1, eps=1e-3)))
'''
CPP = '''
    #include "common.h"

    ENTRY(l2_rows_forward) {
        guarded([=] { in_parts(rows, threads, [=](index_t begin, index_t end) {
            for (index_t r = begin; r < end; ++r) {
                double sum = 1e-6;
                for (index_t k = 0; k < width; ++k) sum += double(x[r * width + k]) * x[r * width + k];
                scale[r] = T(1 / std::sqrt(sum));
                for (index_t k = 0; k < width; ++k) y[r * width + k] = x[r * width + k] * scale[r];
            }
        }); });
    }

    ENTRY(l2_rows_backward) {
        guarded([=] { in_parts(rows, threads, [=](index_t begin, index_t end) {
            for (index_t r = begin; r < end; ++r) {
                double dot = 0;
                for (index_t k = 0; k < width; ++k) dot += double(dy[r * width + k]) * x[r * width + k];
                const T factor = T(dot * scale[r] * scale[r]);
                for (index_t k = 0; k < width; ++k)
                    dx[r * width + k] = scale[r] * (dy[r * width + k] - x[r * width + k] * factor);
            }
        }); });
    }
'''


def package(folder, operator=OPERATOR, cpp=CPP, task=""):
    """The package `rows`, as if it were installed: its operator, its text, and the entry point that names it."""
    inside = folder / "rows_package"
    inside.mkdir()
    (inside / "__init__.py").write_text(dedent(task) or "from rows_package.operator import l2_rows\n")
    (inside / "operator.py").write_text(dedent(operator))
    (inside / "l2_rows.cpp").write_text(dedent(cpp))
    info = folder / "rows_dist-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rows-dist\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[duoln]\nrows = rows_package\n")
    return folder


def command(folder, *words, code=None, **variables):
    paths = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    program = ["-c", dedent(code)] if code else ["-m", "duoln", *words]
    return subprocess.run([sys.executable, *program], capture_output=True, text=True, cwd=folder, check=False,
                          env={**os.environ, "PYTHONPATH": paths, **variables})


@compiles
def test_selftest_tries_it_and_finds_a_broken_gradient(tmp_path):
    right = command(package(tmp_path), "selftest", "--backend", "numpy", "--op", "l2_rows", "--json")
    assert right.returncode == 0, right.stderr
    assert [r["rule"] for r in json.loads(right.stdout)["rules"]] == ["compiled"]
    text = tmp_path / "rows_package" / "l2_rows.cpp"
    text.write_text(text.read_text().replace("- x[r * width + k] * factor", "+ x[r * width + k] * factor"))
    broken = command(tmp_path, "selftest", "--backend", "numpy", "--op", "l2_rows")
    assert broken.returncode == 1 and "failed: l2_rows 64 x 1000: gradient 0" in broken.stdout, broken.stdout


@compiles
def test_bench_times_it_and_the_record_names_the_package(tmp_path):
    done = command(package(tmp_path), "bench", "ops", "--op", "l2_rows", "--backend", "numpy", "--rounds", "2", "--warm",
                 "--shape", "64,64", "--json", "record.json")
    assert done.returncode == 0, done.stderr
    record = records.load(tmp_path / "record.json")
    [forward, both] = [case for case in record["cases"] if case["op"] == "l2_rows"]
    assert both["pass"] == "forward+backward" and forward["rule"] == "compiled" and forward["facts"]["package"] == "rows-dist 1.5"
    assert forward["bytes"] == 2 * 4 * 64 * 64 and records.timings(record)


def test_bench_names_an_operator_that_is_not_timed(tmp_path):
    timed = OPERATOR[OPERATOR.index("extend.Timed"):]
    done = command(package(tmp_path, OPERATOR.replace(timed, "None)\n")), "bench", "ops", "--op", "l2_rows")
    assert done.returncode == 2 and "registered without a timing: register(op, cases, timed)" in done.stderr
    done = command(tmp_path, "bench", "ops", "--op", "l2_row")
    assert done.returncode == 2 and "expected one of layer_norm" in done.stderr.replace("\n", " ")


def test_doctor_lists_it(tmp_path):
    done = command(package(tmp_path), "doctor", "--ops", "--json")
    assert json.loads(done.stdout)["ops"]["l2_rows"]["numpy"] == "compiled > composed"


@pytest.fixture
def cube(monkeypatch):
    """A new operator with a composed rule, and no registered one."""
    monkeypatch.setattr(registry, "_registered", {})

    @extend.op("x: real[*shape] -> like x")
    def cube(x: extend.Tensor) -> extend.Tensor:
        """x^3."""

    cube.add(extend.derived(lambda x: x * x * x))
    return cube


def test_what_cannot_be_registered(cube):
    check_error(DtypeError, lambda: extend.register("cube", list), "[register] op: expected an operator")
    check_error(DtypeError, lambda: extend.register(cube, [extend.case(cube, (1,))]), "[register] cases: expected a function")
    check_error(DtypeError, lambda: extend.register(cube, list, (1, 2)), "[register] timed: expected extend.Timed or None")
    fresh = extend.op("x: real[*shape] -> like x")(cube.function)
    check_error(UsageError, lambda: extend.register(fresh, list), "expected an operator with a composed rule")
    fresh.add(extend.derived(lambda x: x * x * x))
    fresh.__module__ = "another"
    extend.register(cube, list)
    check_error(UsageError, lambda: extend.register(fresh, list), "found a second 'cube' of another")
    cube.name = "relu"
    check_error(UsageError, lambda: extend.register(cube, list), "found a second 'relu'", "the first is of duoln.ops")


@pytest.mark.parametrize(("cases", "words"), [
    (lambda op: [3], "expected extend.Case objects of cube, found 3"),
    (lambda op: [extend.case(op, (2, 2))._replace(op="cubes")], "found cubes 2 x 2"),
    (lambda op: 1 / 0, "ZeroDivisionError: division by zero")])
def test_cases_that_are_none_name_the_operator(cube, cases, words):
    extend.register(cube, lambda: cases(cube))
    check_error(PluginError, registry.registered_cases, f"the cases of cube, of {__name__}: ", words)


TASK = '''
    from duoln import ops
    from duoln.examples.own_task import Spirals
    from duoln.tasks import hookimpl
    from rows_package.operator import l2_rows

    class OnRows(Spirals):
        name = "on_rows"

        def predict(self, model, params, batch):
            return super().predict(model, params, {**batch, "x": l2_rows(batch["x"])})

        def loss(self, model, params, batch):
            return super().loss(model, params, {**batch, "x": l2_rows(batch["x"])})

    @hookimpl
    def duoln_tasks():
        return [OnRows()]
'''


@compiles
def test_a_run_records_the_rules_and_a_resume_with_others_is_refused(tmp_path):
    package(tmp_path, task=TASK)
    train = "from duoln.tasks import train; train('on_rows', '{variant}', preset='smoke', out='run', epochs={n}, resume={resume}, backend='numpy')"
    variant = json.loads(command(tmp_path, "show", "on_rows", "--json").stdout)["variants"]
    chosen = [next(iter(variant)), "--preset", "smoke", "--backend", "numpy"]
    ran = command(tmp_path, "run", "on_rows", "--variant", *chosen, "--epochs", "1", "--out", "top")
    assert ran.returncode == 0, ran.stderr
    [one] = [json.loads(line)["identity"] for line in (tmp_path / "top" / chosen[0] / "log.jsonl").read_text().splitlines()
             if "identity" in line][:1]
    assert one["operators"].startswith("l2_rows by compiled, of rows-dist 1.5 (")
    python = command(tmp_path, code=train.format(variant=chosen[0], n=2, resume=True).replace("'run'", f"'top/{chosen[0]}'"))
    assert python.returncode == 0, python.stderr
    text = tmp_path / "rows_package" / "l2_rows.cpp"
    text.write_text(text.read_text().replace("1e-6", "1.5e-6"))
    refused = command(tmp_path, code=train.format(variant=chosen[0], n=3, resume=True).replace("'run'", f"'top/{chosen[0]}'"))
    assert refused.returncode == 1 and "expected operators l2_rows by compiled, of rows-dist 1.5 (" in refused.stderr
    composed = command(tmp_path, "run", "on_rows", "--variant", *chosen, "--epochs", "3", "--out", "top", "--resume", "auto", DUOLN_NATIVE="0")
    assert composed.returncode != 0 and "l2_rows by composed" in " ".join(composed.stderr.split())
