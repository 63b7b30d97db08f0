"""Layers, initialisers and optimizers, made and called wrongly."""

import numpy as np
from misuse.misuses import unnamed

import duoln
from duoln import nn, optim
from duoln.errors import DtypeError, ShapeError, UsageError
from duoln.randomness import Stream

NO_SIZES = (None, "a", 2.5, 2.0, True, [2], np.ones(2))
NO_NUMBERS = (None, "a", [1.0], np.ones(2), True, 1j)
NO_FLAGS = (None, "no", 1, 0.0, [])
LAYERS = {
    "Linear": (lambda **k: nn.Linear(**{"n_in": 3, "n_out": 2} | k), ("n_in", "n_out"), (), (), ("bias",), ("weight_init",)),
    "Embedding": (lambda **k: nn.Embedding(**{"words": 3, "width": 2} | k), ("words", "width"), (), (), (), ("table_init",)),
    "Conv2d": (lambda **k: nn.Conv2d(**{"n_in": 3, "n_out": 2, "size": 2} | k), ("n_in", "n_out", "groups"), (), (), ("bias",), ("weight_init",)),
    "Conv1d": (lambda **k: nn.Conv1d(**{"n_in": 3, "n_out": 2, "size": 2} | k), ("n_in", "n_out", "size", "stride", "dilation", "groups"), (), (), ("bias",),
               ("weight_init",)),
    "LayerNorm": (lambda **k: nn.LayerNorm(**{"width": 3} | k), ("width",), ("eps",), ("gain",), ("affine",), ()),
    "RMSNorm": (lambda **k: nn.RMSNorm(**{"width": 3} | k), ("width",), ("eps",), ("gain",), ("affine",), ()),
    "GroupNorm": (lambda **k: nn.GroupNorm(**{"groups": 1, "width": 3} | k), ("groups", "width"), ("eps",), ("gain",), ("affine",), ()),
    "InstanceNorm": (lambda **k: nn.InstanceNorm(**{"width": 3} | k), ("width",), ("eps",), ("gain",), ("affine",), ()),
    "BatchNorm": (lambda **k: nn.BatchNorm(**{"width": 3} | k), ("width",), ("eps",), ("gain",), ("unbiased",), ()),
    **{name: (lambda kind=kind, **k: kind(**{"n_in": 3, "n_hidden": 2} | k), ("n_in", "n_hidden"), ("eps",), ("forget_bias",) if kind is nn.LSTMCell else (),
              ("learned_state",), ("recurrent_init",))
       for name, kind in (("RNNCell", nn.RNNCell), ("LSTMCell", nn.LSTMCell), ("GRUCell", nn.GRUCell))},
    **{name: (lambda kind=kind, **k: kind(**{"n_in": 3, "n_hidden": 2} | k), ("layers",), (), ("dropout",), ("bidirectional", "return_sequences"), ())
       for name, kind in (("RNN", nn.RNN), ("LSTM", nn.LSTM), ("GRU", nn.GRU))},
}
"""How a layer is made, and which of its settings are sizes, epsilons, numbers, switches and functions."""


def test_settings_of_layers():
    rows = []
    for name, (make, sizes, epsilons, numbers, flags, functions) in LAYERS.items():
        make()
        rows += [(name, DtypeError, lambda m=make, k=k, v=v: m(**{k: v})) for k in sizes for v in NO_SIZES]
        rows += [(name, ShapeError, lambda m=make, k=k, v=v: m(**{k: v})) for k in sizes for v in (0, -1, 2 ** 60)]
        rows += [(name, UsageError, lambda m=make, k=k, v=v: m(**{k: v})) for k in epsilons for v in (-1.0, float("nan"), float("inf"))]
        rows += [(name, DtypeError, lambda m=make, k=k, v=v: m(**{k: v})) for k in (*epsilons, *numbers) for v in NO_NUMBERS if v is not None or k != "gain"
                 or not name.endswith("Cell")]
        rows += [(name, UsageError, lambda m=make, k=k, v=v: m(**{k: v})) for k in numbers for v in (float("nan"), float("inf"))]
        rows += [(name, DtypeError, lambda m=make, k=k, v=v: m(**{k: v})) for k in flags for v in NO_FLAGS]
        rows += [(name, DtypeError, lambda m=make, k=k, v=v: m(**{k: v})) for k in functions for v in (None, "glorot", 1.0, np.ones(2))
                 if v is not None or k != "recurrent_init"]
        rows += [(name, DtypeError, lambda m=make, v=v: m().init(v)) for v in (None, 0.0, "seed", True, np.random.default_rng(0))]
        rows += [(name, ShapeError, lambda m=make: m().init(-1))]
    rows += [("Conv2d", DtypeError, lambda k=k, v=v: nn.Conv2d(**{"n_in": 3, "n_out": 2, "size": 2} | {k: v})) for k in ("size", "stride", "dilation")
             for v in (*NO_SIZES[:5], (1, 2.0), ("a", 1))]
    rows += [("Conv2d", ShapeError, lambda k=k, v=v: nn.Conv2d(**{"n_in": 3, "n_out": 2, "size": 2} | {k: v})) for k in ("size", "stride", "dilation")
             for v in (0, -1, 2 ** 60, [2], (1, 0), (1, 1, 1))]
    rows += [(name, ShapeError, lambda kind=kind: kind(4, 6, 2, groups=3)) for name, kind in (("Conv1d", nn.Conv1d), ("Conv2d", nn.Conv2d))]
    rows += [(name, UsageError, lambda kind=kind: kind(4, 6, 2, padding="valid")) for name, kind in (("Conv1d", nn.Conv1d), ("Conv2d", nn.Conv2d))]
    rows += [("Conv1d", DtypeError, lambda v=v: nn.Conv1d(4, 6, 2, padding=v)) for v in (None, 0.5, (1, 1), [1])]
    rows += [("Embedding", DtypeError, lambda v=v: nn.Embedding(3, 2, padding_idx=v)) for v in ("a", 0.5, True, [1])]
    rows += [("Embedding", ShapeError, lambda v=v: nn.Embedding(3, 2, padding_idx=v)) for v in (3, -1)]
    rows += [(name, kind, lambda m=make, v=v: m(v)) for name, make in (("LayerNorm", nn.LayerNorm), ("RMSNorm", nn.RMSNorm))
             for kind, values in ((ShapeError, ((), (3, 0), (-1, 3), (2, 2 ** 60))), (DtypeError, ((3, 2.0), (None, 3), ("a",), [3, 2], (True, 3)))) for v in values]
    rows += [(name, UsageError, lambda m=make: m(affine=False, gain=0.5)) for name, (make, *_) in LAYERS.items() if name in ("LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm")]
    rows += [("GroupNorm", ShapeError, lambda: nn.GroupNorm(2, 3)), ("GroupNorm", ShapeError, lambda: nn.GroupNorm(4, 2))]
    rows += [("Conv2d", ShapeError, lambda: nn.Conv2d(3, 2, 2, padding=-1)), ("Conv2d", DtypeError, lambda: nn.Conv2d(3, 2, 2, padding=0.5)),
             ("Conv2d", DtypeError, lambda: nn.Conv2d(3, 2, 2, padding=None)), ("LayerNorm", UsageError, lambda: nn.LayerNorm(3, activation="up")),
             ("LayerNorm", UsageError, lambda: nn.LayerNorm(3, activation="gelu")), ("LayerNorm", DtypeError, lambda: nn.LayerNorm(3, activation=1)),
             ("LSTM", UsageError, lambda: nn.LSTM(3, 2, dropout=1.0)), ("LSTM", UsageError, lambda: nn.LSTM(3, 2, dropout=-0.1)),
             ("LSTM", UsageError, lambda: nn.LSTM(3, 2, eps=-1.0)), ("WeightNorm", UsageError, lambda: nn.WeightNorm(None)),
             ("Sequential", UsageError, lambda: nn.Sequential(None)), ("with_population", DtypeError, lambda: nn.with_population(None, {}, []))]
    rows += [(kind.__name__, UsageError, lambda kind=kind, v=v: kind(3, 2, bias=v)) for kind in (nn.RNN, nn.LSTM, nn.GRUCell) for v in (True, False, "two")]
    rows += [(kind.__name__, DtypeError, lambda kind=kind, v=v: kind(3, 2, bias=v)) for kind in (nn.RNN, nn.LSTM, nn.GRUCell) for v in (None, 2, ["one"])]
    rows += [("LSTM", UsageError, lambda n=n: nn.LSTM(3, 2, norm=n)) for n in (None, "group", 1, ["layer"], {})]
    assert len(rows) > 300
    assert unnamed(rows) == {}


def test_initialisers():
    rows = [(name, kind, lambda f=getattr(nn.init, name), v=v: f(v)) for name in ("constant", "uniform", "gaussian")
            for kind, values in ((DtypeError, NO_NUMBERS), (UsageError, (float("nan"), float("inf")))) for v in values]
    rows += [(name, UsageError, lambda f=getattr(nn.init, name): f(-1.0)) for name in ("uniform", "gaussian")]
    rows += [("init", ShapeError, lambda f=f: f(Stream(0, "w"), (3,))) for f in (nn.init.glorot, nn.init.he, nn.init.orthogonal)]
    assert unnamed(rows) == {}


def test_layers_called_wrongly(be):
    def start(layer):
        return duoln.to_tensors(layer.init(Stream(0, "w")), be)

    x = duoln.tensor(np.ones((2, 3), np.float32), be)
    linear, lstm, cell = nn.Linear(3, 2), nn.LSTM(3, 2), nn.LSTMCell(3, 2, learned_state=True)
    params, of_lstm, of_cell = start(linear), start(lstm), start(cell)
    steps = duoln.tensor(np.ones((4, 2, 3), np.float32), be)
    rows = [("Linear", ShapeError, lambda p=p: linear(p, x)) for p in (None, {}, [], 1, x, {"weight": params["weight"]}, {"bias": params["bias"]})]
    rows += [("linear", DtypeError, lambda v=v: linear(params, v)) for v in (None, 1.0, "a", np.ones((2, 3)), [x])]
    rows += [("linear", ShapeError, lambda: linear(params, x[:, :2])), ("linear", DtypeError, lambda: linear(linear.init(Stream(0, "w")), x)),
             ("Flatten", DtypeError, lambda: nn.Flatten()({}, None)), ("Flatten", ShapeError, lambda: nn.Flatten()({}, x[0, 0]))]
    norm, images = nn.LayerNorm((2, 3)), duoln.tensor(np.ones((2, 4, 6), np.float32), be)
    groups, free = nn.GroupNorm(3, 6), [nn.LayerNorm(4, affine=False), nn.RMSNorm(4, affine=False), nn.LayerNorm((3, 3), affine=False)]
    rows += [("layer_norm", ShapeError, lambda v=v: norm(start(norm), v)) for v in (images, x[0], x.T)]
    rows += [("LayerNorm", ShapeError, lambda p=p: norm(p, x)) for p in (None, {}, x, {"gain": x})]
    rows += [("group_norm", ShapeError, lambda v=v: groups(start(groups), v)) for v in (images[0, 0], images[:, :0])]
    rows += [("instance_norm", ShapeError, lambda v=v: nn.InstanceNorm(6)(start(nn.InstanceNorm(6)), v)) for v in (images[0], images[:, :0])]
    rows += [(type(one).__name__, ShapeError, lambda one=one, p=p: one(p, x)) for one in free for p in ({}, None, x, [])]
    rows += [("layer_norm", DtypeError, lambda: free[0]({}, np.ones(4))), ("rms_norm", DtypeError, lambda: free[1]({}, None))]
    rows += [("LSTM", DtypeError, lambda v=v: lstm(of_lstm, v)) for v in (None, 1.0, np.ones((4, 2, 3)), [steps])]
    rows += [("LSTM", ShapeError, lambda: lstm(of_lstm, x)), ("LSTM", ShapeError, lambda: lstm({}, steps)),
             ("LSTM", ShapeError, lambda: lstm(of_lstm, steps, states=x)), ("LSTM", ShapeError, lambda: lstm(of_lstm, steps, states=[])),
             ("LSTM", ShapeError, lambda: lstm(of_lstm, steps, states=[x])),
             ("lstm", DtypeError, lambda: lstm(of_lstm, steps, mask=steps)), ("LSTMCell", ShapeError, lambda: cell(of_cell, steps)),
             ("LSTMCell", ShapeError, lambda: cell(of_cell, x, x)), ("LSTMCell", ShapeError, lambda: cell({"w_h": of_cell["w_h"]}, x)),
             ("LSTMCell", DtypeError, lambda: cell(of_cell, None)), ("lstm_step", DtypeError, lambda: cell(of_cell, x, (None, None)))]
    assert unnamed(rows) == {}


OPTIMIZERS = {"SGD": (optim.SGD, ("momentum",), (), ("nesterov", "donate")), "RMSProp": (optim.RMSProp, ("beta",), ("eps",), ("donate",)),
              "Adam": (optim.Adam, ("beta1", "beta2"), ("eps",), ("donate",)), "AdamW": (optim.AdamW, ("beta1", "beta2"), ("eps",), ("donate",))}


def test_settings_of_optimizers():
    rows = []
    for name, (kind, shares, epsilons, flags) in OPTIMIZERS.items():
        bad = (-1.0, float("nan"), float("inf"))
        rows += [(name, DtypeError, lambda k=kind, v=v: k(v)) for v in NO_NUMBERS]
        rows += [(name, UsageError, lambda k=kind, v=v: k(v)) for v in bad]
        rows += [(name, DtypeError, lambda k=kind, s=s, v=v: k(0.1, **{s: v})) for s in (*shares, *epsilons) for v in NO_NUMBERS]
        rows += [(name, UsageError, lambda k=kind, s=s, v=v: k(0.1, **{s: v})) for s in shares for v in (*bad, 1.0)]
        rows += [(name, UsageError, lambda k=kind, s=s, v=v: k(0.1, **{s: v})) for s in epsilons for v in bad]
        rows += [(name, DtypeError, lambda k=kind, s=s, v=v: k(0.1, **{s: v})) for s in flags for v in NO_FLAGS]
        rows += [(name, DtypeError, lambda k=kind, v=v: k(0.1, clip=v)) for v in (1.0, "norm", [])]
        rows += [("optim", UsageError, lambda k=kind, v=v: k(lambda step: v).rate_at(3)) for v in bad]
        rows += [("optim", DtypeError, lambda k=kind, v=v: k(lambda step: v).rate_at(3)) for v in (None, "a")]
        rows += [("optim", DtypeError, lambda k=kind, s=s: k(0.1).rate_at(s)) for s in (None, "a", 1.5, True, [1])]
        rows += [("optim", ShapeError, lambda k=kind: k(0.1).rate_at(-1))]
    for name in ("clip_global_norm", "clip_each_norm", "clip_value"):
        rows += [(name, DtypeError, lambda f=getattr(optim, name), v=v: f(v)) for v in NO_NUMBERS]
        rows += [(name, UsageError, lambda f=getattr(optim, name), v=v: f(v)) for v in (0.0, -1.0, float("nan"), float("inf"))]
    rows += [("Adam", UsageError, lambda: optim.Adam(0.1, bias_correction="none")), ("Adam", DtypeError, lambda: optim.Adam(0.1, bias_correction=None)),
             ("scale_by_norm", DtypeError, lambda: optim.scale_by_norm(2.0))]
    assert unnamed(rows) == {}


def test_updates_called_wrongly(be):
    params = {"w": duoln.tensor([1.0, 2.0], be)}
    rate, short = duoln.tensor(0.1, be), {"w": duoln.tensor([1.0], be)}
    rows = []
    for name, kind in (("SGD", lambda: optim.SGD(0.1, momentum=0.9)), ("RMSProp", lambda: optim.RMSProp(0.1)), ("Adam", lambda: optim.Adam(0.1))):
        made = kind()
        slots = made.init(params)
        rows += [(name, DtypeError, lambda m=made, s=slots, r=r: m.update(params, params, s, r)) for r in (True, [0.1], "a", np.ones(2))]
        rows += [(name, ShapeError, lambda m=made, s=slots: m.update(params, params, s, params["w"])),
                 (name, DtypeError, lambda m=made: m.update(params, params, None, rate)), (name, ShapeError, lambda m=made: m.update(params, params, {}, rate)),
                 ("tree", ShapeError, lambda m=made, s=slots: m.update(params, {"w": None}, s, rate)),
                 (name, DtypeError, lambda m=made, s=slots: m.update({"w": np.ones(2)}, params, s, rate)),
                 ("tree", ShapeError, lambda m=made, s=slots: m.update(params, {"v": params["w"]}, s, rate)),
                 ("tree", ShapeError, lambda m=made, s=slots: m.update(params, [params["w"]], s, rate))]
        rows += [(name, DtypeError, lambda m=made, p=p: m.init({"w": p})) for p in (1.0, np.ones(2))]
    rows += [("adam_update", ShapeError, lambda: optim.Adam(0.1).update(params, short, optim.Adam(0.1).init(params), rate)),
             ("global_norm", UsageError, lambda: optim.global_norm({})),
             ("global_norm", UsageError, lambda: optim.global_norm({"w": None})), ("global_norm", DtypeError, lambda: optim.global_norm([1.0]))]
    assert unnamed(rows) == {}
