"""Values that leave a gradient for Python or NumPy would be constants there: NumPy's arrays are refused, numbers warn."""

import warnings

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import GradientError, GradientWarning
from duoln.testing import check_error

ARRAYS = {
    "np.mean": lambda x: ops.sum(x) * float(np.mean(x)), "np.asarray": lambda x: ops.sum(x * duoln.tensor(np.asarray(x), x.backend)),
    "numpy()": lambda x: ops.sum(x * duoln.tensor(np.exp(x.numpy()), x.backend)), "np.array": lambda x: ops.sum(x * np.array(x)[0].item()),
    "tolist": lambda x: ops.sum(x) * x.tolist()[0], "of an intermediate": lambda x: ops.sum(x) * float(np.max(ops.exp(x))),
    "np.concatenate": lambda x: ops.sum(x) * float(np.concatenate([x, x]).sum()),
}
NUMBERS = {
    "float": lambda x: x * float(x), "item": lambda x: x * x.item(), "int": lambda x: x * int(x),
    "math": lambda x: x * __import__("math").exp(x), "an intermediate": lambda x: x * ops.exp(x).item(),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_refused(name, be):
    x = duoln.tensor([1.0, 2.0], be)
    check_error(GradientError, lambda: duoln.value_and_grad(ARRAYS[name])(x), "a tensor outside a gradient", "(2,)",
                "duoln.ops", "duoln.stop_gradient(x)")
    ARRAYS[name](x)  # no gradient is asked for


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_warn_at_the_line_of_the_user(name, be):
    x = duoln.tensor(2.0, be)
    with pytest.warns(GradientWarning, match=r"constant.*stop_gradient\(x\)") as caught:
        duoln.value_and_grad(NUMBERS[name])(x)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NUMBERS[name](x)


def test_what_changes_no_gradient_is_silent(be, capsys):
    kept = []

    def loss(x):
        print(x, f"{x:.1f}", round(x, 1))
        kept.append(x)
        positive, fixed = x > 0, duoln.stop_gradient(x)
        labels = ops.astype(x, dtype="int32")
        return x * (1.0 if x > 0 and bool(x) and positive.item() else 2.0) * fixed.item() * float(fixed.numpy()) * labels.item()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, gradient = duoln.value_and_grad(loss)(duoln.tensor(2.0, be))
        assert gradient.item() == 8.0 and kept[0].item() == float(np.mean(kept[0])) == 2.0  # the tape is closed
    assert "2.0" in capsys.readouterr().out


def test_a_compiled_step_has_its_own_error(be):
    def step(x):
        return duoln.value_and_grad(lambda x: x * float(x))(x)

    check_error(duoln.errors.CompileError, lambda: duoln.compile(step)(duoln.tensor(2.0, be)), "host")
