"""Programs of PyTorch around one layer, drawn from a seed, and run with duoln's layer or with its twin of plain PyTorch.

`Program.drawn(seed)` is a few words; `run(program, "ours")` and `run(program, "twin")` give the loss, the gradient of every leaf and the
parameters after some updates. `judged(program)` compares both.
"""

import copy
import pickle
import random
import threading
from contextlib import nullcontext
from typing import NamedTuple

import torch
from bridge import loops
from torch.nn.utils import clip_grad_norm_, parametrize
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from duoln import errors, ops
from duoln.bridge import torch as bridge

T, B, H = 5, 4, 6
RECURRENT = "LSTM", "GRU", "RNN"
KINDS = [(kind, norm) for kind in RECURRENT for norm in ("none", "layer")] * 2 + [
    (kind, None) for kind in ("LayerNorm", "RMSNorm", "AddLayerNorm", "differentiable")]
OF_RECURRENT = [("packed",), ("batch_first",), ("bidirectional",), ("two layers",), ("states",), ("detached states",)]
GROUPS = [("embedding",), ("linear before",), ("dropout before", "layer norm before"), ("relu_ before", "add_ before"),
          ("transposed", "sliced", "expanded", "narrowed", "chunked"), ("mul_ after", "relu_ after", "change of the input"),
          ("chunked after", "strided after"), ("dropout after", "layer norm after"), ("linear after",),
          ("frozen weights", "frozen layer", "frozen before"), ("forward hook",), ("forward_pre hook",), ("full_backward hook",), ("tensor hook",),
          ("copies", "offload", "rounds"), ("post-accumulate hook",), ("parametrization",), ("checkpoint", "reentrant checkpoint"),
          ("no_grad part",), ("detached part",), ("two backward passes", "gradient penalty", "threads", "micro-batches"), ("autocast",),
          ("deepcopy", "state_dict", "pickle"), ("tied",), ("clip_grad_norm_",)]
CONFLICTS = [{"threads", "dropout before"}, {"threads", "dropout after"}, {"threads", "post-accumulate hook"}, {"tied", "bidirectional"},
             {"packed", "full_backward hook"}, {"packed", "forward_pre hook"}, {"packed", "forward hook"}, {"frozen weights", "parametrization"},
             {"rounds", "parametrization"}]
RARE = {"gradient penalty", "change of the input", "autocast", "mul_ after", "relu_ after"}
IN_PLACE = "modified by an inplace operation"


class Program(NamedTuple):
    """One program; `eval(repr(program))` is the same one."""

    seed: int
    kind: str
    norm: str | None
    optimizer: str
    features: tuple[str, ...]

    @classmethod
    def drawn(cls, seed):
        rng = random.Random(seed)
        kind, norm = rng.choice(KINDS)
        chosen = []
        for group in GROUPS + (OF_RECURRENT if norm else []):
            name = rng.choice(group)
            if rng.random() < (0.08 if name in RARE else 0.3) and not any(name in c and c & {*chosen} for c in CONFLICTS):
                chosen.append(name)
        if norm == "none" and "parametrization" in chosen:
            chosen.remove("parametrization")  # torch.nn's recurrent layers go on with the weights that they had
        optimizer = rng.choice(["SGD", "Adam", "LBFGS"])
        return cls(seed, kind, norm, "SGD" if "autocast" in chosen else optimizer, tuple(chosen))

    def has(self, *names):
        return any(name in self.features for name in names)


class Loop(torch.nn.Module):
    """A recurrent layer with layer norm as loops over time, with the names of the parameters of `layer`."""

    def __init__(self, layer):
        super().__init__()
        self.loop, self.num_layers, self.batch_first = getattr(loops, layer.cell), layer.num_layers, layer.batch_first
        self.endings, self.states = ("", "_reverse")[:1 + layer.bidirectional], layer.states
        for name, p in layer.named_parameters():
            module, _, rest = name.rpartition(".")
            if not module:
                self.register_parameter(rest, torch.nn.Parameter(p.detach().clone(memory_format=torch.contiguous_format)))
            elif rest == "weight":
                self.add_module(module, torch.nn.LayerNorm(len(p)))

    def forward(self, input, hx=None):
        packed = isinstance(input, PackedSequence)
        x, lengths = pad_packed_sequence(input) if packed else (input.transpose(0, 1) if self.batch_first else input, None)
        lengths = lengths.tolist() if packed else None
        first = [x.new_zeros(self.num_layers * len(self.endings), x.shape[1], H)] * self.states if hx is None else hx if self.states == 2 else [hx]
        columns, last = [], []
        for b, length in enumerate(lengths) if packed else [(slice(None), len(x))]:
            column = slice(b, b + 1) if packed else b
            y, states = self._walk(x[:length, column], [s[:, column] for s in first])
            columns.append(torch.nn.functional.pad(y, (0, 0, 0, 0, 0, len(x) - length)))
            last.append(states)
        y, states = torch.cat(columns, 1), tuple(torch.cat(s, 1) for s in zip(*last, strict=True))
        y = pack_padded_sequence(y, lengths, enforce_sorted=False) if packed else y.transpose(0, 1) if self.batch_first else y
        return y, states if self.states == 2 else states[0]

    def _walk(self, x, first):
        own, last = {**dict(self.named_buffers()), **{name: getattr(self, name) for name in self._names()}}, []
        own.update({f"{name}.{part}": getattr(module, part) for name, module in self.named_children() if name.startswith("layernorm")
                    for part in ("weight", "bias")})
        for layer in range(self.num_layers):
            outputs = []
            for ending in self.endings:
                end = f"_l{layer}{ending}"
                p = {name.replace(end, "_l0", 1): value for name, value in own.items() if name.split(".")[0].endswith(end)}
                y, states = self.loop(p, x.flip(0) if ending else x, *(s[len(last)] for s in first))
                outputs.append(y.flip(0) if ending else y)
                last.append(states if self.states == 2 else (states,))
            x = torch.cat(outputs, -1)
        return x, [torch.stack(s) for s in zip(*last, strict=True)]

    def _names(self):
        return [*dict(self.named_parameters(recurse=False)), *getattr(self, "parametrizations", {})]


class AddLayerNorm(torch.nn.LayerNorm):
    def forward(self, x, residual):
        return super().forward(x + residual), x + residual


def _expression(lib, norm):
    return lambda x, w, b: lib.tanh(norm(x @ w, b)) * x + lib.exp(-x * x)


_of_duoln = bridge.differentiable(_expression(ops, lambda y, b: ops.layer_norm(y, None, b)))
_of_torch = _expression(torch, lambda y, b: torch.nn.functional.layer_norm(y, (H,), None, b))


class Function(torch.nn.Module):
    def __init__(self, is_ours):
        super().__init__()
        self.weight, self.bias, self.is_ours = torch.nn.Parameter(torch.randn(H, H) / 2), torch.nn.Parameter(torch.randn(H)), is_ours

    def forward(self, x):
        return (_of_duoln if self.is_ours else _of_torch)(x, self.weight, self.bias)


def _layer(program, is_ours):
    kind = program.kind
    if kind == "differentiable":
        return Function(is_ours)
    if program.norm is None:
        return getattr(bridge, kind)(H) if is_ours else AddLayerNorm(H) if kind == "AddLayerNorm" else getattr(torch.nn, kind)(H)
    options = {"num_layers": 1 + program.has("two layers"), "bidirectional": program.has("bidirectional"), "batch_first": program.has("batch_first")}
    if is_ours or program.norm == "layer":
        layer = getattr(bridge, kind)(H, H, norm=program.norm, **options)
        return layer if is_ours else Loop(layer)
    return getattr(torch.nn, kind)(H, H, **options)


def _tie(second, first):
    for name, p in list(first.named_parameters()):
        module, _, rest = name.rpartition(".")
        setattr(second.get_submodule(module), rest, p)


class Model(torch.nn.Module):
    """The layer, and what comes before and after it."""

    def __init__(self, program, is_ours, is_cut):
        super().__init__()
        self.program, self.is_ours, self.is_cut = program, is_ours, is_cut
        before = [torch.nn.Embedding(7, H)] if program.has("embedding") else []
        before += [torch.nn.Linear(H, H)] if program.has("linear before") else []
        before += [torch.nn.Dropout(0.3)] if program.has("dropout before") else []
        before += [torch.nn.LayerNorm(H)] if program.has("layer norm before") else []
        self.before, self.layer = torch.nn.Sequential(*before), _layer(program, is_ours)
        self.second = _layer(program, is_ours) if program.has("tied") else None
        width = H * (1 + program.has("bidirectional"))
        after = [torch.nn.LayerNorm(width)] if program.has("layer norm after") else []
        after += [torch.nn.Dropout(0.3)] if program.has("dropout after") else []
        after += [torch.nn.Linear(width, 3)] if program.has("linear after") else []
        self.after = torch.nn.Sequential(*after)

    def call(self, layer, x, *states):
        """A layer's result, and a sum of its last states."""
        program = self.program
        if program.has("rounds") and self.is_ours:  # the twin does not round, and a layer of duoln needs nothing of what is rounded
            layer = self._rounding(layer)
        if program.has("autocast") and not self.is_ours:  # 16 bits become float32 before a layer of duoln
            layer = self._in_float32(layer)
        if program.norm is None:
            y = layer(x, x.flip(0)) if program.kind == "AddLayerNorm" else layer(x)
            y, rest = y if isinstance(y, tuple) else (y, y)
            return y, rest.square().sum()
        hx = None if not states else states if program.kind == "LSTM" else states[0]
        if program.has("packed"):
            axis = 1 if program.has("batch_first") else 0
            lengths = [x.shape[axis] - k % 3 for k in range(x.shape[1 - axis])]
            packed, last = layer(pack_padded_sequence(x, lengths, program.has("batch_first"), enforce_sorted=False), hx)
            y = pad_packed_sequence(packed, program.has("batch_first"))[0]
        elif program.has("detached states"):
            first, second = x.chunk(2, 1 if program.has("batch_first") else 0)
            y, last = layer(first, hx)
            rest, last = layer(second, tuple(s.detach() for s in last) if program.kind == "LSTM" else last.detach())
            y = torch.cat([y, rest], 1 if program.has("batch_first") else 0)
        else:
            y, last = layer(x, hx)
        return y, sum(s.square().sum() for s in (last if isinstance(last, tuple) else (last,)))

    @staticmethod
    def _rounding(layer):
        def run(*args):
            with torch.autograd.graph.saved_tensors_hooks(lambda x: x.bfloat16() if x.is_floating_point() else x, lambda x: x):
                return layer(*args)

        return run

    @staticmethod
    def _in_float32(layer):
        def run(*args):
            with torch.autocast("cpu", enabled=False):
                return layer(*(a.float() if isinstance(a, torch.Tensor | PackedSequence) else a for a in args))

        return run

    def around(self, x, *states):
        """`call` within hooks on saved tensors and checkpoints."""
        program, run = self.program, lambda *args: self.call(self.layer, *args)
        if program.has("checkpoint", "reentrant checkpoint"):
            once = run
            run = lambda *args: checkpoint(once, *args, use_reentrant=program.has("reentrant checkpoint"))  # noqa: E731
        hooks = nullcontext()
        if program.has("copies"):
            hooks = torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x)
        elif program.has("offload"):
            hooks = torch.autograd.graph.save_on_cpu()
        with hooks:
            return run(x, *states)

    def forward(self, x, states):
        program = self.program
        x = self.before(x) * 1.0
        x = torch.relu_(x) if program.has("relu_ before") else x.add_(0.5) if program.has("add_ before") else x
        if program.has("transposed"):
            x = x.transpose(-1, -2).contiguous().transpose(-1, -2)
        elif program.has("sliced"):
            x = torch.cat([x, x / 2], -1)[..., ::2]
        elif program.has("expanded"):
            x = x[:, :1].expand_as(x)
        elif program.has("narrowed"):
            x = torch.cat([x, x * x]).narrow(0, 1, len(x))
        elif program.has("chunked"):
            x = torch.cat([x, x / 3], -1).chunk(2, -1)[1]
        y, last = self.around(x, *states)
        if self.is_cut:
            y, last = y.detach(), last.detach()
        if program.has("tensor hook") and y.requires_grad:
            y.register_hook(lambda g: g * 0.5)
        if program.has("change of the input"):
            x.add_(1.0)
        y = y.mul_(2.0) if program.has("mul_ after") else torch.relu_(y) if program.has("relu_ after") else y
        if program.has("no_grad part"):
            with torch.no_grad():
                part = self.call(self.layer, x.detach() / 2, *states)[0]
            y = y + part
        if program.has("detached part"):
            y = y + y.detach() ** 2
        if self.second is not None:
            y, rest = self.call(self.second, y)
            y, last = (y.detach(), last) if self.is_cut else (y, last + rest)
        y = self.after(y)
        if program.has("chunked after") and y.shape[-1] % 2 == 0:
            first, second = y.chunk(2, -1)
            y = first * second
        elif program.has("strided after"):
            y = y[::2, 1:]
        y = y.float() if y.dtype is torch.bfloat16 else y
        return (y.square() * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)).mean() + last * 0.1


def _halve(p):
    p.grad.mul_(0.5)


class _Doubled(torch.nn.Module):
    def forward(self, x):
        return x + 0.1 * x ** 3


def _built(program, side):
    """The model with copies, frozen parts, hooks and parametrizations. Both sides start from the weights of the twin."""
    torch.manual_seed(program.seed)
    models = [Model(program, is_ours, side == "cut") for is_ours in (False, True)]
    for model in models:
        if model.second is not None:
            _tie(model.second, model.layer)
    with torch.no_grad():
        for p in models[0].parameters():
            p.add_(torch.randn_like(p) / 5)
    models[1].load_state_dict(models[0].state_dict())
    model = models[side == "ours"]
    model = model if program.has("autocast") else model.double()
    if program.has("deepcopy"):
        model = copy.deepcopy(model)
    elif program.has("pickle"):
        model = pickle.loads(pickle.dumps(model))
    elif program.has("state_dict"):
        state = copy.deepcopy(model.state_dict())
        for p in model.parameters():
            p.data.zero_()
        model.load_state_dict(state)
    if program.optimizer == "LBFGS":
        for p in model.parameters():
            p.data = p.data.contiguous()  # as the page says
    for name, p in model.named_parameters():
        p.requires_grad_(not ((program.has("frozen layer") and name.startswith("layer.")) or (program.has("frozen before") and name.startswith("before."))
                              or (program.has("frozen weights") and "weight_hh" in name)))
    layer = model.layer
    if program.has("parametrization"):
        parametrize.register_parametrization(layer, "weight_hh_l0" if program.norm else "weight", _Doubled())
    if program.has("forward hook"):
        layer.register_forward_hook(lambda m, args, y: (y[0] * 1.5, *y[1:]) if isinstance(y, tuple) else y * 1.5)
    if program.has("forward_pre hook"):
        layer.register_forward_pre_hook(lambda m, args: (args[0] * 0.7, *args[1:]))
    if program.has("full_backward hook"):
        layer.register_full_backward_hook(lambda m, of_inputs, of_outputs: tuple(None if g is None else g * 0.5 for g in of_inputs))
    if program.has("post-accumulate hook"):
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(_halve)
    return model


def _inputs(program):
    generator = torch.Generator().manual_seed(program.seed)
    shape, dtype = (B, T) if program.has("batch_first") else (T, B), torch.float32 if program.has("autocast") else torch.float64
    x = torch.randint(7, shape, generator=generator) if program.has("embedding") else torch.randn(*shape, H, generator=generator, dtype=dtype)
    count = (2 if program.kind == "LSTM" else 1) if program.has("states") else 0
    rows = (1 + program.has("two layers")) * (1 + program.has("bidirectional"))
    return x, [torch.randn(rows, B, H, generator=generator, dtype=dtype) for _ in range(count)]


def run(program, side, updates):
    """Losses, the first gradients of all leaves and the last parameters, by name. The sides are "ours", "twin", and "cut": the twin
    whose layer gives no gradient.
    """
    model, (x, states), results = _built(program, side), _inputs(program), {}
    leaves = [] if program.has("embedding") else [x]
    for leaf in leaves + states:
        leaf.requires_grad_()
    parameters = [p for p in model.parameters() if p.requires_grad]
    kinds = {"SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), "Adam": lambda p: torch.optim.Adam(p, 1e-2),
             "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3)}
    optimizer = kinds[program.optimizer](parameters or leaves + states)

    def forward(x, states):
        torch.manual_seed(program.seed)
        with torch.autocast("cpu", torch.bfloat16) if program.has("autocast") else nullcontext():
            return model(x, states)

    def halves():
        axis = 0 if program.has("batch_first") else 1
        return list(zip(x.chunk(2, axis), zip(*(s.chunk(2, 1) for s in states), strict=True) if states else [(), ()], strict=True))

    def in_threads():
        losses, failures = [None, None], []

        def work(k, half):
            try:
                losses[k] = forward(*half)
                losses[k].backward()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(k, half)) for k, half in enumerate(halves())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return losses[0] + losses[1]

    def closure():
        for leaf in [*model.parameters(), *leaves, *states]:
            leaf.grad = None
        if program.has("threads"):
            loss = in_threads()
        elif program.has("micro-batches"):
            loss = 0.0
            for half in halves():
                part = forward(*half) / 2
                part.backward()
                loss += part.detach()
        else:
            loss = forward(x, states)
            if program.has("gradient penalty"):
                [g] = torch.autograd.grad(loss, (leaves + parameters)[:1], create_graph=True)
                loss = loss + g.square().sum()
            loss.backward(retain_graph=program.has("two backward passes"))
            if program.has("two backward passes"):
                loss.backward()
        if "loss" not in results:
            results["loss"] = loss.detach()
            results.update({f"gradient of {name}": g.clone() for name, g in [*((n, p.grad) for n, p in model.named_parameters()), *(
                (f"leaf {k}", leaf.grad) for k, leaf in enumerate(leaves + states))] if g is not None})
        if program.has("clip_grad_norm_"):
            clip_grad_norm_(parameters, 0.5)
        return loss.detach()

    for update in range(updates):
        results[f"loss {update}"] = optimizer.step(closure).detach()
    return {**results, **{name: p.detach().clone() for name, p in model.named_parameters()}}


def _differences(program, a, b):
    options = {"rtol": 0.05, "atol": 0.02} if program.has("autocast") else {"rtol": 1e-6, "atol": 1e-9}
    return [name for name in dict.fromkeys([*a, *b]) if name not in a or name not in b or not torch.allclose(a[name], b[name], **options)]


def _outcome(program, side, updates=3):
    try:
        return run(program, side, updates)
    except Exception as error:
        return error


def judged(program):
    """(verdict, words): "equal", "refused", "wrong", or "again" for a program whose layer has no part in any gradient."""
    twin, ours = _outcome(program, "twin"), _outcome(program, "ours")
    if isinstance(ours, Exception):
        words = f"{type(ours).__name__}: {str(ours)[:90]}"
        if type(ours) is type(twin) and (str(ours)[:40] == str(twin)[:40] or ("inplace" in str(ours) and "inplace" in str(twin))):
            return "refused", f"as the twin: {words}"
        if type(ours).__module__ == errors.__name__ or (isinstance(ours, RuntimeError) and IN_PLACE in str(ours)):
            return "refused", words
        return "wrong", f"{words}; the twin {'computes' if isinstance(twin, dict) else repr(twin)[:90]}"
    if isinstance(twin, Exception):
        return "wrong", f"the twin raises {type(twin).__name__}: {str(twin)[:120]}"
    cut = _outcome(program, "cut", 1)
    if isinstance(cut, Exception):  # nothing else needs a gradient
        assert "does not require" in str(cut), (program, cut)
    elif not any(name.startswith("gradient") for name in _differences(program, twin, cut)):
        return "again", ""
    different = _differences(program, ours, twin)
    return ("wrong", f"{len(different)} differ: {', '.join(different[:6])}") if different else ("equal", "")


def counted(index):
    """The program of an index and its verdict, after those that do not count."""
    for seed in range(1000 * index, 1000 * index + 50):
        program = Program.drawn(seed)
        verdict, words = judged(program)
        if verdict != "again":
            return program, verdict, words, seed - 1000 * index
    raise AssertionError(f"no program of index {index} depends on its layer")
