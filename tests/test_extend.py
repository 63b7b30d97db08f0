"""`duoln.extend`: its own example runs, it describes all that it lists, and it loads no device library."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from duoln import extend, ops
from duoln.errors import KernelError
from duoln.kernels.native import storage
from duoln.testing import check_error, check_op, check_rule


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


def test_an_author_launches_a_kernel_of_a_file_of_their_own(gpu, tmp_path):
    file = tmp_path / "twice.cu"
    file.write_text('ENTRY(twice) {\n'
                    '    if (threadIdx.x < size) y[threadIdx.x] = 2 * x[threadIdx.x];\n}\n')
    twice = extend.Launch(str(file.with_suffix("")), "twice", "x: real[*size] -> y: like x")
    x = gpu.asarray(np.arange(5, dtype=np.float32))
    assert gpu.to_numpy(twice[gpu.name](x)).tolist() == [0, 2, 4, 6, 8]
    check_error(KernelError, lambda: extend.Launch(str(file.with_suffix("")), "thrice", "x: real[*size] -> y: like x"),
                "[thrice] expected ENTRY(thrice) in a text")


def test_it_loads_no_device_library():
    code = "import duoln; duoln.extend.Op, duoln.extend.host, duoln.extend.Rule; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[1])
    loaded = set(done.stdout.split())
    assert "duoln.kernels.host" in loaded
    assert sorted(loaded & {"cupy", "mlx", "mlx.core", "torch", "pluggy", "duoln.kernels.launch.cuda", "duoln.kernels.launch.metal",
                            "duoln.testing"}) == []


def test_the_operators_of_the_library_and_of_an_author_are_of_one_kind():
    assert isinstance(ops.tanh, extend.Op)


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


def test_help_does_without_the_libraries_of_devices(monkeypatch):
    import pydoc
    import sys

    import duoln.extend

    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "duoln.kernels.launch.cuda", raising=False)
    assert "Launch" in pydoc.render_doc(duoln.extend)
