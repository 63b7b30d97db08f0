"""`check_task` sees what is wrong with a task, and says it."""

import sys
from textwrap import dedent

import numpy as np
import pytest
from duoln.examples.own_task import Spirals

from duoln import runtime
from duoln.core import stop_gradient
from duoln.errors import CompileError, GradientError
from duoln.testing import check_error, check_task


class Stopped(Spirals):
    """Half of its loss has no gradient."""

    def loss(self, model, params, batch):
        whole = super().loss(model, params, batch)
        return 0.5 * whole + 0.5 * stop_gradient(whole)


class Reads(Spirals):
    """Reads a value on the host within the step."""

    def loss(self, model, params, batch):
        whole = super().loss(model, params, batch)
        return whole * (1.0 if float(whole) > 0 else 2.0)


class Partial(Spirals):
    """Has another loss on one backend."""

    def loss(self, model, params, batch):
        whole = super().loss(model, params, batch)
        return whole if batch["x"].backend.name == "numpy" else whole * 1.001


class Random(Spirals):
    """Makes another batch whenever it is asked."""

    def data(self, cfg, root=None):
        splits, rng = super().data(cfg, root), np.random.default_rng()
        return type(splits)(splits.dataset, lambda step: splits.train(int(rng.integers(10**6))), splits.steps_per_epoch,
                            splits.evaluation)


def test_a_derivative_that_is_not_the_losss():
    check_error(GradientError, lambda: check_task(Stopped()), "loss of 'ln', in float64", "expected a derivative of")
    check_task(Stopped(), gradients=False)


def test_a_step_that_reads_on_the_host():
    check_error(CompileError, lambda: check_task(Reads(), gradients=False, agreement=False), "reads a value on the host")


def test_a_loss_that_differs_between_backends():
    if runtime.probe("mlx").backend is None:
        pytest.skip("a second backend is needed")
    with pytest.raises(AssertionError, match=r"agreement: 'ln', batch 0: expected one loss on every backend.* mlx"):
        check_task(Partial())
    with pytest.raises(AssertionError, match=r"agreement: .* on mlx and .* on numpy"):
        check_task(Partial(), backend="mlx")
    check_task(Partial(), agreement=False)


def test_data_that_are_no_function_of_the_step():
    with pytest.raises(AssertionError, match="differs when it is asked for again"):
        check_task(Random())


@pytest.mark.parametrize(("line", "found"), [
    ("import duoln.backends.numpy", "duoln.backends.numpy"), ("from duoln import kernels", "duoln.kernels"),
    ("from duoln.core.tape import Tape", "duoln.core.tape"), ("import numpy, mlx.core", "mlx.core"),
    ("from duoln.kernels.adam import cases", "duoln.kernels.adam"), ("def f():\n    import cupy", "cupy")])
def test_a_module_that_imports_what_it_leaves_to_duoln(tmp_path, monkeypatch, line, found):
    (tmp_path / "low_task.py").write_text(dedent("""
        from duoln.core import Op, Rule, Tensor, op
        from duoln.examples.own_task import Spirals

        class Low(Spirals):
            pass

        if False:
        """) + "".join(f"    {part}\n" for part in line.splitlines()))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "low_task", raising=False)
    import low_task

    with pytest.raises(AssertionError, match=r"layering: .*low_task\.py:(9|10): expected") as caught:
        check_task(low_task.Low())
    assert str(caught.value).endswith(f"found {found}")
    monkeypatch.delitem(sys.modules, "low_task")
