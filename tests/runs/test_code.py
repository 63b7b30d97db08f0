"""The code of a run is that of the task and of every module of the user's own that it imports, and no other."""

import importlib
import itertools
import os
import sys
import types

import pytest

from duoln.examples.own_task import Spirals
from duoln.runs.code import _imported, fingerprint_of

TASK = "from duoln.tasks import Task\n{imports}\nclass Mine(Task):\n    pass\n"
_numbers = itertools.count()


@pytest.fixture
def fingerprint(tmp_path, monkeypatch):
    """The fingerprint of a task whose files are written anew, as a new process would have it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = set(sys.modules)

    def of(files, module="mine"):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
            os.utime(tmp_path / name, ns=(next(_numbers),) * 2)
        for name in set(sys.modules) - loaded:
            del sys.modules[name]
        importlib.invalidate_caches()
        return fingerprint_of(importlib.import_module(module).Mine)

    yield of
    for name in set(sys.modules) - loaded:
        del sys.modules[name]


HELPERS = {
    "beside the script": ("mine", {"mine.py": TASK.format(imports="from helper import scale"), "helper.py": "scale = {}"}),
    "as a module": ("mine", {"mine.py": TASK.format(imports="import helper"), "helper.py": "scale = {}"}),
    "in a function": ("mine", {"mine.py": TASK.format(imports="def loss():\n    from helper import scale"), "helper.py": "scale = {}"}),
    "of a helper": ("mine", {"mine.py": TASK.format(imports="import first"), "first.py": "import second", "second.py": "scale = {}"}),
    "in a package": ("mine", {"mine.py": TASK.format(imports="from tools.losses import scale"), "tools/__init__.py": "",
                              "tools/losses.py": "scale = {}"}),
    "by a package's own name": ("mine", {"mine.py": TASK.format(imports="import tools"), "tools/__init__.py": "from .losses import scale",
                                         "tools/losses.py": "scale = {}"}),
    "in a folder without __init__": ("mine", {"mine.py": TASK.format(imports="from tools.deep import losses"), "tools/deep/losses.py": "scale = {}"}),
    "in the parent package": ("a.tasks.mine", {"a/__init__.py": "", "a/tasks/__init__.py": "", "a/losses.py": "scale = {}",
                                               "a/tasks/mine.py": TASK.format(imports="from a.losses import scale")}),
    "in the parent package, relative": ("a.tasks.mine", {"a/__init__.py": "", "a/tasks/__init__.py": "", "a/losses.py": "scale = {}",
                                                         "a/tasks/mine.py": TASK.format(imports="from ..losses import scale")}),
    "a package of its own": ("a.mine", {"a/__init__.py": "", "a/mine.py": TASK.format(imports=""), "a/kernel.cu": "{}"}),
    "the class above": ("mine", {"mine.py": "from above import Above\nclass Mine(Above):\n    pass\n",
                                 "above.py": TASK.format(imports="").replace("Mine", "Above") + "x = {}"}),
    "the task": ("mine", {"mine.py": TASK.format(imports="") + "x = {}"}),
    "in a circle": ("mine", {"mine.py": TASK.format(imports="import first"), "first.py": "import second\nscale = {}",
                             "second.py": "import first"})}


@pytest.mark.parametrize("place", HELPERS)
def test_a_change_of_a_helper_is_seen_and_a_change_back(place, fingerprint):
    module, files = HELPERS[place]
    first, second, again = (fingerprint({name: text.replace("{}", value) for name, text in files.items()}, module) for value in "121")
    assert first == again != second


def test_a_comment_alone_changes_nothing(fingerprint):
    before = fingerprint({"mine.py": TASK.format(imports="")})
    assert fingerprint({"mine.py": "# why\n" + TASK.format(imports="").replace(":\n", ":  # so\n", 1)}) == before
    assert fingerprint({"mine.py": TASK.format(imports="") + "x = '# no comment'"}) != before


def test_an_empty_line_in_a_text_is_a_change(fingerprint):
    first, second = (fingerprint({"mine.py": f"x = '''a{lines}b'''\n" + TASK.format(imports="")}) for lines in ("\n", "\n\n"))
    assert first != second


def test_what_is_not_imported_changes_nothing(fingerprint):
    before = fingerprint({"mine.py": TASK.format(imports="import numpy, os.path, helper"), "helper.py": "", "other.py": "1"})
    assert fingerprint({"other.py": "2", "broken.py": "def (", "site-packages/lib.py": "1"}) == before


def test_installed_packages_and_absent_ones_are_left_out(fingerprint, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    files = {"mine.py": TASK.format(imports="import lib\ntry:\n    import absent.part\nexcept ImportError:\n    pass")}
    before = fingerprint({**files, "site-packages/lib.py": "1"})
    assert fingerprint({"site-packages/lib.py": "2"}) == before


def test_an_installed_task_has_its_own_package(fingerprint, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    files = {"site-packages/p/__init__.py": "", "site-packages/p/losses.py": "1", "site-packages/p/tasks/__init__.py": "",
             "site-packages/p/tasks/mine.py": TASK.format(imports="from p import losses")}
    before = fingerprint(files, "p.tasks.mine")
    assert fingerprint({"site-packages/p/losses.py": "2"}, "p.tasks.mine") != before


def test_a_class_above_that_duoln_brings_belongs_to_it(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from duoln.examples.own_task import Spirals\nfrom duoln.nn import LSTM\nimport duoln\n")
    assert sorted(_imported({path: "mine"}, "mine")) == ["duoln.examples", "duoln.examples.own_task"]


def test_a_file_that_changes_during_a_command_counts_when_it_is_loaded(fingerprint, tmp_path):
    files = {"mine.py": TASK.format(imports="import helper"), "helper.py": "scale = 1"}
    before = fingerprint(files)
    kind = sys.modules["mine"].Mine
    (tmp_path / "helper.py").write_text("scale = 22")
    assert fingerprint_of(kind) == before  # the process runs the old code
    importlib.reload(sys.modules["helper"])
    assert fingerprint_of(kind) != before


def test_a_class_without_a_file_has_one_all_the_same(monkeypatch):
    namespace = {"Spirals": Spirals, "__name__": "typed"}
    exec("class Mine(Spirals):\n    pass", namespace)
    first = fingerprint_of(namespace["Mine"])
    assert fingerprint_of(namespace["Mine"]) == first


@pytest.mark.parametrize("file", ["<stdin>", "<string>", "<ipython-input-1>"])
def test_a_class_that_was_typed_is_no_other_one(file, monkeypatch):
    """What was typed is kept nowhere, so nobody can say that it is the same in another process or after a change."""
    typed = []
    for module in ("__main__", "elsewhere"):
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(__name__=module, __file__=file, __spec__=None))
        namespace = {"Spirals": Spirals, "__name__": module}
        exec(compile("class Mine(Spirals):\n    pass", file, "exec"), namespace)
        typed.append(namespace["Mine"])
    assert len({fingerprint_of(kind) for kind in typed}) == 2
    assert all(fingerprint_of(kind) == fingerprint_of(kind) and "in no file" in fingerprint_of(kind) for kind in typed)
