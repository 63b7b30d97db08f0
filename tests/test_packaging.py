"""duoln works as a wheel, as an uninstalled checkout, and in both kinds of editable install.

Every case runs where the duoln of the person who runs the tests cannot be seen: the libraries it needs are
linked into a folder of their own, without duoln and without the files that make editable installs work.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("duoln", "kernels", "plugins", "examples")
DATA = ("kernels/README.md", "kernels/text/portable.h", "kernels/text/cuda/common.cuh", "kernels/text/metal/common.metal.h",
        "kernels/adam/probe.cu", "kernels/adam/probe.metal",
        "kernels/timings.jsonl", "plugins/mnist/README.md")
"""Files of the kinds that packages carry; those that are not there yet are made up in the copies."""

PROBE = """
import duoln.kernels.adam, duoln.plugins.mnist, duoln.examples.mnist
import importlib.util, json, sys
names = json.loads(sys.argv[1])
missing = [name for name in names if importlib.util.find_spec(name) is None]
from duoln import runtime
runtime.backend("numpy")
from duoln.core import Op
from duoln import ops
fast = ops.layer_norm.rules("numpy")[0].name
found = {name: module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "duoln"}
found |= {name: importlib.util.find_spec(name).origin for name in names if name not in missing}
print(json.dumps({"missing": missing, "found": found, "fast": fast}), flush=True)
import runpy
sys.argv = ["duoln", "list", "--json"]
runpy.run_module("duoln", run_name="__main__")
"""
"""What is found from where, in a line; then what `python -m duoln list --json` writes."""


def _run(command, cwd, *paths, **env):
    """What a command writes, in an environment that only knows `paths`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DUOLN_", "PYTHON", "COV_", "PYTEST_"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False, timeout=PATIENCE,
                          env=kept | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1",
                                      "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_COLOR": "1", **env})
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _can_build():
    """Whether this interpreter can build without fetching anything."""
    try:
        return int(version("setuptools").split(".")[0]) >= 77 and bool(version("wheel"))
    except ImportError:
        return False


BUILD = ["--no-deps", *(["--no-build-isolation", "--no-index"] if _can_build() else [])]


def _module_names():
    for top in TOPS:
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            yield ".".join(parts if top == "duoln" else ("duoln", *parts))


NAMES = json.dumps(sorted(_module_names()))


@pytest.fixture(scope="module")
def make_checkout(tmp_path_factory):
    def make():
        folder = tmp_path_factory.mktemp("checkout") / "duoln"  # the name of a clone
        for top in TOPS:
            shutil.copytree(ROOT / top, folder / top, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", ".ci/duoln_build.py"):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        for name in DATA:
            if not (folder / name).exists():
                (folder / name).write_text("made up by a test\n")
        return folder

    return make


@pytest.fixture(scope="module")
def checkout(make_checkout):
    return make_checkout()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Everything that is installed here, but duoln."""
    folder = tmp_path_factory.mktemp("libraries")
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if "duoln" not in path.name and path.suffix != ".pth":
                (folder / path.name).symlink_to(path, target_is_directory=path.is_dir())
    return folder


@pytest.fixture(scope="module")
def wheel(make_checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "pip", "wheel", *BUILD, "-w", folder, make_checkout()], folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    _run([sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel], folder)
    return folder


@pytest.fixture
def empty(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def _check(python, home, cwd, *paths):
    """Every module is found, all in `home`, and the command line knows the built-in task."""
    first, _, rest = _run([*python, "-c", PROBE, NAMES], cwd, *paths).partition("\n")
    seen, listed = json.loads(first), json.loads(rest)
    assert seen["missing"] == []
    strays = {name: file for name, file in seen["found"].items() if not Path(file or "").is_relative_to(home)}
    assert strays == {}
    assert seen["fast"] != "composed"
    assert "mnist" in {task["name"] for task in listed["tasks"] if task["distribution"] == "duoln"}
    assert listed["broken"] == []


PLAIN = [sys.executable, "-S"]
"""Without -S the files that make editable installs work would be read."""


def test_nothing_leaks_in(libraries, empty):
    """The proof that the tests below test anything."""
    code = ("import importlib.util as u, importlib.metadata as m; "
            "print(u.find_spec('duoln'), [d for d in m.entry_points(group='duoln')], u.find_spec('numpy') is not None)")
    assert _run([*PLAIN, "-c", code], empty, libraries).strip() == "None [] True"


# The wheel --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_which_duoln_is_found(installed, libraries, checkout):
    """As the script `duoln` runs, which does not see the folder that it is started in; in the folder that holds a clone, which has no
    `__init__.py`, so that Python would take it for an empty package; and in the root of a checkout, with a wheel and without one.
    """
    _check([*PLAIN, "-P"], installed, checkout, installed, libraries)
    _check(PLAIN, installed, checkout.parent, installed, libraries)
    _check(PLAIN, checkout, checkout, installed, libraries)
    _check(PLAIN, checkout, checkout, libraries)


@pytest.mark.long
def test_wheel_that_is_not_unpacked(wheel, libraries, empty):
    """A wheel is a zip, as the files of zipapp and PEX are."""
    _check(PLAIN, wheel, empty, wheel, libraries)
    code = ("import duoln; from duoln import tree, errors, core, nn, ops; assert all(hasattr(duoln, name) for name in duoln.__all__)\n"
            "for name in ('nothing', 'no_grad', 'a.b', 'README'):\n    try: getattr(duoln, name)\n    except AttributeError as error: print(error)")
    told = _run([*PLAIN, "-c", code], empty, wheel, libraries).splitlines()
    assert _run([*PLAIN, "-m", "duoln", "help", "guide"], empty, wheel, libraries).startswith("# Guide\n")
    assert len(told) == 4 and all("module 'duoln' has no attribute" in line for line in told) and "in duoln: only what runs inside" in told[1]


def test_wheel_has_one_top_folder(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert sorted(top.split("-")[0] for top in tops) == ["duoln", "duoln"]


def test_wheel_carries_every_file_that_is_not_a_program(wheel, checkout):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = {path.relative_to(checkout).as_posix() for top in TOPS for path in (checkout / top).rglob("*")
             if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files.issuperset({*DATA, "duoln/py.typed"})
    assert {f if f.startswith("duoln/") else f"duoln/{f}" for f in files} - names == set()


def test_wheel_names_the_command_and_the_plugins(installed):
    [path] = installed.glob("duoln-*.dist-info/entry_points.txt")
    lines = path.read_text().splitlines()
    assert "duoln = duoln.cli:command" in lines and "mnist = duoln.plugins.mnist" in lines


# The checkout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("top", TOPS[1:])
def test_bare_names_are_refused(checkout, libraries, top):
    code = f"try:\n    import {top}\nexcept ImportError as error:\n    print(error)"
    assert _run([*PLAIN, "-c", code], checkout, libraries).strip() == f"import it as duoln.{top}, not as {top}"


@pytest.mark.long
@pytest.mark.parametrize("options", [
    [], pytest.param(["--config-settings", "editable_mode=strict"], marks=pytest.mark.minutes)], ids=["normal", "strict"])
def test_editable_install(make_checkout, libraries, empty, tmp_path, options):
    checkout = make_checkout()
    venv.create(tmp_path / "venv", symlinks=os.name != "nt")
    programs = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python = programs / "python"
    site = Path(_run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], empty).strip())
    (site / "libraries.pth").write_text(f"{libraries}\n")
    _run([python, "-m", "pip", "install", *BUILD, *options, "-e", checkout], empty)
    _check([python], checkout, empty)
    _check([python], checkout, checkout)
    _check([python], checkout, checkout.parent)
    listed = json.loads(_run([programs / "duoln", "list", "--json"], empty))
    assert "mnist" in {task["name"] for task in listed["tasks"]}
    (checkout / "plugins" / "mnist" / "__init__.py").write_text("raise RuntimeError('edited')")
    assert "edited" in _run([python, "-m", "duoln", "list", "--json"], empty)
