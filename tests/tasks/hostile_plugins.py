"""Plug-ins that do what none should, as data.

LOADED: modules that cannot be offered, and the words of the reason in their row of `duoln list`.
METHODS: bodies of a task that fails once it is used, and the method and words of its error.
BESIDE: modules that do harm while another task runs, and what is said of them.
"""

from textwrap import dedent, indent

_TASK = """
from dataclasses import dataclass, field
from pathlib import Path
import numpy as np
from duoln import nn, ops, optim
from duoln.errors import *
from duoln.examples.own_task import Spirals, SpiralsConfig
from duoln.tasks import *
from duoln.tasks.events import Listener

class Odd(BaseException):
    def __str__(self):
        raise SystemExit(0)
"""
_HOOK = "\n@hookimpl\ndef duoln_tasks():\n    return [Hostile()]\n"


def task(body, before=""):
    """A module whose task has a body of its own."""
    return (f"{_TASK}\n{dedent(before)}\nclass Hostile(Spirals):\n    name = 'hostile'\n"
            f"{indent(dedent(body).strip(), '    ')}\n{_HOOK}")


def module(text):
    """A module with everything imported that a plug-in needs."""
    return _TASK + dedent(text)


def _raising(attribute, error="ValueError('boom')"):
    return task(f"@property\ndef {attribute}(self):\n    raise {error}")


LOADED = {
    "an error without words at import": (module("raise Odd"), "Odd: its message cannot be shown: it raises SystemExit"),
    "out of memory at import": ("raise MemoryError('x')", "MemoryError: x"),
    "a hook that is no function": (module("duoln_tasks = hookimpl(3)"), "AttributeError"),
    "a hook that gives a generator that fails": (module("@hookimpl\ndef duoln_tasks():\n    yield Spirals()\n    raise ValueError('x')"), "ValueError: x"),
    "an object whose repr fails": (module("class R:\n    def __repr__(self): raise SystemExit(0)\n@hookimpl\ndef duoln_tasks():\n    return [R()]"), "found R"),
    "a module whose attributes fail": ("def __dir__():\n    raise ValueError('boom')", "ValueError: boom"),
    "a name of dots": (task("name = '..'"), "name: expected a name"),
    "a name with a slash": (task("name = 'a/b'"), "name: expected a name"),
    "a name with a line end": (task("name = 'a\\nb'"), "name: expected a name"),
    "a name without end": (task("name = 'a' * 65"), "name: expected a name"),
    "a name in Cyrillic": (task("name = '\\u0430'"), "name: expected a name"),
    "a number as name": (task("name = 3"), "name: expected a name of 1 to 64 letters, digits, '_', and inside also '-' and single '.', found 3"),
    "a name of a class of its own": (task("name = S('x')", "class S(str):\n    def __str__(self): raise ValueError"), "name: expected a name"),
    "a name that fails": (_raising("name"), "name: ValueError: boom"),
    "a title that is none": (task("title = None"), "title: expected a text, found None"),
    "columns that fail": (_raising("columns"), "task 'hostile': columns: ValueError: boom"),
    "columns of texts": (task("columns = ('test_error',)"), "columns: expected a tuple of Column"),
    "a column with a wrong format": (task("columns = (Column('test_error', 'e', '%%%'),)"), "columns: ValueError"),
    "a column without heading": (task("columns = (Column('test_error', None),)"), "columns: expected a column of texts"),
    "presets that fail": (_raising("presets"), "presets: ValueError: boom"),
    "a preset of numbers": (task("presets = {'smoke': 3}"), "presets: expected settings as 'smoke', found 3"),
    "a variant that goes up": (task("variants = {'../../escape': {}}"), "variants: expected a name"),
    "a variant that is none": (task("variants = {None: {}}"), "variants: expected a name"),
    "variants in a list": (task("variants = ['ln']"), "variants: expected settings by name, found list"),
    "variants that differ in case": (task("variants = {'ln': {}, 'LN': {}}"), "differ in more than case"),
    "variants that are the same": (task("variants = D()", "from collections.abc import Mapping\nclass D(Mapping):\n    def __iter__(self): return iter(['a', 'a'])\n    def __len__(self): return 2\n    def __getitem__(self, key): return {}"), "differ in more than case"),
    "references of lists": (task("references = {'ln': ['x']}"), "references: expected texts by variant"),
    "a config that is none": (task("config = dict"), "config: expected a dataclass that extends Config"),
    "a config with an unknown type": (task("config = C", "@dataclass(frozen=True)\nclass C(Config):\n    x: 'Nothing' = 1"), "config: NameError"),
    "a config that JSON cannot hold": (task("config = C", "@dataclass(frozen=True)\nclass C(Config):\n    x: object = frozenset({1})"), "config: x: expected a type of int, float"),
    "a setting without a default": (task("config = C", "@dataclass(frozen=True, kw_only=True)\nclass C(Config):\n    x: int"), "config: x: expected a default"),
    "a setting that is computed": (task("config = C", "from dataclasses import field\n@dataclass(frozen=True)\nclass C(Config):\n    x: int = field(default=1, init=False)"), "config: x: expected a default"),
    "an option that is a path": (task("sampling = S", "from pathlib import Path\n@dataclass(frozen=True)\nclass S:\n    x: Path = Path()"), "sampling: x: expected a type of int, float"),
    "no variants": (task("variants = {}"), "variants: expected one or more, found none"),
    "a selection of one": (task("selection = ('x',)"), "selection: expected None"),
    "an axis of its own": (task("x_axis = 'time'"), "x_axis: expected"),
    "batch axes of texts": (task("batch_axes = {'x': 'first'}"), "batch_axes: expected"),
    "a setting that is called data": (task("config = S", "@dataclass(frozen=True)\nclass S(SpiralsConfig):\n    data: str = ''"),
                                      "config: expected another name than 'data', which is an argument of duoln.tasks.train"),
    "an option that is called out": (task("sampling = S", "@dataclass\nclass S:\n    out: str = ''"),
                                     "sampling: expected another name than 'out', which is an option of `duoln sample`"),
    "an option that is called json": (task("evaluating = S", "@dataclass\nclass S:\n    json: str = ''"),
                                      "evaluating: expected another name than 'json', which is an option of `duoln evaluate`"),
    "a variant that is called all": (task('variants = {"ln": {}, "all": {}}'), "variants: expected another name than 'all'"),
    "options that are no dataclass": (task("sampling = dict"), "sampling: expected a dataclass or None"),
    "a task that cannot be made": (task("def __init__(self):\n    raise ValueError('boom')"), "ValueError: boom"),
}

_DATA = """
def data(self, cfg, root=None):
    splits = super().data(cfg, root)
    {}
    return splits
"""


def _data(line):
    return task(_DATA.format(line.replace("\n", "\n    ")))


def _replaced(**fields):
    return _data("import dataclasses\nsplits = dataclasses.replace(splits, "
                 + ", ".join(f"{key}={value}" for key, value in fields.items()) + ")")


METHODS = {
    "stop iteration in loss": (task("def loss(self, *a):\n    raise StopIteration"), "loss", "raised StopIteration"),
    "an error without words in model": (task("def model(self, cfg):\n    raise Odd"), "model", "its message cannot be shown"),
    "an error that claims success": (task("def data(self, cfg, root=None):\n    raise Fine('x')", "class Fine(DuolnError):\n    exit_code = 0"), "data", "raised Fine: x"),
    "an error of ours with another code": (task("def data(self, cfg, root=None):\n    e = UsageError('x'); e.exit_code = 0; raise e"), None, "x"),
    "no steps": (_replaced(steps_per_epoch="0"), "data", "expected steps_per_epoch of at least 1, found 0"),
    "steps in halves": (_replaced(steps_per_epoch="1.5"), "data", "found 1.5"),
    "no data": (task("def data(self, cfg, root=None):\n    pass"), "data", "expected Splits, found None"),
    "a dataset that is a text": (_replaced(dataset="'x'"), "data", "expected a Dataset"),
    "a provenance of its own": (_replaced(dataset="Dataset('x', 'made up')"), "data", "expected a provenance"),
    "a train that is no function": (_replaced(train="[]"), "data", "as train, found list"),
    "an evaluation in a list": (_replaced(evaluation="[]"), "data", "as evaluation, found list"),
    "an evaluation that fails": (_replaced(evaluation="E()").replace("class Hostile", "from collections.abc import Mapping\nclass E(Mapping):\n    def __iter__(self): raise ValueError('boom')\n    def __len__(self): return 1\n    def __getitem__(self, key): raise ValueError\n\nclass Hostile"), "data", "raised ValueError: boom"),
    "a batch that fails in the middle": (_data("import dataclasses\ndef train(step, good=splits.train):\n    if step == 3: raise ValueError('boom')\n    return good(step)\nsplits = dataclasses.replace(splits, train=train)"), "data", "raised ValueError: boom"),
    "a generator of batches that ends": (_data("import dataclasses\nbatches = iter([splits.train(0)] * 2)\nsplits = dataclasses.replace(splits, train=lambda step: next(batches))"), "data", "raised StopIteration"),
    "a batch that is none": (_replaced(train="lambda step: None"), "data", "expected a batch of arrays by name, found None"),
    "a batch of lists": (_replaced(train="lambda step: {'x': [1.0]}"), "data", "expected an array of numbers as 'x"),
    "no model": (task("def model(self, cfg):\n    pass"), "model", "expected an object of class Module, found None"),
    "a model that cannot start": (task("def model(self, cfg):\n    class M(nn.Module):\n        def init(self, rng): raise SystemExit(0)\n    return M()"), "model", "raised SystemExit: 0"),
    "a model that cannot compute": (task("def model(self, cfg):\n    class M(nn.Module):\n        def weights(self, rng): return {'w': np.zeros(3, np.float32)}\n    return M()"), "loss", "raised CallError: [M] expected a method __call__"),
    "no optimizer": (task("def optimizer(self, cfg, updates):\n    return 'adam'"), "optimizer", "expected an object of class Optimizer"),
    "an optimizer that fails": (task("def optimizer(self, cfg, updates):\n    class O(optim.SGD):\n        def update(self, *a): raise SystemExit(0)\n    return O(0.1)"), "optimizer", "raised SystemExit: 0"),
    "a loss for each example": (task("def loss(self, model, params, batch):\n    return model(params, batch['x'])"), "loss", "expected a loss of shape ()"),
    "a loss that is a number": (task("def loss(self, *a):\n    return 1.0"), "loss", "expected a Tensor, found 1.0"),
    "a prediction that is a text": (task("def predict(self, *a):\n    return 'x'"), "predict", "found 'x'"),
    "metrics that are texts": (task("def metrics(self, predict, split):\n    return {'error': '0.5'}"), "metrics", "expected a number as 'error', found '0.5'"),
    "metrics without names": (task("def metrics(self, predict, split):\n    return {1: 0.5}"), "metrics", "expected a text as the name"),
    "no metrics": (task("def metrics(self, predict, split):\n    pass"), "metrics", "expected figures by name, found None"),
    "a number that cannot be one": (task("def metrics(self, predict, split):\n    return {'error': F(1)}", "class F(float):\n    def __float__(self): raise SystemExit(0)"), "metrics", "SystemExit"),
    "a method with a wrong signature": (task("def data(self):\n    pass"), "data", "raised TypeError"),
    "a method that is none": (task("metrics = None"), "metrics", "raised TypeError"),
    "a method that cannot be had": (_raising("loss"), "loss", "raised ValueError: boom"),
    "a setting that is not of its type": (task("config = C", "@dataclass(frozen=True)\nclass C(SpiralsConfig):\n    x: int = 0.5"), "config", "x: expected int, found 0.5"),
    "settings that change when they are made again": (task("config = C", "@dataclass(frozen=True)\nclass C(SpiralsConfig):\n    x: int = 1\n    def __post_init__(self): object.__setattr__(self, 'x', self.x * 2)"), "config", "x: expected 2 again"),
    "a config that cannot be made": (task("config = C", "@dataclass(frozen=True)\nclass C(SpiralsConfig):\n    def __post_init__(self): raise SystemExit(0)"), "config", "SystemExit: 0"),
    "a task that cannot be copied": (task("def __copy__(self):\n    raise ValueError('boom')"), "copy", "raised ValueError: boom"),
}

LISTENER = "\n@hookimpl\ndef duoln_listeners():\n    return [{}]\n"
BESIDE = {
    "prints at import": (module("print('noise')"), ""),
    "moves at import": (module("import os; os.chdir('/')"), ""),
    "takes stdout at import": (module("import sys, io; sys.stdout = io.StringIO()"), ""),
    "closes stdout at import": (module("import sys; sys.stdout.close()"), ""),
    "exits at import": (module("raise SystemExit(0)"), ""),
    "leaves a daemon running": (module("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"), ""),
    "no listeners": (module("@hookimpl\ndef duoln_listeners():\n    return 3"), "plug-in 'hostile' of hostile-dist has no listeners for this run: PluginError: duoln_listeners: expected a list, found 3"),
    "a listener that is none": (module(LISTENER.format("None")), "expected Listener objects, found None"),
    "a listener that exits": (module("class L(Listener):\n    def on_update(self, event): raise SystemExit(0)\n" + LISTENER.format("L()")), "plug-in 'hostile' of hostile-dist: the listener's on_update raised SystemExit: 0"),
    "a listener that fails at the start": (module("class L(Listener):\n    def on_start(self, event): raise Odd\n" + LISTENER.format("L()")), "on_start raised Odd: its message cannot be shown"),
    "a listener that fails at the end": (module("class L(Listener):\n    def on_end(self, status, result): raise ValueError('boom')\n" + LISTENER.format("L()")), "on_end raised ValueError: boom"),
    "a listener with a wrong signature": (module("class L(Listener):\n    def on_evaluation(self): pass\n" + LISTENER.format("L()")), "on_evaluation raised TypeError"),
    "a listener that moves": (module("class L(Listener):\n    def on_start(self, event):\n        import os; os.chdir('/')\n" + LISTENER.format("L()")), ""),
    "a listener that changes the result": (module("class L(Listener):\n    def on_end(self, status, result): result.clear()\n" + LISTENER.format("L()")), ""),
    "listeners that exit": (module("@hookimpl\ndef duoln_listeners():\n    raise SystemExit(0)"), "has no listeners for this run: SystemExit: 0"),
}
