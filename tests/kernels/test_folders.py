"""The folders of the kernels: the page has the rules of the operators with one for a GPU, and each operator with a rule has cases."""

import sys

import pytest
from conftest import STAND_IN, get_backend
from readme_tables import renewed

from duoln.kernels import native, registry, source


@pytest.mark.skipif(native.machine_refusal() is not None, reason="the page has the compiled rules")
def test_the_page_of_the_kernels_has_the_rules_of_the_operators_with_one_for_a_gpu():
    pytest.importorskip("mlx.core")
    page = source.FOLDER / "README.md"
    assert renewed(page) == page.read_text(encoding="utf-8")


def test_every_folder_with_rules_has_the_cases_of_its_operators():
    """Or another folder has them."""
    for name in ("numpy", "mlx", STAND_IN) if sys.platform == "linux" else ("numpy",):
        fused = {op.name for op, _ in registry.every_rule(get_backend(name))}
        assert fused - {case.op for case in registry.every_case()} == set()
