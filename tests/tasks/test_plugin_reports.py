"""Situations of public reports about plug-ins and extensions of other projects, each with its source, as authors of duoln's meet them.

A case is named by the project and the number of the report. What is wanted is either the right result or an error that names the
plug-in, or the operator, and what was expected.
"""

import importlib
import sys

import numpy as np
import pytest
from hostile_plugins import task

import duoln
from duoln.errors import KernelError
from duoln.extend import Launch, Rule, Tensor, native, op
from duoln.kernels.native import storage
from duoln.tasks.registry import Registry
from duoln.testing import check_error, check_rule


@pytest.mark.parametrize("is_link", [True, False], ids=["instawow: #188, a folder by two names", "importlib_metadata: #410, an editable install"])
def test_metadata_that_are_twice_on_the_path(install, tmp_path, monkeypatch, is_link):
    install("mine", task("name = 'mine'"))
    if is_link:
        (tmp_path / "more").symlink_to(tmp_path)
    else:
        egg = tmp_path / "more/mine_dist.egg-info"
        egg.mkdir(parents=True)
        (egg / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mine_dist\nVersion: 1.0\n")
        (egg / "entry_points.txt").write_text("[duoln]\nmine = mine_module\n")
    monkeypatch.syspath_prepend(tmp_path / "more")
    assert "mine" in Registry().tasks and Registry().broken == []


X = np.arange(6, dtype=np.float32).reshape(2, 3)
RIGHT = {"forward": lambda be, x: (x * x, x), "vjp": lambda be, x, gout, needs: (2 * x * gout,)}


def _square(**given):
    @op("x: real[*shape] -> like x")
    def square(x: Tensor) -> Tensor:
        """x^2."""
    square.add(Rule("composed", **{**RIGHT, **given}))
    return square


@pytest.mark.parametrize(("given", "words"), [
    pytest.param({"vjp": lambda be, x, gout, needs: ((2 * x * gout)[:, :1],)}, "expected shape (2, 3), found (2, 1)", id="pytorch: #65244, a gradient that would broadcast"),
    pytest.param({"vjp": lambda be, x, gout, needs: ((2 * x * gout).astype(np.float64),)}, "expected dtype float32, found float64", id="chainer: #5748, a gradient of another dtype")])
def test_check_rule_finds_a_rule_that_breaks_its_promises(given, words):
    square = _square()
    wrong = Rule("fast", **{**RIGHT, **given})
    check_error(AssertionError, lambda: check_rule(square, wrong, [X], "numpy"), words)


def test_pytorch_125183_a_module_of_operators_is_loaded_again(tmp_path, monkeypatch):
    text = ("from duoln.extend import Rule, Tensor, op\n@op('x: real[*shape] -> like x')\ndef times(x: Tensor) -> Tensor:\n    'x.'\n"
            "times.add(Rule('composed', lambda be, x: ({} * x, None), lambda be, s, gout, needs: ({} * gout,)))\n")
    monkeypatch.syspath_prepend(tmp_path)
    for scale in (2, 33):  # texts of two lengths, because Python may take one of the same second and length from its cache
        (tmp_path / "reloaded_module.py").write_text(text.format(scale, scale))
        made = importlib.reload(sys.modules["reloaded_module"]) if scale == 33 else importlib.import_module("reloaded_module")
        assert made.times(duoln.tensor(X, "numpy")).tolist() == (scale * X).tolist()
    monkeypatch.delitem(sys.modules, "reloaded_module")


TEXT = '#include "scale.h"\n#include "common.h"\nENTRY(scaled) {\n    for (index_t k = 0; k < size; ++k) y[k] = SCALE * x[k];\n}\n'
needs_compiler = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """A launch of a text in a package's folder, whose header has a scale."""
    monkeypatch.setattr(storage, "_outside", set())

    def make(package, scale, text=TEXT):
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / "scale.h").write_text(f"static const int SCALE = {scale};\n")
        (tmp_path / package / "scaled.cpp").write_text(text)
        return Launch(str(tmp_path / package / "scaled"), "scaled", "x: real[*size] -> y: like x")["numpy"]
    return make


@needs_compiler
def test_kernel_builder_11_two_packages_with_the_same_names_of_files_headers_and_entries(launch):
    first, second = launch("a", 2), launch("b", 5)
    assert first(X).tolist() == (2 * X).tolist() and second(X).tolist() == (5 * X).tolist()
    assert launch("a2", 5)(X).tolist() == (5 * X).tolist(), "exllama: #209, only a header differs"


@needs_compiler
@pytest.mark.parametrize("view", [np.transpose, lambda x: x[:, ::2], lambda x: x[::-1], lambda x: np.broadcast_to(x[0], (4, 3)), lambda x: x[:0]])
def test_flash_attention_355_arrays_in_any_layout(launch, view):
    assert launch("a", 2)(view(X)).tolist() == (2 * view(X)).tolist()


def test_quanto_254_a_package_without_its_text(tmp_path):
    check_error(KernelError, lambda: Launch(str(tmp_path / "gone"), "scaled", "x: real[*size] -> y: like x"), "[scaled] expected ENTRY(scaled) in a text ", "gone.cpp")
