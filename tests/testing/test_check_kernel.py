"""`check_kernel`: the example's three texts pass without hardware; what is broken in each of them is found and named."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from duoln import examples, extend
from duoln.errors import CallError, DtypeError, DuolnError, KernelError, UsageError
from duoln.examples import own_operator
from duoln.kernels import native, registry
from duoln.testing import check_error, check_kernel, check_op, nvrtc

pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("g++") is None, reason="it needs Linux and g++")
FOLDER = Path(examples.__file__).parent


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A copy of the example with texts of its own: `own(file, old, new)` changes one and gives the operator."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    name = f"own_{tmp_path.name.replace('-', '_')}"
    monkeypatch.syspath_prepend(tmp_path)
    for file in FOLDER.glob("l2_rows.*"):
        shutil.copy(file, tmp_path)
    program = (FOLDER / "own_operator.py").read_text().replace("l2_rows(x:", f"{name}(x:").replace("l2_rows.add", f"{name}.add")
    program = program.replace("fused(l2_rows,", f"fused({name},").replace("extend.case(l2_rows,", f"extend.case({name},")
    (tmp_path / f"{name}.py").write_text(program.replace("    l2_rows,\n", f"    {name},\n"))

    def make(file="l2_rows.cpp", old="", new=""):
        text = (tmp_path / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new))
        return getattr(__import__(name), name)

    yield make
    sys.modules.pop(name, None)


@pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")
def test_the_example_is_proved_on_each_device():
    lines = check_kernel(own_operator.l2_rows, seeds=2, twins=[("sum[0] += ", "sum[0] -= "), ("k < width", "k <= width")])
    assert lines[0] == "numpy: 5 cases and rules between guard pages" and lines[3] == "broken twins found: 2"
    compiled = f"NVRTC {nvrtc.version()} compiles 6 settings for sm_80, sm_90" if nvrtc.version() else "not compiled by NVRTC"
    assert lines[1].startswith(f"cupy: 7 cases and rules on the CPU, 2 orders of threads; {compiled}")
    assert lines[2] == "mlx: 7 cases and rules on the CPU, 2 orders of threads"


BROKEN = {
    "a write behind an array": ("l2_rows.cpp", "scale[row] = ", "y[(row + 1) * width] = scale[row] = ",
                                "numpy, rule 'compiled', case .* access outside an array, guarded at the end"),
    "a wrong gradient": ("l2_rows.cpp", "- lanes.load(in + k) * along", "+ lanes.load(in + k) * along", "numpy, guarded at .* gradient 0, "),
    "an access outside an array of CUDA": ("l2_rows.cu", "size_t(blockIdx.x) * width;", "size_t(blockIdx.x) * width + 1;",
                                           r"cupy, rule 'cuda', case .* thread \(.*argument 'x': an access \d+ bytes from its start"),
    "a missing barrier": ("l2_rows.cu", "block_sum<THREADS>(sum, shared);",
                          "if (threadIdx.x == 0) shared[0] = 0; shared[0] += sum[0]; sum[0] = shared[0];", "race, no barrier between them"),
    "values that are not written": ("l2_rows.metal", "if (t == 0) scale[row] = by;", "", "mlx, rule 'metal', case .*output 0|mlx, rule 'metal'.*gradient 0"),
    "a text that does not compile": ("l2_rows.cu", "rsqrtf(", "rsqrt_of(", "the C\\+\\+ compiler refuses the kernel:\n.*rsqrt_of"),
}


@pytest.mark.parametrize(("file", "old", "new", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_named(own, file, old, new, message):
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        check_kernel(own(file, old, new), seeds=1)


def test_a_twin_that_passes(own):
    op = own()
    with pytest.raises(AssertionError, match="expected an error or wrong values of the broken twin"):
        check_kernel(op, seeds=1, twins=[("eps)", "eps )")])
    check_error(UsageError, lambda: check_kernel(op, seeds=1, twins=[("__syncwarp", "")]), "found '__syncwarp' in none")


def test_what_it_refuses():
    check_error(DtypeError, lambda: check_kernel("l2_rows"), "[check_kernel] op: expected an operator")
    square = extend.op("x: real[*shape] -> like x")(own_operator.l2_rows.function)
    check_error(UsageError, lambda: check_kernel(square), "which is not registered; extend.register(l2_rows, cases) beside it")


def test_more_of_what_is_broken_is_named(own):
    with pytest.raises(AssertionError, match=r"(?s)no registered case reaches the rule 'compiled':.*does not compile"):
        check_kernel(own("l2_rows.cpp", "const T* in = x", "const T* in == x"), seeds=1)


def test_an_exception_that_leaves_the_text_names_the_case(own):
    with pytest.raises(AssertionError, match=r"rule 'compiled', case .*3 x 33.*an exception that left the text"):
        check_kernel(own("l2_rows.cpp", "RowSum<T> squares;", "RowSum<T> squares;\n            if (row == 2) throw 1;"), seeds=1)


def test_a_twin_changes_the_text_alone_and_no_header(own):
    check_error(UsageError, lambda: check_kernel(own(), seeds=1, twins=[("__shfl_xor_sync", "")]), "found '__shfl_xor_sync' in none")
    check_error(DtypeError, lambda: check_kernel(own(), twins=("a", "")), "twins: expected pairs (piece, replacement) of texts, found 'a'")


def test_check_op_tries_the_composed_rule_too(own):
    own()
    [module] = [m for name, m in sys.modules.items() if name.startswith("own_test")]
    op = getattr(module, module.__name__)
    op.add(extend.Rule("composed", module.composed_forward, lambda be, saved, gout, needs: (gout,)))
    with pytest.raises(DuolnError, match="expected a derivative"):
        check_op(op, [np.ones((3, 5))], lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6), "numpy", dtype="float64")


def test_an_entry_that_no_text_has(own, tmp_path):
    own()
    check_error(KernelError, lambda: extend.Launch(tmp_path / "l2_rows", "nope", "x: real[*size] -> y: like x"), "[nope] expected ENTRY(nope)")


@pytest.mark.parametrize(("make", "words"), [
    (lambda op: extend.case(op), "expected the shapes of 1 to 1 arrays, found 0"), (lambda op: extend.case(op, 3), "expected a shape of an array of floats as x, found 3"),
    (lambda op: extend.case(op, (3, 4), epsilon=2), "expected attributes of eps; found 'epsilon'")])
def test_a_case_of_other_arrays_or_attributes(make, words):
    check_error(CallError, lambda: make(own_operator.l2_rows), f"[case] l2_rows: {words}")
