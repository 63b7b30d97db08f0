"""The recipe for a kernel in CONTRIBUTING.md: its texts compile, are right and are seen when they are wrong."""

import importlib
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import GPU, STAND_IN, get_backend

import duoln.kernels
from duoln import ops
from duoln.kernels import launch, native, source
from duoln.testing import selftest

ROOT = Path(__file__).parents[2]
[RECIPE] = re.findall(r"## A kernel, from an empty folder\n(.*?)\n## ", (ROOT / ".github" / "CONTRIBUTING.md").read_text(), re.DOTALL)
BLOCKS = [dedent(block) for block in re.findall(r"^ *```(?:py|cpp)\n(.*?)^ *```$", RECIPE, re.DOTALL | re.MULTILINE)]
TEXTS = {match[1]: block[match.end():] for block in BLOCKS if (match := re.match(r"(?:#|//) (kernels/\S+)\n", block))}
FILES = ["cases.py", "__init__.py", "square.cpp", "square.cu", "square.metal"]


def cases():
    namespace = {"__name__": "duoln.kernels.square.cases"}
    exec(compile(TEXTS["kernels/square/cases.py"], "cases.py", "exec"), namespace)
    return list(namespace["cases"]())


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """A function that writes the recipe's files, with a change in one text, and gives the rule of a backend."""
    def make(backend, old="", new=""):
        (tmp_path / "kernels" / "square").mkdir(parents=True)
        assert any(old in text for text in TEXTS.values())
        for file, text in TEXTS.items():  # files that are not duoln's own are named by their whole paths
            content = text.replace(old, new) if old else text
            (tmp_path / file).write_text(content.replace('"square/', f'"{tmp_path}/kernels/square/'))
        monkeypatch.setattr(duoln.kernels, "__path__", [*duoln.kernels.__path__, str(tmp_path / "kernels")])
        monkeypatch.setattr(launch.Launch, "every", [])
        rules, composed = [], ops.square.rules("numpy")[-1]
        monkeypatch.setattr(ops.square, "add", lambda rule, backend: rules.append(rule))
        importlib.import_module("duoln.kernels.square").attach(backend)
        monkeypatch.setattr(ops.square, "rules", lambda backend: [*rules, composed])
        [rule] = rules
        return rule

    yield make
    sys.modules.pop("duoln.kernels.square", None)
    vars(duoln.kernels).pop("square", None)


def prove(backend, rule):
    """Whether each case, all of which the rule takes, is right and repeats to the bit."""
    for case in cases():
        assert rule.supports(backend, *map(backend.asarray, case.inputs)) is None
    return [outcome.passed for outcome in selftest.run(backend, cases())]


def test_five_files_and_ninety_lines():
    assert list(TEXTS) == [f"kernels/square/{name}" for name in FILES] and len(cases()) == 14
    assert len(RECIPE.splitlines()) < 90


def test_what_it_names_exists():
    names = re.findall(r"`((?:kernels|tests|duoln)/[\w/.]+)`", RECIPE)
    assert len(names) > 3 and [name for name in names if not (ROOT / name).exists()] == []
    for name in ("common.h", "common.cuh", "portable.h", "vector.h"):
        assert f"`{name}`" in RECIPE and list((source.FOLDER / "text").rglob(name))
    assert "BROKEN = " in (ROOT / "tests/kernels/test_cuda_rules.py").read_text()


@pytest.mark.skipif(native.machine_refusal() is not None, reason="there is no C++ compiler")
@pytest.mark.parametrize(("old", "new", "right"), [("", "", True), ("dx[a] = 2 * x[a]", "dx[a] = x[a]", False)])
def test_the_kernel_in_cpp(follow, old, new, right, numpy_backend):
    assert all(prove(numpy_backend, follow("numpy", old, new))) == right


@pytest.mark.skipif(GPU != STAND_IN, reason="a broken kernel could take a real device with it")
@pytest.mark.parametrize(("old", "new", "right"), [("", "", True), ("k < size) dx", "k < 256) dx", False)])
def test_the_kernel_in_cuda(follow, old, new, right, gpu, monkeypatch):
    from duoln.kernels.launch import cuda as launch

    monkeypatch.setitem(sys.modules, "cupy", launch.cupy)  # the stand-in
    assert all(prove(gpu, follow("cupy", old, new))) == right


@pytest.mark.skipif(sys.platform != "linux", reason="kernels run on the CPU under Linux only")
@pytest.mark.parametrize(("old", "new", "right"), [("", "", True), ("if (k < x_shape[0]) dx", "if (k < 256) dx", False)])
def test_the_kernel_in_metal(follow, old, new, right, monkeypatch):
    pytest.importorskip("mlx.core", reason="MLX is not for this platform")
    import stand_in_metal

    stand_in_metal.install(monkeypatch)
    assert all(prove(get_backend("mlx"), follow("mlx", old, new))) == right
