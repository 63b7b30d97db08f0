"""Numbers of the house that may only fall. A change that lowers one writes the new number here.

`python tests/test_ratchet.py` prints them as they are.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from duoln.kernels import native

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("duoln", "kernels", "plugins", "examples", ".ci")
CODE = (".py", ".cpp", ".h", ".cu", ".cuh", ".metal", ".js", ".css")
ROOMS = ("duoln/core", "duoln/ops", "duoln/nn", "duoln/optim", "duoln/backends", "duoln/system", "duoln/data", "duoln/tasks",
         "duoln/training", "duoln/distributed", "duoln/runs", "duoln/bench", "duoln/testing", "duoln/bridge", "duoln/cli",
         "kernels", "plugins", "examples")
SMALL = 40
"""A Python file of at most so many lines is small."""
WHY_NOT = ("reason", "failure", "obstacle", "missing", "unfit", "misfit", "problem", "inaccurate", "refusal", "supports")
"""The names that functions which return a text why something cannot be have had; two are to stay."""
FIRST_WORDS = ("What", "Where", "How", "Whether", "Of")
NUMBERS = {
    "lines of the product": 77611,
    "lines of duoln/core": 4815,
    "lines of duoln/ops": 5165,
    "lines of duoln/nn": 2631,
    "lines of duoln/optim": 1063,
    "lines of duoln/backends": 1802,
    "lines of duoln/system": 1089,
    "lines of duoln/data": 1493,
    "lines of duoln/tasks": 2153,
    "lines of duoln/training": 1521,
    "lines of duoln/distributed": 1148,
    "lines of duoln/runs": 3176,
    "lines of duoln/bench": 3136,
    "lines of duoln/testing": 4325,
    "lines of duoln/bridge": 2627,
    "lines of duoln/cli": 3271,
    "lines of kernels": 21191,
    "lines of plugins": 13359,
    "lines of examples": 1738,
    "lines of tests": 48798,
    "Python files": 423,
    "small Python files": 40,
    "names for why not": 2,
    "docstrings that begin with What, Where, How, Whether, Of": 0,
    "prototypes typed by hand": 8,
    "calls of a compiled step": 31,
    "calls of add": 8,
    "calls of LayerNorm": 17,
    "calls of softmax": 11,
    "calls of LSTM": 103,
}


def files(*tops):
    listed = subprocess.run(["git", "ls-files", "-z", "--", *tops], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("the numbers are of a checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name.endswith(CODE) and (ROOT / name).is_file()]


def lines(*tops):
    return sum(len(path.read_bytes().splitlines()) for path in files(*tops))


def docstrings(tree):
    """Those of modules, classes and functions, and the strings after an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for place, each in enumerate(body):
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str) \
                    and (place == 0 or isinstance(body[place - 1], ast.Assign | ast.AnnAssign)):
                yield each.value.value.strip()


def refusals(tree):
    """The names of functions that return a text or None, under a name for the reason why not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) == "str | None":
            word = re.split(r"_", node.name.strip("_"))
            yield from (name for name in WHY_NOT if name in word)


def calls_of(function):
    """The Python functions that a warm call enters."""
    function(), function()
    entered = 0

    def count(frame, event, argument):
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return entered - 1  # `function` itself


def replayed_calls(be):
    import numpy as np

    import duoln
    from duoln import nn, ops, optim

    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = optim.Adam(1e-3, donate=True)
    state = [params := duoln.to_tensors(model.init(0), be), optimizer.init(params)]
    x, labels = duoln.tensor(np.ones((4, 8), np.float32), be), duoln.tensor(np.arange(4, dtype=np.int32), be)
    rate = duoln.tensor(np.float32(1e-3), be)

    @duoln.compile
    def step(params, slots):
        loss, gradients = duoln.value_and_grad(lambda p: ops.mean(ops.softmax_cross_entropy(model(p, x), labels)))(params)
        return (*optimizer.update(params, gradients, slots, rate), loss)

    def update():
        state[0], state[1], _ = step(*state)

    for _ in range(4):
        update()
    return calls_of(update)


def eager_calls():
    import numpy as np

    import duoln
    from duoln import nn, ops

    be = duoln.backend("numpy")
    x, y = (duoln.tensor(np.ones((8, 64), np.float32) * k, be) for k in (1, 2))
    norm, lstm = nn.LayerNorm(64), nn.LSTM(3, 4)
    of_norm, of_lstm = (duoln.to_tensors(layer.init(0), be) for layer in (norm, lstm))
    steps, mask = duoln.tensor(np.ones((5, 3, 3), np.float32), be), duoln.tensor(np.ones((5, 3), bool), be)
    return {"calls of a compiled step": replayed_calls(be), "calls of add": calls_of(lambda: x + y), "calls of LayerNorm": calls_of(lambda: norm(of_norm, x)),
            "calls of softmax": calls_of(lambda: ops.softmax(x)), "calls of LSTM": calls_of(lambda: lstm(of_lstm, steps, mask=mask))}


def measured():
    """Every number, as it is."""
    python = [path for path in files(*PRODUCT) if path.suffix == ".py"]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in python]
    return {
        "lines of the product": lines(*PRODUCT), **{f"lines of {room}": lines(room) for room in ROOMS}, "lines of tests": lines("tests"),
        "Python files": len(python), "small Python files": sum(len(path.read_bytes().splitlines()) <= SMALL for path in python),
        "names for why not": len({name for tree in trees for name in refusals(tree)}),
        "docstrings that begin with What, Where, How, Whether, Of": sum(
            text.split(" ")[0].rstrip(",") in FIRST_WORDS for tree in trees for text in docstrings(tree)),
        "prototypes typed by hand": sum(len(re.findall(r'extern "C" (?:__global__ )?\w+ (?:NAMED\()?\w+', path.read_text(encoding="utf-8")))
                                        for path in files("kernels", "plugins") if path.suffix in (".cpp", ".h", ".cu", ".cuh")),
    }


@pytest.fixture(scope="module")
def now():
    return measured()


@pytest.mark.parametrize("what", NUMBERS)
def test_a_number_does_not_rise(what, now):
    if what.startswith("calls of"):
        if sys.version_info[:2] != (3, 11) or native.machine_refusal() is not None:
            pytest.skip("the calls are those of Python 3.11, whose comprehensions count, with compiled rules")
        now = eager_calls()
    assert now[what] <= NUMBERS[what], "remove something else, or say in the commit why the number rises"


if __name__ == "__main__":
    for what, number in {**measured(), **eager_calls()}.items():
        print(f'    "{what}": {number},')
