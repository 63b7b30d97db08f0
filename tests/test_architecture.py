"""The layers of duoln: a test reads the imports from the syntax trees and compares them with a table of layers."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import duoln

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("duoln", "kernels", "plugins", "examples")

# A module imports what is above it in this table, to its left on the same line, or in its own folder.
LAYERS = (
    ("errors", "system", "backends"),
    ("tree", "core", "randomness"),
    ("ops", "kernels"),
    ("nn", "optim", "data", "pictures"),
    ("tasks", "runtime", "runs", "bridge", "distributed", "training", "bench", "testing", "doctor", "extend"),
    ("cli",),
    ("plugins",),
    ("examples", "__main__"),
)
FOR_TYPES = ("duoln/tasks/__init__.py", "duoln.training.train")
"""What type checkers see of `duoln.tasks.train`, which is loaded when it is used."""
ORDER = [unit for layer in LAYERS for unit in layer]

# Which files may import an outside library.
OWNERS = {
    "cupy|cupyx|cupy_backends|mlx": r"duoln/backends/(cupy|cublas|cuda_graph|mlx)\.py|duoln/bridge/(mlx|torch/arrays)\.py|duoln/distributed/(ring|nccl)\.py|kernels/(\w+/(cupy|cuda|cuda_steps|cuda_walk|metal|mlx)|launch|metal)\.py",
    "rich": r"duoln/cli/(console|rows_table)\.py",
    "pluggy": r"duoln/tasks/\w+\.py",
    "pooch": r"duoln/data/\w+\.py",
    "safetensors": r"duoln/runs/tensor_file\.py",
    "matplotlib": r"duoln/pictures/\w+\.py",
    "sklearn|scipy": r"plugins/skip_thoughts/(classify|table)\.py",
    "torch": r"plugins/\w+/peer_torch\.py|duoln/bridge/torch/\w+\.py|duoln/bench/in_torch\.py|examples/inside_pytorch\.py",
    "tensorboardX": r"duoln/runs/tensorboard\.py",
    "soundfile": r"plugins/las/audio\.py",
    "numpy": r".*",
}


class Import(NamedTuple):
    """One import: the file and line it is in, the module, and the name taken from it ("" for the module).

    `lazy` says that the name was taken from `duoln` itself, which has it from that module.
    """

    file: str
    line: int
    module: str
    name: str
    lazy: bool = False

    def __str__(self):
        return f"{self.file}:{self.line} imports {self.module}{self.name and '.' + self.name}"


def _module_of(file):
    parts = Path(file).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "duoln" else ("duoln", *parts))


FILES = sorted(p.relative_to(ROOT).as_posix() for top in TOPS for p in (ROOT / top).rglob("*.py"))
MODULES = {_module_of(file) for file in FILES}


def imports_in(file, source):
    """Every import of a source text, those inside functions too, with names resolved to modules of duoln."""
    package = _module_of(file).split(".")
    if not file.endswith("__init__.py"):
        package = package[:-1]
    for node in ast.walk(ast.parse(source, file)):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[:len(package) + 1 - node.level], *filter(None, [node.module])])
            base = base if node.level else node.module
            for alias in node.names:
                if f"{base}.{alias.name}" in MODULES:
                    yield Import(file, node.lineno, f"{base}.{alias.name}", "")
                elif base == "duoln" and alias.name in duoln._LAZY:
                    yield Import(file, node.lineno, duoln._LAZY[alias.name], alias.name, lazy=True)
                else:
                    yield Import(file, node.lineno, base, alias.name)


@functools.cache
def every_import():
    """Those of all files. Reading them takes seconds."""
    return [statement for file in FILES for statement in imports_in(file, (ROOT / file).read_text(encoding="utf-8"))]


def ours():
    """Those of duoln's own modules."""
    return [i for i in every_import() if i.module.split(".")[0] == "duoln"]


def outside():
    """Those of neither duoln nor Python."""
    return [i for i in every_import() if i.module.split(".")[0] not in {"duoln", *sys.stdlib_module_names}]


def unit_of(module):
    """The name in LAYERS to which a module belongs; "" for duoln itself."""
    return ".".join(module.split(".")[1:2])


def out_of_order(statement):
    """Whether an import goes against LAYERS."""
    importer, imported = unit_of(_module_of(statement.file)), unit_of(statement.module)
    if not importer or not imported:  # duoln itself, whose own imports have a test of their own
        return False
    if importer == imported or (statement.file, statement.module) == FOR_TYPES:
        return False
    return ORDER.index(imported) >= ORDER.index(importer)


def _listed(imports):
    return [str(i) for i in imports]


# The order --------------------------------------------------------------------------------------------

def test_every_module_has_a_layer():
    assert sorted({unit_of(m) for m in MODULES} - {""} - set(ORDER)) == []


def test_every_layer_has_a_module():
    assert sorted(set(ORDER) - {unit_of(m) for m in MODULES}) == []


def test_every_import_goes_down_or_left():
    assert _listed(i for i in ours() if out_of_order(i)) == []


@pytest.mark.parametrize(("file", "source"), [
    ("duoln/ops/norm.py", "import duoln.kernels.host"), ("duoln/ops/norm.py", "from duoln import kernels"),
    ("duoln/ops/norm.py", "from ..kernels import host"), ("duoln/ops/norm.py", "from .. import nn"),
    ("duoln/core/op.py", "def f():\n    from duoln.ops import add"), ("duoln/tree.py", "from duoln import tensor"),
    ("duoln/errors.py", "from duoln.backends.protocol import Array"), ("kernels/adam/__init__.py", "from duoln import nn"),
    ("duoln/training/trainer.py", "from duoln.plugins.mnist import Mnist"), ("duoln/cli/run.py", "import duoln.plugins.paper"),
    ("duoln/ops/__init__.py", "from ..nn import init")])
def test_a_wrong_import_would_be_seen(file, source):
    [statement] = imports_in(file, source)
    assert out_of_order(statement), statement


@pytest.mark.parametrize(("file", "source"), [
    ("duoln/ops/norm.py", "from . import common"), ("duoln/ops/__init__.py", "from .common import check_float"),
    ("kernels/adam/__init__.py", "from duoln.ops.update import adam_update"), ("duoln/cli/run.py", "from duoln import tensor")])
def test_a_right_import_is_let_through(file, source):
    [statement] = imports_in(file, source)
    assert statement.module in MODULES and not out_of_order(statement), statement


def test_duoln_itself_imports_only_what_loads_nothing():
    tree = ast.parse((ROOT / "duoln/__init__.py").read_text())
    at_once = ast.Module([node for node in tree.body if not isinstance(node, ast.If)], [])
    imports = imports_in("duoln/__init__.py", ast.unparse(at_once))
    assert {i.module for i in imports if i.module.split(".")[0] not in sys.stdlib_module_names} == \
        {"duoln.system.openblas", "duoln.system.stopping"}


def test_nothing_low_asks_duoln_itself():
    """`import duoln` reaches everything by attribute, so low layers must not have it."""
    high = [unit for layer in LAYERS[4:] for unit in layer]
    assert _listed(i for i in ours() if i.module == "duoln" and i.name not in ("data", "nn", "ops", "optim")
                   and unit_of(_module_of(i.file)) not in high) == []


# Special rules ----------------------------------------------------------------------------------------

def test_only_runtime_knows_kernels():
    """And `extend`, of what every rule uses and its cases; bench and selftest, of their cases: shapes, formulas and arrays, and of what a CPU copies; and what
    tries a device: it compiles all settings, launches and measures, or runs launches on the CPU.
    """
    def allowed(i):
        importer = unit_of(_module_of(i.file))
        cases = f"{i.module}.{i.name}".rstrip(".")
        if importer == "extend":
            return bool(re.fullmatch(r"duoln\.kernels\.(launch(\.\w+){1,2}|(host|native|registry)(\.\w+)?)", cases))
        if re.match(r"duoln/testing/(emulation|guard_pages)\.py", i.file) and re.fullmatch(r"duoln\.kernels\.(launch(\.\w+){0,2}|host)", cases):
            return True
        if re.match(r"duoln/(bench/(survey_parts|device)|testing/checks)\.py", i.file) and re.fullmatch(
                r"duoln\.kernels\.(settings|registry|recurrent\.cells|device_limits|recurrent\.cuda_walk|launch(\.cuda)?)(\.\w+)?", cases):
            return True
        return importer in ("kernels", "runtime") or (
            importer in ("bench", "testing", "cli", "doctor")
            and re.fullmatch(r"duoln\.kernels\.(\w+\.cases|registry|source|device_limits\.memory)(\.\w+)?", cases))

    assert _listed(i for i in ours() if unit_of(i.module) == "kernels" and not allowed(i)) == []


def test_only_runtime_and_doctor_load_backends():
    """Others may have the protocol, and nothing that loads a library; rules on CuPy's arrays may have its products."""
    harmless = ("duoln.backends.protocol",)
    assert _listed(i for i in ours() if unit_of(i.module) == "backends" and i.module not in harmless
                   and not (i.module == "duoln.backends.cublas" and unit_of(_module_of(i.file)) == "kernels")
                   and unit_of(_module_of(i.file)) not in ("backends", "runtime", "doctor")) == []


def test_contributing_shows_these_layers():
    """There the highest layer stands first; what follows two spaces is a remark."""
    page = (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Architecture")[2].split("```")[1].strip()
    assert [tuple(line.split("  ")[0].split()) for line in table.splitlines()][::-1] == list(LAYERS)


GUESTS = ("paper", "theory")
"""Plug-ins that bring commands and measure the library, and train nothing of their own. The layers alone bind them."""
OF_PLUGINS = ("extend", "nn", "ops", "optim", "data", "tasks", "errors", "pictures")
"""What a plug-in may import, beside names of `duoln` itself, such as `from duoln import Tensor`, and its own folder."""


def fit_for_a_plugin(taken):
    """Whether an experiment may have an import: nothing of core, backends, kernels, cli or another plug-in."""
    top = taken.module.split(".")[0]
    if top == "duoln":
        own = ".".join(_module_of(taken.file).split(".")[:3])
        return taken.lazy or unit_of(taken.module) in OF_PLUGINS or f"{taken.module}.".startswith(f"{own}.")
    return (top in {"numpy", *sys.stdlib_module_names} or (top == "torch" and taken.file.endswith("/peer_torch.py"))
            or top in {"sklearn", "scipy", "soundfile"})  # which files may have them, OWNERS says


def _folder_of(file):
    return file.split("/")[1] if file.startswith("plugins/") else ""


def test_experiments_import_nothing_below_nn():
    assert _listed(i for i in every_import() if _folder_of(i.file) not in ("", *GUESTS) and not fit_for_a_plugin(i)) == []


def test_guests_import_no_experiment():
    """They are told of tasks by the registry. `paper` knows the analyses of `theory`."""
    allowed = {"paper": GUESTS, "theory": ("theory",)}
    assert _listed(i for i in ours() if _folder_of(i.file) in GUESTS and unit_of(i.module) == "plugins"
                   and i.module.split(".")[2] not in allowed[_folder_of(i.file)]) == []


@pytest.mark.parametrize("source", [
    "from duoln.core import Tensor", "from duoln.core import Rule", "from duoln import core", "import duoln.backends.numpy",
    "from duoln.backends.protocol import Array", "from duoln.kernels import host", "from duoln import kernels",
    "from duoln.plugins.draw.ops import filterbank", "from duoln import runtime", "import duoln.training", "import duoln.cli", "import torch"])
def test_a_wrong_import_of_a_plugin_would_be_seen(source):
    [taken] = imports_in("plugins/mnist/model.py", source)
    assert not fit_for_a_plugin(taken), taken


@pytest.mark.parametrize("source", [
    "from duoln import Tensor", "from duoln import to_tensors", "from duoln import ops", "from duoln.extend import Rule",
    "from duoln.plugins.mnist import data", "from duoln.tasks import hookimpl", "import numpy as np"])
def test_a_right_import_of_a_plugin_is_let_through(source):
    [taken] = imports_in("plugins/mnist/model.py", source)
    assert fit_for_a_plugin(taken), taken


GENERAL = {"additive_attention", "clip_gradient", "leaky_relu", "linear_cross_entropy", "log_softmax", "max_pool2d", "softmax",
           "unstack"}
"""Operators that only one plug-in uses today, and that belong to no one experiment: other frameworks offer them too."""


def operators_used(file, source, names):
    """The operators of duoln that a source text uses: `ops.NAME`, or a name imported from `duoln.ops` or below it."""
    used = {i.name for i in imports_in(file, source) if i.module.split(".")[:2] == ["duoln", "ops"]}
    for node in ast.walk(ast.parse(source, file)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ops":
            used.add(node.attr)
    return used & names


@functools.cache
def _users():
    """Who uses each operator: `plugins.NAME`, or another unit. Kernels are left out: they only make one faster."""
    users = {name: set() for name in (*duoln.ops.__all__, *duoln.ops.WITHIN)}
    for file in FILES:
        if not file.startswith(("kernels/", "duoln/ops/")):
            parts = _module_of(file).split(".")[1:]
            user = ".".join(parts[:2] if parts[:1] == ["plugins"] else parts[:1])
            for name in operators_used(file, (ROOT / file).read_text(encoding="utf-8"), set(users)):
                users[name].add(user)
    return users


@pytest.mark.long
def test_no_operator_of_the_library_serves_one_experiment_alone():
    """An operator that one plug-in alone uses lives in its folder, unless NumPy or other frameworks have it."""
    alone = {name for name, used_by in _users().items() if len(used_by) == 1 and min(used_by).startswith("plugins.")}
    assert sorted(name for name in alone - GENERAL if not hasattr(np, name)) == []


@pytest.mark.long
def test_the_users_of_operators_are_seen():
    names = {"exp", "tanh", "concat"}
    source = "from duoln import ops\nfrom duoln.ops.shape import concat\ndef f(x):\n    return ops.exp(x)\n"
    assert operators_used("plugins/draw/model.py", source, names) == {"exp", "concat"}
    users = _users()
    assert users["additive_attention"] == {"plugins.las"} and {"nn", "plugins.convnet"} <= users["layer_norm"]
    assert set(users) >= GENERAL


def test_no_plugin_is_imported_but_by_itself_and_by_examples():
    assert _listed(i for i in ours() if unit_of(i.module) == "plugins"
                   and unit_of(_module_of(i.file)) not in ("plugins", "examples")) == []


def test_each_outside_library_has_its_place():
    def allowed(statement):
        top = statement.module.split(".")[0]
        return any(re.fullmatch(names, top) and re.fullmatch(files, statement.file) for names, files in OWNERS.items())

    assert _listed(i for i in outside() if not allowed(i)) == []


# What is on disk --------------------------------------------------------------------------------------

def test_no_file_is_long():
    lengths = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {file: n for file, n in lengths.items() if n > 450} == {}


def test_few_modules_are_loose():
    """What is not in a room of its own is what everything uses."""
    loose = sorted(file for file in FILES if re.fullmatch(r"duoln/(?!__)\w+\.py", file))
    assert len(loose) <= 9, loose


def test_backends_has_one_file_per_library():
    """Beside the protocol, and what some libraries share."""
    assert sorted(p.name for p in (ROOT / "duoln/backends").glob("*.py")) == \
        ["__init__.py", "cublas.py", "cuda_graph.py", "cupy.py", "long_sums.py", "mlx.py", "numpy.py", "numpy_like.py", "protocol.py", "storage.py"]


def test_experiments_are_all_alike():
    wanted = {"__init__.py", "task.py", "model.py", "data.py", "peer_torch.py", "README.md", "RESULTS.md"}
    missing = {folder.name: wanted - {p.name for p in folder.iterdir()}
               for folder in (ROOT / "plugins").iterdir() if (folder / "__init__.py").is_file() and folder.name not in GUESTS}
    in_one_module = missing.pop("sequential_mnist")
    assert in_one_module == wanted - {"__init__.py", "README.md", "RESULTS.md"}
    assert len(missing) == 9 and {name: files for name, files in missing.items() if files} == {}


def test_every_folder_is_a_listed_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = project["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(_module_of(file) for file in FILES if file.endswith("__init__.py"))
    packages = {Path(file).parent for file in FILES if file.endswith("__init__.py")}
    assert {file for file in FILES if Path(file).parent not in packages} == set()


# What import duoln costs ------------------------------------------------------------------------------

def _fresh(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()


def test_import_loads_nothing_heavy():
    loaded = set(_fresh("import duoln, sys; print(*sys.modules)"))
    heavy = ("cupy", "mlx", "torch", "rich", "pluggy", "pooch", "matplotlib", "safetensors", "sklearn", "duoln.plugins",
             "duoln.kernels", "duoln.cli")
    assert "duoln" in loaded and sorted(loaded.intersection(heavy)) == []


@pytest.mark.long
def test_import_of_what_a_plugin_needs_loads_no_device_library():
    loaded = set(_fresh("import duoln.tasks.registry, duoln.testing, sys; print(*sys.modules)"))
    heavy = ("cupy", "mlx", "torch", "rich", "matplotlib")
    assert "duoln.testing" in loaded and sorted(loaded.intersection(heavy)) == []


def test_import_loads_a_few_small_modules():
    """Of duoln what chooses the CPU's kernels and what hears Ctrl-C, and else nothing that Python does not bring: so it is quick."""
    loaded = set(_fresh("import sys; before = set(sys.modules); import duoln; print(*set(sys.modules) - before)"))
    own = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert own == {"duoln", "duoln.system", "duoln.system.openblas", "duoln.system.stopping", "duoln.system.variables"}
