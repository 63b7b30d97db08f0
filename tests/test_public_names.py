"""The public names: `dir` shows them and nothing else, and they are few."""

import importlib
from types import ModuleType

import pytest

from duoln.testing import check_error

MODULES = ["duoln", *(f"duoln.{name}" for name in (
    "nn", "nn.init", "ops", "optim", "data", "tasks", "testing", "extend", "errors", "tree", "bridge", "bridge.torch", "bridge.mlx"))]
"""All that are public."""
LISTED = {"duoln", "duoln.nn", "duoln.ops", "duoln.optim", "duoln.data", "duoln.tasks", "duoln.testing", "duoln.extend", "duoln.bridge.torch",
          "duoln.bridge.mlx"}
"""Those in which a user looks for functions and classes; the others have the errors, initial values and trees."""


def _import(name):
    """A module; a bridge needs the library that it leads to."""
    if name.startswith("duoln.bridge."):
        pytest.importorskip(name.rpartition(".")[2])
    return importlib.import_module(name)


@pytest.mark.parametrize("name", MODULES)
def test_dir_is_what_is_public(name):
    module = _import(name)
    assert sorted({*dir(module)} - {"__version__"}) == sorted(module.__all__)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []
    check_error(AttributeError, lambda: module.no_such_name, f"module '{name}' has no attribute 'no_such_name'")


def test_public_names_are_few():
    """A module within another is counted there alone."""
    public = {name: [each for each in _import(name).__all__ if not isinstance(getattr(_import(name), each), ModuleType)] for name in MODULES}
    counts = {name: len(names) for name, names in public.items()}
    listed = sum(counts[name] for name in LISTED)
    print(*(f"{name} {count}" for name, count in counts.items()), f"these {listed}, all {sum(counts.values())}", sep="\n")
    assert listed <= 284
