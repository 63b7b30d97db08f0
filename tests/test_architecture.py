"""The layers of duoln: a test reads the imports from the syntax trees and compares them with a table of layers."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

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
    "sklearn|scipy": r"plugins/skip_thoughts/(judging|table)\.py",
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
            and re.fullmatch(r"duoln\.kernels\.(\w+\.cases|registry|source|device_limits)(\.\w+)?", cases))

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


def test_experiments_are_all_alike():
    wanted = {"__init__.py", "task.py", "model.py", "data.py", "peer_torch.py", "README.md", "RESULTS.md"}
    missing = {folder.name: wanted - {p.name for p in folder.iterdir()}
               for folder in (ROOT / "plugins").iterdir() if (folder / "__init__.py").is_file() and folder.name not in GUESTS}
    in_one_module, in_its_task = missing.pop("sequential_mnist"), missing.pop("mnist")
    assert in_one_module == wanted - {"__init__.py", "README.md", "RESULTS.md"} and in_its_task == {"model.py", "data.py"}
    assert len(missing) == 8 and {name: files for name, files in missing.items() if files} == {}


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


def test_import_loads_a_few_small_modules():
    """Of duoln what chooses the CPU's kernels and what hears Ctrl-C, and else nothing that Python does not bring: so it is quick."""
    loaded = set(_fresh("import sys; before = set(sys.modules); import duoln; print(*set(sys.modules) - before)"))
    own = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert own == {"duoln", "duoln.system", "duoln.system.openblas", "duoln.system.stopping", "duoln.system.variables"}
