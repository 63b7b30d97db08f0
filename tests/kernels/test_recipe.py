"""The recipe for a kernel in CONTRIBUTING.md: its texts compile, are right and are seen when they are wrong."""

import importlib
import re
import shutil
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import GPU, STAND_IN, get_backend

import duoln.kernels
from duoln import ops
from duoln.core import Rule
from duoln.kernels import native, source
from duoln.testing import selftest

ROOT = Path(__file__).parents[2]
[RECIPE] = re.findall(r"## A kernel, from an empty folder\n(.*?)\n## ", (ROOT / ".github" / "CONTRIBUTING.md").read_text(), re.DOTALL)
BLOCKS = [dedent(block) for block in re.findall(r"^ *```(?:py|cpp)\n(.*?)^ *```$", RECIPE, re.DOTALL | re.MULTILINE)]
TEXTS = {match[1]: block[match.end():] for block in BLOCKS if (match := re.match(r"(?:#|//) (kernels/\S+)\n", block))}
ORDER = ["kernels/square/cases.py", "kernels/square/square.cpp", "kernels/square/native.py", "kernels/square/square.cu", "kernels/square/cupy.py",
         "kernels/square/square_forward.metal", "kernels/square/square_backward.metal", "kernels/square/metal.py", "kernels/square/mlx.py"]


def cases():
    return list(_of_cases()["cases"]())


def _of_cases():
    namespace = {"__name__": "duoln.kernels.square.cases"}
    exec(compile(TEXTS["kernels/square/cases.py"], "cases.py", "exec"), namespace)
    return namespace


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """A function that writes the recipe's files, with a change in one text, and gives the rule of a backend's module."""
    def make(module, old="", new=""):
        (tmp_path / "kernels" / "square").mkdir(parents=True)
        for header in (*source.FOLDER.glob("*.h"), *source.FOLDER.glob("*.cuh")):
            shutil.copy(header, tmp_path / "kernels")
        assert any(old in text for text in TEXTS.values())
        for file, text in TEXTS.items():  # files that are not duoln's own are named by their whole paths
            content = text.replace(old, new) if old else text
            (tmp_path / file).write_text(content.replace('"square/', f'"{tmp_path}/kernels/square/'))
        (tmp_path / "kernels" / "square" / "__init__.py").write_text('"""Fused rules for `square`."""\n')
        monkeypatch.setattr(duoln.kernels, "__path__", [*duoln.kernels.__path__, str(tmp_path / "kernels")])
        parts = importlib.import_module(f"duoln.kernels.square.{module}")
        rule = Rule(module, parts._forward, parts._vjp, parts._supports)
        composed = ops.square.rules("numpy")[-1]
        monkeypatch.setattr(ops.square, "rules", lambda backend: [rule, composed])
        return rule

    yield make
    for name in [name for name in sys.modules if name.startswith("duoln.kernels.square")]:
        del sys.modules[name]
    vars(duoln.kernels).pop("square", None)


def prove(backend, rule):
    """Whether each case, all of which the rule takes, is right and repeats to the bit."""
    for case in cases():
        assert rule.supports(backend, *map(backend.asarray, case.inputs)) is None
    return [outcome.passed for outcome in selftest.run(backend, cases())]


def test_the_files_stand_in_their_order():
    assert list(TEXTS) == ORDER and len(cases()) == 14


def test_what_it_names_exists():
    made = {*TEXTS, "kernels/square/__init__.py", "kernels/square/square.h"}
    names = re.findall(r"`((?:kernels|tests|duoln)/[\w/.]+)`", RECIPE)
    assert len(names) > 3 and [name for name in names if name not in made and not (ROOT / name).exists()] == []
    for name in ("native.h", "common.cuh", "portable.h", "vector.h"):
        assert f"`{name}`" in RECIPE and (source.FOLDER / name).is_file()
    for file, words in (("kernels/native.h", ["ENTRIES"]), ("kernels/team.h", ["in_parts"]),
                        ("kernels/settings.py", ["with_macros"]),
                        ("tests/kernels/test_metal_rules.py", ["BROKEN = "]),
                        ("tests/kernels/test_cuda_rules.py", ["BROKEN = "])):
        assert all(word in (ROOT / file).read_text() for word in words), file


def test_what_is_timed():
    timed = _of_cases()["TIMED"]["square"]
    assert timed.case((2, 3)).inputs[0].shape == (2, 3) and timed.bytes_moved(3, 5, True) == 4 * 60
    assert timed.operations(3, 5, True) == 45


@pytest.mark.skipif(native.reason() is not None, reason="there is no C++ compiler")
@pytest.mark.parametrize(("old", "new", "right"), [("", "", True), ("dx[k] = 2 * x[k]", "dx[k] = x[k]", False)])
def test_the_kernel_in_cpp(follow, old, new, right, numpy_backend):
    assert all(prove(numpy_backend, follow("native", old, new))) == right


@pytest.mark.skipif(GPU != STAND_IN, reason="a broken kernel could take a real device with it")
@pytest.mark.parametrize(("old", "new", "right"), [("", "", True), ("if (k < size) dx", "if (k < 256) dx", False)])
def test_the_kernel_in_cuda(follow, old, new, right, gpu, monkeypatch):
    from duoln.kernels import launch

    monkeypatch.setitem(sys.modules, "cupy", launch.cupy)  # the stand-in
    assert all(prove(gpu, follow("cupy", old, new))) == right


@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
@pytest.mark.parametrize(("old", "new", "right"), [("", "", True), ("if (k < x_shape[0]) dx", "if (k < 256) dx", False)])
def test_the_kernel_in_metal(follow, old, new, right, monkeypatch):
    pytest.importorskip("mlx.core", reason="MLX is not for this platform")
    import stand_in_metal

    stand_in_metal.install(monkeypatch)
    assert all(prove(get_backend("mlx"), follow("mlx", old, new))) == right
