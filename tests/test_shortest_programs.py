"""The shortest programs for everyday tasks: each runs, and none is longer than the shortest one of a peer by more than two lines.

`python tests/test_shortest_programs.py` prints their lines and public names, beside those of the peer (without imports and prints).
"""

import re
import textwrap

import numpy as np
import pytest

import duoln
from duoln import nn, ops, optim

PUBLIC = re.compile(r"\b(?:duoln|nn|ops|optim)(?:\.tree)?\.(\w+)")
PROGRAMS = {}
"""The text of each program, its lines in the shortest of MLX, equinox with optax, and PyTorch, and that peer."""


def program(name, lines, peer, text):
    PROGRAMS[name] = textwrap.dedent(text).strip(), lines, peer


program("mlp", 7, "PyTorch", """
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    params, optimizer = duoln.init(model, seed=0), optim.Adam(1e-2)
    slots = optimizer.init(params)
    def loss(params, x, label):
        return ops.softmax_cross_entropy(model(params, x), label).mean()
    for update in range(20):
        value, gradients = duoln.value_and_grad(loss)(params, x, label)
        params, slots = optimizer.update(params, gradients, slots)
""")
program("mlp, compiled", 8, "PyTorch", """
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    params, optimizer = duoln.init(model, seed=0), optim.Adam(1e-2)
    slots = optimizer.init(params)
    @duoln.compile
    def step(params, slots, x, label):
        loss = lambda params: ops.softmax_cross_entropy(model(params, x), label).mean()
        return optimizer.update(params, duoln.value_and_grad(loss)(params)[1], slots)
    for update in range(20):
        params, slots = step(params, slots, x, label)
""")
program("language model with layer norm, carried states", 16, "MLX", """
    class Model(nn.Module):
        def __init__(self, symbols, width):
            self.table, self.lstm = nn.Embedding(symbols, width), nn.LSTM(width, width, norm="layer")
            self.out = nn.Linear(width, symbols)
        def __call__(self, params, ids, states=None):
            m = self.bind(params)
            h, states = m.lstm(m.table(ids), states)
            return m.out(h), states
    model = Model(9, 16)
    params, optimizer, states = duoln.init(model, seed=0), optim.Adam(1e-2), None
    slots = optimizer.init(params)
    def loss(params, ids, states):
        logits, states = model(params, ids[:-1], states)
        return ops.softmax_cross_entropy(logits, ids[1:]).mean(), states
    for ids in texts:
        (value, states), gradients = duoln.value_and_grad(loss, has_aux=True)(params, ids, states)
        params, slots = optimizer.update(params, gradients, slots)
""")
program("dropout", 5, "MLX", """
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    params, masks_of = duoln.init(model, seed=0), nn.DropoutMasks(model, seed=0)
    def loss(params, masks, x, label):
        return ops.softmax_cross_entropy(model(nn.with_masks(params, masks), x), label).mean()
    for update in range(3):
        value, gradients = duoln.value_and_grad(loss)(params, masks_of(update, params, x), x, label)
    answers = model(params, x)
""")
program("batch norm, population", 5, "MLX", """
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm(8), nn.Linear(8, 2))
    params = duoln.init(model, seed=0)
    def loss(params, x, label):
        return ops.softmax_cross_entropy(model(params, x), label).mean()
    value, gradients = duoln.value_and_grad(loss)(params, x, label)
    answers = model(nn.with_population(model, params, [x]), x[:1])
""")
program("own layer", 6, "MLX", """
    class Scale(nn.Module):
        def __init__(self, width):
            self.width = width
        def weights(self, rng):
            return {"scale": np.ones(self.width, np.float32)}
        def __call__(self, params, x):
            return x * params["scale"]
    y = Scale(2)(duoln.init(Scale(2), seed=0), x)
""")
program("freeze a branch", 5, "PyTorch", """
    head, body = duoln.tree.partition(params, lambda path, p: path.startswith("head"))
    slots = optimizer.init(head)
    def loss(head, x, label):
        return ops.softmax_cross_entropy(model(duoln.tree.combine(head, body), x), label).mean()
    value, gradients = duoln.value_and_grad(loss)(head, x, label)
    head, slots = optimizer.update(head, gradients, slots)
""")
program("freeze by a predicate", 5, "equinox", """
    free, frozen = duoln.tree.partition(params, lambda path, p: p.ndim > 1)
    slots = optimizer.init(free)
    def loss(free, x, label):
        return ops.softmax_cross_entropy(model(duoln.tree.combine(free, frozen), x), label).mean()
    value, gradients = duoln.value_and_grad(loss)(free, x, label)
    free, slots = optimizer.update(free, gradients, slots)
""")
program("tying", 6, "MLX", """
    class Tied(nn.Module):
        def __init__(self, symbols, width):
            self.table, self.hidden = nn.Embedding(symbols, width), nn.Linear(width, width)
        def __call__(self, params, ids):
            m = self.bind(params)
            return m.table.as_linear(m.hidden(m.table(ids)))
    logits = Tied(9, 4)(duoln.init(Tied(9, 4), seed=0), texts[0])
""")
program("decay of a part", 2, "MLX", """
    optimizer = optim.AdamW(1e-3, weight_decay=0.1, decays=lambda path, p: p.ndim > 1)
""")
program("two rates, one clip", 3, "MLX", """
    optimizer = optim.Groups({"head": optim.Adam(1e-2)}, rest=optim.AdamW(1e-4), clip=optim.clip_global_norm(1.0))
    slots = optimizer.init(params)
    params, slots = optimizer.update(params, gradients, slots)
""")
program("schedule", 1, "optax", """
    optimizer = optim.Adam(optim.linear_warmup(100, then=optim.cosine(1e-3, updates=900)))
""")
program("clipping", 1, "PyTorch", """
    optimizer = optim.Adam(1e-3, clip=optim.clip_global_norm(1.0))
""")
program("accumulation", 1, "optax", """
    accumulate, sums = optim.Accumulate(), optim.Accumulate().init(params)
    sums = accumulate.add(sums, gradients, weight=len(label))
    params, slots = optimizer.update(params, accumulate.mean(sums), slots)
""")
program("moving average", 2, "PyTorch", """
    average = optim.MovingAverage(0.99).init(params)
    average = optim.MovingAverage(0.99).update(average, params)
""")
program("16 bits", 1, "PyTorch", """
    answers = model(nn.in_16_bits(params), x.astype("bfloat16"))
""")
program("save and load", 2, "MLX", """
    duoln.save("model.safetensors", params)
    params = duoln.load("model.safetensors")
""")
program("resume", 3, "PyTorch", """
    state = duoln.load_state("states") or {"update": 0, "params": params, "slots": slots}
    params, slots = state["params"], state["slots"]
    for update in range(state["update"], 10):
        duoln.save_state("states", update=update + 1, params=params, slots=slots)
""")
program("evaluation", 1, "PyTorch", """
    answers = model(params, x)
""")
program("several inputs", 4, "PyTorch", """
    model = nn.Sequential(nn.LSTM(2, 4, return_sequences=False), lambda given: given[0], nn.Linear(4, 2))
    answers = model(duoln.init(model, seed=0), steps, None, mask)
""")
program("lengths that differ", 3, "PyTorch", """
    outputs, states = lstm(of_lstm, steps, mask=mask)
""")
program("own gradient", 6, "MLX", """
    @duoln.custom_gradient
    def straight_through(x):
        return ops.round(x), lambda g: g
    value, gradient = duoln.value_and_grad(lambda x: straight_through(x).sum())(x)
""")
program("data parallel", 1, "MLX", """
    gradients = duoln.average_gradients(gradients, weight=len(label))
""")


def lines_of(text):
    return [line for line in text.splitlines() if line.strip()]


def namespace(be):
    random = np.random.default_rng(0)
    model = nn.Sequential(body=nn.Linear(2, 8), relu=nn.ReLU(), head=nn.Linear(8, 2))
    params, optimizer, lstm = duoln.init(model, 0, be), optim.Adam(1e-2), nn.LSTM(2, 3)
    x = duoln.tensor(random.standard_normal((16, 2)).astype(np.float32), be)
    return {"duoln": duoln, "nn": nn, "ops": ops, "optim": optim, "np": np, "model": model, "params": params, "optimizer": optimizer,
            "slots": optimizer.init(params), "gradients": duoln.tree.map(ops.ones_like, params), "x": x, "label": (x[:, 0] > 0).astype("int32"),
            "texts": [duoln.tensor(random.integers(9, size=(6, 4)).astype(np.int32), be) for _ in range(3)],
            "steps": duoln.tensor(random.standard_normal((5, 4, 2)).astype(np.float32), be),
            "mask": duoln.tensor(np.arange(5)[:, None] < np.array([5, 3, 1, 4]), be), "lstm": lstm, "of_lstm": duoln.init(lstm, 0, be)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_and_is_short(name, be, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUOLN_BACKEND", be.name if be.name != "cupy" else "numpy")
    text, lines, _ = PROGRAMS[name]
    assert len(lines_of(text)) <= lines + 2
    exec(compile(text, name, "exec"), namespace(duoln.backend()))


if __name__ == "__main__":
    print("| task | duoln | peer |\n| --- | --- | --- |")
    for name, (text, lines, peer) in PROGRAMS.items():
        print(f"| {name} | {len(lines_of(text))}/{len(set(PUBLIC.findall(text)))} | {peer} {lines} |")
