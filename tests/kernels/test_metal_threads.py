"""Pipelines that allow fewer threads than Metal's most: fewer threads have more values, or another rule runs."""

import re
import sys

import pytest
from conftest import get_backend

mx = pytest.importorskip("mlx.core", reason="MLX is not for this platform")
if sys.platform != "linux":
    pytest.skip("kernels run on the CPU under Linux only", allow_module_level=True)

import numpy as np
import stand_in_metal

from duoln import ops
from duoln.errors import KernelError
from duoln.kernels.norm import metal as layer_norm_metal
from duoln.kernels.recurrent.cases import recurrent
from duoln.kernels.registry import Case
from duoln.testing import check_error, selftest


def _mlx(monkeypatch, allowed):
    """The MLX backend over pipelines that allow so many threads, by a kernel's name and the values of a thread."""
    def of_name(name):
        return allowed(name, int(re.search(r"units(\d+)", name)[1]))

    stand_in_metal.install(monkeypatch, stand_in_metal.make(allowed=of_name))
    return get_backend("mlx")


def _norm(op, width):
    rng = np.random.default_rng(width)
    x, row = rng.standard_normal((2, width)).astype(np.float32), np.ones(width, np.float32)
    if op == "layer_norm":
        return Case(op, f"2 x {width}", lambda: (x, row, row), {"eps": 1e-5}, 1)
    return Case(op, f"2 x {width}", lambda: (x, x, row), {"eps": 1e-5}, 1)


CASES = [_norm("layer_norm", 8192), _norm("add_rms_norm", 5000), recurrent("lstm", "layer", (1, 1, 1, 1100), False, False),
         recurrent("gru", "layer", (1, 1, 1, 2100), False, False), recurrent("lstm", "layer-cell", (2, 1, 1, 1030), True, False)]

FEW = [case if "H2100" not in case.label else pytest.param(case, marks=pytest.mark.long) for case in CASES]
"""Without one that takes half a gigabyte."""


@pytest.mark.parametrize("case", FEW, ids=str)
def test_fewer_threads_have_more_values(case, monkeypatch):
    mlx = _mlx(monkeypatch, lambda name, values: 384)
    before = len(stand_in_metal.launches)
    outcome = selftest.prove(case, mlx, repeats=1)
    assert outcome.rule.startswith("metal") and outcome.passed, outcome
    assert stand_in_metal.ran(before)


@pytest.mark.parametrize("case", FEW, ids=str)
def test_a_pipeline_that_allows_too_few_is_left_to_another_rule(case, monkeypatch):
    mlx = _mlx(monkeypatch, lambda name, values: 384 if values < 8 else 128)
    arrays = [None if a is None else mlx.asarray(a) for a in case.inputs]
    op = getattr(ops, case.op)
    [metal] = [rule for rule in op.rules("mlx") if rule.name.startswith("metal")]
    reason = metal.supports(mlx, *arrays, **case.attrs)
    assert re.fullmatch(r"256 threads with \d+ values each cannot run here: Thread group size .256. is greater than .*", reason)
    assert op.select(mlx, arrays, case.attrs).name != metal.name


def test_a_layout_is_tried_once(monkeypatch):
    mlx = _mlx(monkeypatch, lambda name, values: 1024)
    x = mlx.asarray(np.ones((1, 8192), np.float32))
    for _ in range(3):
        assert layer_norm_metal.supports(x) is None
    assert list(layer_norm_metal._layouts._refused.values()) == [None]
    before = len(stand_in_metal.launches)
    assert layer_norm_metal.supports(x[:, :7000]) is None and layer_norm_metal.supports(x[:, :2048]) is None
    assert len(stand_in_metal.launches) == before


def test_who_asks_for_the_kernel_itself_is_told(monkeypatch):
    _mlx(monkeypatch, lambda name, values: 128)
    x = mx.ones((1, 8192))
    check_error(KernelError, lambda: layer_norm_metal.backward(x, None, None, x, 1e-5, None, (True, False, False)), "256 threads")
